// Python's view of csrc/cpu/quantize.h.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <limits>
#include <string>
#include <tuple>

#include "bindings/module.h"
#include "bindings/tensors.h"
#include "cpu/gemm/quantize.h"

namespace py = pybind11;

namespace fastbert {
namespace {

void quantize_rows(const Matrix& x, std::size_t rows, std::size_t depth, Address integers, Address scales) {
    const auto& [address, dtype, stride] = x;
    require(rows == 0 || scales, "scales is a null pointer");
    require(rows == 0 || depth == 0 || (address && integers), "x or integers is a null pointer");
    require(rows <= 1 || stride >= depth, "x has rows that overlap");
    require(stride == 0 || rows <= std::numeric_limits<std::size_t>::max() / 16 / stride,
            "x is larger than the memory");
    const QuantizedRows call{pointer<const void>(address),  dtype_of(dtype),       stride, rows, depth,
                             pointer<std::int8_t>(integers), pointer<float>(scales)};
    py::gil_scoped_release release;
    quantize(call);
}

}  // namespace

void bind_quantize(py::module_& module) {
    module.def("quantize_rows", &quantize_rows, py::arg("x"), py::arg("rows"), py::arg("depth"), py::arg("integers"),
               py::arg("scales"), "Rows as int8 with a scale each.");
}

}  // namespace fastbert
