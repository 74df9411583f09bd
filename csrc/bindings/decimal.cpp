// Bindings of csrc/tokenizer/decimal.h.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <string_view>

#include "bindings/registration.h"
#include "tokenizer/decimal.h"

namespace py = pybind11;
using namespace py::literals;

namespace fastbert::decimal_bindings {
namespace {

void bind_functions(py::module_& module) {
    module.def("read_decimal", &tokenizer::read_decimal, "text"_a,
               "Return a number with a fraction or an exponent as the tokenizers library reads it from JSON.");
    module.def(
        "written_decimals",
        [](const py::array_t<double, py::array::c_style>& values) {
            py::array_t<double> result(values.size());
            std::transform(values.data(), values.data() + values.size(), result.mutable_data(), tokenizer::written_decimal);
            return result;
        },
        "values"_a, "Return float64 (values,) whose shortest decimal forms are read as `values` by read_decimal().");
}

const Registration registration{"decimal", &bind_functions, nullptr};

}  // namespace
}  // namespace fastbert::decimal_bindings
