#include "cpu/dropout/dropout.h"

#include <bit>

#include "cpu/dropout/kernel_table.h"
#include "cpu/runtime/cpu_capability.h"
#include "cpu/simd/target.h"

namespace fastbert {
namespace {

const DropoutKernels& kernels() {
#if FASTBERT_X86
    if (cpu_capability() >= CpuCapability::avx512) return dropout_kernels_avx512();
    if (cpu_capability() >= CpuCapability::avx2) return dropout_kernels_avx2();
#endif
    return dropout_kernels_portable();
}

void fill_row(const DropoutRow& row, std::size_t count, std::uint16_t keep, std::uint16_t* out) {
    kernels().fill16(row, count, keep, out);
}
void fill_row(const DropoutRow& row, std::size_t count, std::uint32_t keep, std::uint32_t* out) {
    kernels().fill32(row, count, keep, out);
}

}  // namespace

void token_dropout_row(float* out, std::size_t width, std::uint32_t position, std::uint32_t site, std::uint64_t key,
                       std::uint32_t threshold, float keep) {
    fill_row({0, position, 0, site, key, false, threshold}, width, std::bit_cast<std::uint32_t>(keep),
             reinterpret_cast<std::uint32_t*>(out));
}

void attention_dropout_row(float* out, std::size_t first_key, std::size_t count, std::uint32_t query,
                           std::uint32_t head, std::uint32_t site, std::uint64_t key, std::uint32_t threshold,
                           float keep) {
    // 32 keys use four blocks.
    const auto first_block = static_cast<std::uint32_t>(first_key / 8);
    fill_row({first_block, query, head, site, key, true, threshold}, count, std::bit_cast<std::uint32_t>(keep),
             reinterpret_cast<std::uint32_t*>(out));
}

template <typename Element>
void token_dropout_mask(Element* out, std::size_t tokens, std::size_t width, const std::int64_t* keys,
                        const std::int64_t* sequence, const std::int64_t* position, std::uint32_t site,
                        std::uint32_t threshold, Element keep) {
    for (std::size_t t = 0; t < tokens; ++t) {
        const auto key = static_cast<std::uint64_t>(keys[sequence[t]]);
        fill_row({0, static_cast<std::uint32_t>(position[t]), 0, site, key, false, threshold}, width, keep,
                 out + t * width);
    }
}

template <typename Element>
void attention_dropout_mask(Element* out, std::size_t sequences, std::size_t heads, std::size_t queries,
                            std::size_t key_count, const std::int64_t* keys, std::uint32_t site,
                            std::uint32_t threshold, Element keep) {
    for (std::size_t s = 0; s < sequences; ++s) {
        for (std::size_t head = 0; head < heads; ++head) {
            for (std::size_t query = 0; query < queries; ++query, out += key_count) {
                const auto key = static_cast<std::uint64_t>(keys[s]);
                const auto row = static_cast<std::uint32_t>(query), which = static_cast<std::uint32_t>(head);
                fill_row({0, row, which, site, key, true, threshold}, key_count, keep, out);
            }
        }
    }
}

template void token_dropout_mask(std::uint16_t*, std::size_t, std::size_t, const std::int64_t*, const std::int64_t*,
                                 const std::int64_t*, std::uint32_t, std::uint32_t, std::uint16_t);
template void token_dropout_mask(std::uint32_t*, std::size_t, std::size_t, const std::int64_t*, const std::int64_t*,
                                 const std::int64_t*, std::uint32_t, std::uint32_t, std::uint32_t);
template void attention_dropout_mask(std::uint16_t*, std::size_t, std::size_t, std::size_t, std::size_t,
                                     const std::int64_t*, std::uint32_t, std::uint32_t, std::uint16_t);
template void attention_dropout_mask(std::uint32_t*, std::size_t, std::size_t, std::size_t, std::size_t,
                                     const std::int64_t*, std::uint32_t, std::uint32_t, std::uint32_t);

}  // namespace fastbert
