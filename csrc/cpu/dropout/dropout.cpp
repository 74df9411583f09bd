#include "cpu/dropout/dropout.h"

#include <bit>
#include <vector>

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

void fill_row(const TokenRow& row, std::size_t count, std::uint16_t keep, std::uint16_t* out) {
    kernels().fill16(row, count, keep, out);
}
void fill_row(const TokenRow& row, std::size_t count, std::uint32_t keep, std::uint32_t* out) {
    kernels().fill32(row, count, keep, out);
}

// Write `keep` for each bit that is set, else 0.
template <typename Element>
void expand(const std::uint8_t* bits, std::size_t count, Element keep, Element* out) {
    constexpr Element kBits[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    // Eight at a time in the width of the elements, which compilers vectorise.
    for (; count >= 8; count -= 8, out += 8) {
        const Element byte = *bits++;
        for (std::size_t k = 0; k < 8; ++k) out[k] = (byte & kBits[k]) == kBits[k] ? keep : Element{0};
    }
    for (std::size_t k = 0; k < count; ++k) out[k] = (*bits & kBits[k]) == kBits[k] ? keep : Element{0};
}

}  // namespace

void token_dropout_row(float* out, std::size_t width, std::uint32_t position, std::uint32_t site, std::uint64_t key,
                       std::uint32_t threshold, float keep) {
    fill_row({position, site, key, threshold}, width, std::bit_cast<std::uint32_t>(keep),
             reinterpret_cast<std::uint32_t*>(out));
}

template <typename Element>
void token_dropout_mask(Element* out, std::size_t tokens, std::size_t width, const std::int64_t* keys,
                        const std::int64_t* sequence, const std::int64_t* position, std::uint32_t site,
                        std::uint32_t threshold, Element keep) {
    for (std::size_t t = 0; t < tokens; ++t) {
        const auto key = static_cast<std::uint64_t>(keys[sequence[t]]);
        fill_row({static_cast<std::uint32_t>(position[t]), site, key, threshold}, width, keep, out + t * width);
    }
}

void attention_row_bits(const HeadDropout& dropout, std::size_t query, std::size_t first_key, std::size_t keys,
                        std::uint8_t* bits, std::size_t stride) {
    kernels().row_bits(dropout, query, first_key, keys, bits, stride);
}

void attention_column_bits(const HeadDropout& dropout, std::size_t query, std::size_t queries, std::size_t first_key,
                           std::uint8_t* bits, std::size_t stride) {
    kernels().column_bits(dropout, query, queries, first_key, bits, stride);
}

template <typename Element>
void attention_dropout_mask(Element* out, std::size_t sequences, std::size_t heads, std::size_t queries,
                            std::size_t key_count, const std::int64_t* keys, std::uint32_t site,
                            std::uint32_t threshold, Element keep) {
    const std::size_t stride = KeepBits::row_bytes(key_count);
    std::vector<std::uint8_t> bits(KeepBits::kRowQueries * stride);
    for (std::size_t s = 0; s < sequences; ++s) {
        for (std::size_t head = 0; head < heads; ++head) {
            const HeadDropout dropout = AttentionDropout{keys, site, threshold}.of(s, head);
            for (std::size_t query = 0; query < queries; ++query, out += key_count) {
                const std::size_t row = query % KeepBits::kRowQueries;
                if (row == 0) attention_row_bits(dropout, query, 0, key_count, bits.data(), stride);
                expand(bits.data() + row * stride, key_count, keep, out);
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
