// Portable pack kernels of weights.
#include "cpu/gemm/pack_kernel.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "cpu/runtime/cpu_capability.h"
#include "cpu/simd/target.h"

namespace fastbert {
namespace {

struct ToBFloat16 {
    using Value = std::uint16_t;
    static Value of(float x) { return to_bfloat16(x).bits; }
    static Value of(BFloat16 x) { return x.bits; }
};

struct ToFloat {
    using Value = float;
    static Value of(float x) { return x; }
    static Value of(BFloat16 x) { return to_float(x); }
};

template <class To, typename From>
void pack_columns(const PackSource& from, const PackTarget& to, std::size_t first) {
    constexpr std::size_t kGroup = 4 / sizeof(typename To::Value);
    for (std::size_t row = 0; row < from.rows; ++row) {
        const From* x = static_cast<const From*>(from.data) + row * from.stride;
        const std::size_t column = first + row;
        std::byte* out = to.bytes + column / kPanel * to.panel_bytes + column % kPanel * 4;
        std::size_t k = 0;
        for (; k + kGroup <= from.width; k += kGroup, out += kPanel * 4) {
            typename To::Value group[kGroup];
            for (std::size_t i = 0; i < kGroup; ++i) group[i] = To::of(x[k + i]);
            std::memcpy(out, group, 4);
        }
        for (std::size_t i = 0; k + i < from.width; ++i) {
            const typename To::Value value = To::of(x[k + i]);
            std::memcpy(out + i * sizeof(value), &value, sizeof(value));
        }
    }
}

template <class To, typename From>
void pack_depth(const PackSource& from, const PackTarget& to, std::size_t first) {
    constexpr std::size_t kGroup = 4 / sizeof(typename To::Value), kRows = 32;
    // A few rows at a time, so that writes to a panel stay close together.
    for (std::size_t begin = 0; begin < from.rows; begin += kRows) {
        const std::size_t end = std::min(from.rows, begin + kRows);
        for (std::size_t column = 0; column < from.width; column += kPanel) {
            const std::size_t count = std::min(kPanel, from.width - column);
            for (std::size_t row = begin; row < end; ++row) {
                const From* x = static_cast<const From*>(from.data) + row * from.stride + column;
                const std::size_t k = first + row;
                std::byte* out = to.bytes + column / kPanel * to.panel_bytes + k / kGroup * kPanel * 4;
                auto* elements = reinterpret_cast<typename To::Value*>(out) + k % kGroup;
                for (std::size_t i = 0; i < count; ++i) elements[i * kGroup] = To::of(x[i]);
            }
        }
    }
}

template <class To>
struct Plain {
    static void columns(const PackSource& from, const PackTarget& to, std::size_t first) {
        from.dtype == Dtype::bf16 ? pack_columns<To, BFloat16>(from, to, first)
                                  : pack_columns<To, float>(from, to, first);
    }
    static void depth(const PackSource& from, const PackTarget& to, std::size_t first) {
        from.dtype == Dtype::bf16 ? pack_depth<To, BFloat16>(from, to, first) : pack_depth<To, float>(from, to, first);
    }
};

void columns(const PackSource& from, const PackTarget& to, std::size_t first) {
    to.element == Element::bf16 ? Plain<ToBFloat16>::columns(from, to, first)
                                : Plain<ToFloat>::columns(from, to, first);
}

void depth(const PackSource& from, const PackTarget& to, std::size_t first) {
    to.element == Element::bf16 ? Plain<ToBFloat16>::depth(from, to, first) : Plain<ToFloat>::depth(from, to, first);
}

}  // namespace

const PackKernel& portable_pack_kernel() {
    static constexpr PackKernel kernel{columns, depth};
    return kernel;
}

const PackKernel& pack_kernel() {
#if FASTBERT_X86
    if (cpu_capability() >= CpuCapability::avx512) return avx512_pack_kernel();
#endif
    return portable_pack_kernel();
}

}  // namespace fastbert
