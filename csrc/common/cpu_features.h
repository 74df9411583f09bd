// CPU features supported by processor and operating system, detected at run time, so that one build of the extension
// runs on every CPU of its architecture.
#pragma once

#include <array>
#include <utility>

namespace fastbert {

// True means usable now: the instruction exists and the system saves its registers. All false off x86-64, where only
// the portable code runs.
struct CpuFeatures {
    bool avx2 = false;
    bool fma = false;
    bool f16c = false;
    bool avx512f = false;
    bool avx512bw = false;
    bool avx512vl = false;
    bool avx512dq = false;
    bool avx512vbmi = false;
    bool avx512_vbmi2 = false;
    bool avx512_vnni = false;
    bool avx512_bf16 = false;
    bool avx512_vp2intersect = false;
    bool amx_tile = false;
    bool amx_int8 = false;
    bool amx_bf16 = false;
    // AMX is present, whether or not the system permits its use.
    bool amx_in_hardware = false;
};

// As Linux names them.
inline constexpr std::array<std::pair<const char*, bool CpuFeatures::*>, 16> kCpuFeatureNames = {{
    {"avx2", &CpuFeatures::avx2},
    {"fma", &CpuFeatures::fma},
    {"f16c", &CpuFeatures::f16c},
    {"avx512f", &CpuFeatures::avx512f},
    {"avx512bw", &CpuFeatures::avx512bw},
    {"avx512vl", &CpuFeatures::avx512vl},
    {"avx512dq", &CpuFeatures::avx512dq},
    {"avx512vbmi", &CpuFeatures::avx512vbmi},
    {"avx512_vbmi2", &CpuFeatures::avx512_vbmi2},
    {"avx512_vnni", &CpuFeatures::avx512_vnni},
    {"avx512_bf16", &CpuFeatures::avx512_bf16},
    {"avx512_vp2intersect", &CpuFeatures::avx512_vp2intersect},
    {"amx_tile", &CpuFeatures::amx_tile},
    {"amx_int8", &CpuFeatures::amx_int8},
    {"amx_bf16", &CpuFeatures::amx_bf16},
    {"amx_in_hardware", &CpuFeatures::amx_in_hardware},
}};

// Detected once, on first use. On a processor with AMX this requests its tile registers from Linux, which a process
// must do before its first tile instruction; the permission covers all threads.
const CpuFeatures& cpu_features();

}  // namespace fastbert
