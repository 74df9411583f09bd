// The CPU capability of this process: the instruction sets that kernels are dispatched on.
#pragma once

#include <string>
#include <vector>

#include "common/cpu_features.h"

namespace fastbert {

// Each includes those before it. Features that vary within a CPU capability (AVX-512 BF16 and VNNI) are in
// `capability_features`.
enum class CpuCapability { portable, avx2, avx512, amx };

// The current CPU capability: the one that FASTBERT_CPU names, else the processor's highest, unless overridden by
// `force_capability`.
CpuCapability cpu_capability();

// The features that kernels may use at the current CPU capability; those above it read as absent.
const CpuFeatures& capability_features();

// The CPU capabilities that this process supports, lowest first: portable, avx2, avx512, amx.
std::vector<std::string> available_capabilities();
std::string capability_name(CpuCapability capability);

// Override the CPU capability; "" restores the highest. Throws std::invalid_argument for an unknown or unsupported one.
// Not thread-safe: no kernel may be running.
void force_capability(const std::string& name);

// For tests: replace the processor's features by these, named as Linux names them; an empty list restores the detected
// ones. Executing an unsupported instruction ends the process unless it is emulated.
void override_features(const std::vector<std::string>& names);

}  // namespace fastbert
