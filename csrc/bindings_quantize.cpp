// Python's view of csrc/cpu/quantize.h. Rows arrive as (address, dtype, elements between rows), checked in Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <limits>
#include <string>
#include <tuple>

#include "bindings.h"
#include "cpu/quantize.h"

namespace py = pybind11;

namespace fastbert {
namespace {

using Address = std::uintptr_t;
using Matrix = std::tuple<Address, std::string, std::size_t>;

void require(bool holds, const std::string& message) {
    if (!holds) throw py::value_error(message);
}

void quantize_rows(const Matrix& x, std::size_t rows, std::size_t depth, Address integers, Address scales) {
    const auto& [address, dtype, stride] = x;
    require(dtype == "fp32" || dtype == "bf16", "dtype must be fp32 or bf16, not " + dtype);
    require(rows == 0 || scales, "scales is a null pointer");
    require(rows == 0 || depth == 0 || (address && integers), "x or integers is a null pointer");
    require(rows <= 1 || stride >= depth, "x has rows that overlap");
    require(stride == 0 || rows <= std::numeric_limits<std::size_t>::max() / 16 / stride,
            "x is larger than the memory");
    const QuantizedRows call{reinterpret_cast<const void*>(address),
                             dtype == "fp32" ? Dtype::fp32 : Dtype::bf16,
                             stride,
                             rows,
                             depth,
                             reinterpret_cast<std::int8_t*>(integers),
                             reinterpret_cast<float*>(scales)};
    py::gil_scoped_release release;
    quantize(call);
}

}  // namespace

void bind_quantize(py::module_& module) {
    module.def("quantize_rows", &quantize_rows, py::arg("x"), py::arg("rows"), py::arg("depth"), py::arg("integers"),
               py::arg("scales"), "Rows as int8 with a scale each.");
}

}  // namespace fastbert
