// Python's view of csrc/common/cpu_features.
#include <pybind11/stl.h>

#include "bindings/module.h"
#include "common/cpu_features.h"
#include "cpu/runtime/level.h"
#include "cpu/runtime/parallel.h"

namespace py = pybind11;

namespace fastbert {
namespace {

py::dict by_name(const CpuFeatures& features) {
    py::dict named;
    for (const auto& [name, member] : kCpuFeatureNames) named[name] = features.*member;
    return named;
}

}  // namespace

void bind_features(py::module_& module) {
    module.def(
        "cpu_features", [] { return by_name(cpu_features()); },
        "Instruction sets that this process can use; named as Linux names them.");
    module.def(
        "cpu_level_features", [] { return by_name(level_features()); },
        "Those of them that kernels use at the level in force.");
    module.def("cpu_level", [] { return level_name(level()); }, "The level of the CPU kernels in force.");
    module.def("cpu_levels", &available_levels, "The levels that this process can run, lowest first.");
    module.def("force_cpu_level", &force_level, py::arg("name"),
               "Run CPU kernels at this level; an empty name chooses the highest again.");
    module.def("pretend_cpu_features", &pretend_features, py::arg("names"),
               "For tests: take these features for those of the processor; an empty list asks it again.");
    module.def("parallel_threads", &parallel_threads, "The threads that a kernel called here runs on.");
}

}  // namespace fastbert
