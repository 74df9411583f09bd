// Bindings of csrc/cpu/unit_rows. Shapes are validated in Python.
#include <pybind11/pybind11.h>

#include <cstddef>

#include "bindings/registration.h"
#include "bindings/tensors.h"
#include "cpu/unit_rows/unit_rows.h"

namespace py = pybind11;

namespace fastbert::unit_rows_bindings {
namespace {

void call_unit_rows(Address values, std::size_t rows, std::size_t width, double least, Address result) {
    require(rows == 0 || width == 0 || (values && result), "an address is 0");
    py::gil_scoped_release release;
    unit_rows(pointer<const float>(values), rows, width, least, pointer<float>(result));
}

const Registration registration{"unit_rows", [](py::module_& module) { module.def("unit_rows", &call_unit_rows); }};

}  // namespace
}  // namespace fastbert::unit_rows_bindings
