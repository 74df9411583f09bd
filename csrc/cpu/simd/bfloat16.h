// bfloat16: the upper half of a float.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace fastbert {

struct BFloat16 {
    std::uint16_t bits;
};

inline float to_float(BFloat16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }

// Round to nearest, ties to even; NaN stays NaN.
inline BFloat16 to_bfloat16(float x) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    if (x != x) return {static_cast<std::uint16_t>(bits >> 16 | 0x40U)};
    return {static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16)};
}

// The dtypes of kernel operands.
enum class Dtype : int { fp32, bf16 };

inline std::size_t size_of(Dtype dtype) { return dtype == Dtype::fp32 ? 4 : 2; }

}  // namespace fastbert
