// Bindings of csrc/json.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "bindings/registration.h"
#include "json/numbers.h"
#include "json/structure.h"

namespace py = pybind11;
using namespace py::literals;

namespace fastbert::json_bindings {
namespace {

using Floats = py::array_t<float, py::array::c_style>;
using Integers = py::array_t<std::int32_t, py::array::c_style>;

void require_finite(const Floats& values) {
    const float* begin = values.data();
    if (!std::all_of(begin, begin + values.size(), [](float value) { return std::isfinite(value); }))
        throw py::value_error("JSON has no NaN and no infinity");
}

py::bytes json_row(const Floats& values) {
    require_finite(values);
    std::string text;
    {
        py::gil_scoped_release released;
        json::append_row(text, values.data(), static_cast<std::size_t>(values.size()));
    }
    return text;
}

py::bytes json_rows(const Floats& values) {
    if (values.ndim() != 2) throw py::value_error("values must have two axes");
    require_finite(values);
    const auto count = static_cast<std::size_t>(values.shape(0)), width = static_cast<std::size_t>(values.shape(1));
    std::string text;
    {
        py::gil_scoped_release released;
        text = json::rows(values.data(), count, width);
    }
    return text;
}

py::bytes json_entries(const Integers& indices, const Floats& values) {
    if (indices.size() != values.size()) throw py::value_error("there must be one index per value");
    require_finite(values);
    std::string text;
    {
        py::gil_scoped_release released;
        text = json::entries(indices.data(), values.data(), static_cast<std::size_t>(values.size()));
    }
    return text;
}

py::tuple json_structure(const py::bytes& text) {
    const std::string_view view = text;
    json::Structure found;
    {
        py::gil_scoped_release released;
        found = json::structure_of(view);
    }
    return py::make_tuple(found.containers, found.commas);
}

void bind_functions(py::module_& module) {
    module.def("json_structure", &json_structure, "text"_a);
    module.def("json_row", &json_row, "values"_a, "Return fp32 (count,) as a JSON array.");
    module.def("json_rows", &json_rows, "values"_a, "Return fp32 (rows, width) as a JSON array of arrays.");
    module.def("json_entries", &json_entries, "indices"_a, "values"_a,
               "Return int32 and fp32 (count,) as a JSON array of objects with `index` and `value`.");
}

const Registration registration{"json", &bind_functions, nullptr};

}  // namespace
}  // namespace fastbert::json_bindings
