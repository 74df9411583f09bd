// Bindings of csrc/cpu/search. Shapes are validated in Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "bindings/registration.h"
#include "bindings/tensors.h"
#include "cpu/search/search.h"

namespace py = pybind11;

namespace fastbert::search_bindings {
namespace {

constexpr std::size_t kWidestInt8 = 1 << 16;  // sums of more products could be beyond 31 bits

RowKind kind_of(std::string_view name) {
    if (name == "int8") return RowKind::int8;
    if (name == "fp16") return RowKind::fp16;
    require(name == "fp32", "kind '" + std::string(name) + "' must be 'int8', 'fp16' or 'fp32'");
    return RowKind::fp32;
}

std::optional<std::size_t> call_search_rows(std::string_view kind, Address rows, Address scales, std::size_t count,
                                            std::size_t width, Address queries, Address query_scales,
                                            std::size_t query_count, std::size_t best, Address scores,
                                            Address indices) {
    SearchCall call;
    call.kind = kind_of(kind);
    require(width >= 1, "width=0 must be at least 1");
    require(call.kind != RowKind::int8 || width <= kWidestInt8, "int8 rows are at most 65536 wide");
    require(best <= count, "best must be at most the number of rows");
    constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max() / 1024;
    require(count <= kMost / width && query_count <= kMost / width && (best == 0 || query_count <= kMost / best),
            "rows, queries or results are larger than the memory");
    if (query_count == 0 || best == 0) return std::nullopt;
    require(rows && queries && scores && indices, "an address is 0");
    require(call.kind != RowKind::int8 || (scales && query_scales), "int8 rows need scales");
    call.rows = pointer<const void>(rows);
    call.scales = pointer<const float>(scales);
    call.count = count;
    call.width = width;
    call.queries = pointer<const void>(queries);
    call.query_scales = pointer<const float>(query_scales);
    call.query_count = query_count;
    call.best = best;
    call.scores = pointer<float>(scores);
    call.indices = pointer<std::int64_t>(indices);
    py::gil_scoped_release release;
    return search_rows(call);
}

const Registration registration{"search", [](py::module_& module) {
    module.def("search_rows", &call_search_rows, py::kw_only(), py::arg("kind"), py::arg("rows"), py::arg("scales"),
               py::arg("count"), py::arg("width"), py::arg("queries"), py::arg("query_scales"),
               py::arg("query_count"), py::arg("best"), py::arg("scores"), py::arg("indices"),
               "Write the rows with the largest dot products; return the first row whose score is not finite.");
}};

}  // namespace
}  // namespace fastbert::search_bindings
