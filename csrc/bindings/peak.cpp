// Bindings of csrc/cpu/peak.
#include <pybind11/pybind11.h>

#include <string>

#include "bindings/registration.h"
#include "cpu/peak/peak.h"

namespace py = pybind11;

namespace fastbert::peak_bindings {
namespace {

double measure_peak(const std::string& element, int threads, double seconds) {
    if (element != "bf16" && element != "int8" && element != "fp32")
        throw py::value_error("element must be bf16, int8 or fp32, not " + element);
    if (threads < 1 || threads > 4096) throw py::value_error("threads must be 1 to 4096");
    if (!(seconds > 0.0 && seconds <= 60.0)) throw py::value_error("seconds must be above 0, at most 60");
    const Element kind = element == "bf16" ? Element::bf16 : element == "int8" ? Element::int8 : Element::fp32;
    py::gil_scoped_release release;
    return cpu_peak(kind, threads, seconds);
}

const Registration registration{"peak", [](py::module_& module) {
    module.def(
        "cpu_peak", &measure_peak, py::arg("element"), py::arg("threads"), py::arg("seconds"),
        "Measure operations per second on random data in registers, with the widest instructions of the CPU capability.");
}};

}  // namespace
}  // namespace fastbert::peak_bindings
