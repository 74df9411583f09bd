// The least of some numbers, with the processor's widest instructions.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fastbert::bpe {

inline constexpr std::size_t kKeyLanes = 16;

// `count` is a positive multiple of kKeyLanes; keys are aligned to 64 bytes.
using LeastKey = std::int32_t (*)(const std::int32_t* keys, std::size_t count);

// The fastest version for this processor.
LeastKey fastest_least_key();

}  // namespace fastbert::bpe
