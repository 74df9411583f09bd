// Python's view of csrc/common/cpu_features.
#include <pybind11/stl.h>

#include "bindings.h"
#include "common/cpu_features.h"
#include "cpu/level.h"
#include "cpu/parallel.h"

namespace py = pybind11;

namespace fastbert {

void bind_features(py::module_& module) {
    module.def(
        "cpu_features",
        [] {
            const CpuFeatures& has = cpu_features();
            py::dict features;
            features["avx2"] = has.avx2;
            features["fma"] = has.fma;
            features["avx512f"] = has.avx512f;
            features["avx512bw"] = has.avx512bw;
            features["avx512vl"] = has.avx512vl;
            features["avx512dq"] = has.avx512dq;
            features["avx512vbmi"] = has.avx512vbmi;
            features["avx512_vbmi2"] = has.avx512_vbmi2;
            features["avx512_vnni"] = has.avx512_vnni;
            features["avx512_bf16"] = has.avx512_bf16;
            features["amx_tile"] = has.amx_tile;
            features["amx_int8"] = has.amx_int8;
            features["amx_bf16"] = has.amx_bf16;
            features["amx_in_hardware"] = has.amx_in_hardware;
            return features;
        },
        "Instruction sets that this process can use; named as Linux names them.");
    module.def("cpu_level", [] { return level_name(level()); }, "The level of the CPU kernels in force.");
    module.def("cpu_levels", &available_levels, "The levels that this process can run, lowest first.");
    module.def("force_cpu_level", &force_level, py::arg("name"),
               "Run CPU kernels at this level; an empty name chooses the highest again.");
    module.def("pretend_cpu_features", &pretend_features, py::arg("names"),
               "For tests: take these features for those of the processor; an empty list asks it again.");
    module.def("parallel_threads", &parallel_threads, "The threads that a kernel called here runs on.");
}

}  // namespace fastbert
