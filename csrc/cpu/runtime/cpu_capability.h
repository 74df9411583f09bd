// Which kernels run: the dispatch level of this process.
#pragma once

#include <string>
#include <vector>

#include "common/cpu_features.h"

namespace fastbert {

// Each level includes those before it. Beside the level, kernels ask `capability_features` for what not every processor of
// a level has (AVX-512 BF16 and VNNI).
enum class CpuCapability { portable, avx2, avx512, amx };

// The level in force: the one that FASTBERT_CPU names, else the highest that this processor has, unless `force_capability`
// chose another.
CpuCapability cpu_capability();

// The features that kernels may use at the level in force: those above it read as absent.
const CpuFeatures& capability_features();

// The levels that this process can run, lowest first: portable, avx2, avx512, amx.
std::vector<std::string> available_capabilities();
std::string capability_name(CpuCapability level);

// Run at this level from now on; "" chooses the highest again. Throws std::invalid_argument for a level that is unknown
// or that this process cannot run. Not to be called while kernels run.
void force_capability(const std::string& name);

// For tests: take these features, named as Linux names them, for those of the processor; an empty list asks the
// processor again. Executing what it lacks ends the process, unless something emulates it.
void pretend_features(const std::vector<std::string>& names);

}  // namespace fastbert
