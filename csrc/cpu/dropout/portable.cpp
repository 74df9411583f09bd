// Portable dropout masks.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/dropout/kernel_table.h"
#include "cpu/simd/target.h"

namespace fastbert {
namespace {

// One 64-bit lane.
struct Scalar {
    static constexpr std::uint32_t kBlocks = 1;
    using Word = std::uint64_t;

    static FASTBERT_INLINE Word broadcast(std::uint32_t x) { return x; }
    static FASTBERT_INLINE Word load(const std::uint32_t* p) { return p[0] | static_cast<Word>(p[1]) << 32; }
    static FASTBERT_INLINE Word product(Word a, Word b) { return (a & 0xFFFFFFFFU) * (b & 0xFFFFFFFFU); }
    static FASTBERT_INLINE Word upper(Word x) { return x >> 32; }
    static FASTBERT_INLINE Word exclusive_or(Word a, Word b, Word c) { return a ^ b ^ c; }
    static FASTBERT_INLINE Word join(Word even, Word odd) { return (even & 0xFFFFFFFFU) | odd << 32; }

    // Set the bit of a kept draw without a branch, which random draws would mispredict.
    static FASTBERT_INLINE std::uint32_t reaches(std::uint32_t word, std::size_t byte, std::uint32_t threshold) {
        return (word >> 8 * byte & 0xFFU) >= threshold ? 1 : 0;
    }
    static FASTBERT_INLINE std::uint32_t counter(const Word (&word)[8], std::size_t i) {
        return static_cast<std::uint32_t>(word[i / 2] >> 32 * (i % 2));
    }
    static FASTBERT_INLINE void row_bits(const Word (&words)[4][8], std::uint32_t threshold, std::uint8_t* bits,
                                         std::size_t stride) {
        for (std::size_t i = 0; i < 4; ++i) {
            // Eight keys are the same half of a word of four blocks.
            for (std::size_t j = 0; j < 8; ++j) {
                std::uint32_t kept = 0;
                for (std::size_t key = 0; key < 8; ++key)
                    kept |= reaches(counter(words[j / 2], 4 * i + key / 2), 2 * (j % 2) + key % 2, threshold) << key;
                bits[i * stride + j] = static_cast<std::uint8_t>(kept);
            }
        }
    }
    static FASTBERT_INLINE void column_bits(const Word (&words)[4][8], std::uint32_t threshold, std::uint8_t* bits,
                                            std::size_t stride) {
        for (std::size_t w = 0; w < 4; ++w) {
            for (std::size_t k = 0; k < 4; ++k) {
                std::uint32_t kept = 0;
                for (std::size_t i = 0; i < 16; ++i) kept |= reaches(counter(words[w], i), k, threshold) << i;
                std::uint8_t* row = bits + (16 * w + 8 * (k / 2) + k % 2) * stride;
                row[0] = static_cast<std::uint8_t>(kept);
                row[1] = static_cast<std::uint8_t>(kept >> 8);
            }
        }
    }
};

#include "cpu/dropout/philox_vectors.h"
#include "cpu/dropout/attention_bits.h"

constexpr std::size_t kTokenBlocks = 32;  // computed in parallel, enough to fill vector registers
constexpr std::size_t kTokenDraws = 8;    // 16-bit draws per block

// The words of the 32 blocks from `first` on, block by block.
void philox_row(const TokenRow& row, std::uint32_t first, std::uint32_t* words) {
    std::uint32_t c0[kTokenBlocks], c1[kTokenBlocks], c2[kTokenBlocks], c3[kTokenBlocks];
    for (std::size_t i = 0; i < kTokenBlocks; ++i) {
        c0[i] = first + static_cast<std::uint32_t>(i);
        c1[i] = row.position;
        c2[i] = 0;
        c3[i] = row.site;
    }
    std::uint32_t k0 = lower(row.key), k1 = upper(row.key);
    for (int round = 0; round < kDropoutRounds; ++round) {
        for (std::size_t i = 0; i < kTokenBlocks; ++i) {
            const std::uint64_t a = std::uint64_t{kPhiloxMultipliers[0]} * c0[i];
            const std::uint64_t b = std::uint64_t{kPhiloxMultipliers[1]} * c2[i];
            c0[i] = upper(b) ^ c1[i] ^ k0;
            c2[i] = upper(a) ^ c3[i] ^ k1;
            c1[i] = lower(b);
            c3[i] = lower(a);
        }
        k0 += kPhiloxSteps[0];
        k1 += kPhiloxSteps[1];
    }
    for (std::size_t i = 0; i < kTokenBlocks; ++i) {
        words[4 * i] = c0[i];
        words[4 * i + 1] = c1[i];
        words[4 * i + 2] = c2[i];
        words[4 * i + 3] = c3[i];
    }
}

template <typename Element>
void fill_row(const TokenRow& row, std::size_t count, Element keep, Element* out) {
    alignas(64) std::uint32_t words[kTokenBlocks * 4];
    alignas(64) std::uint16_t draws[kTokenBlocks * kTokenDraws];
    for (std::size_t start = 0; start < count; start += kTokenBlocks * kTokenDraws) {
        philox_row(row, static_cast<std::uint32_t>(start / kTokenDraws), words);
        // Draws alternate between the low and high halves of the words, which is memory order on little-endian
        // machines.
        if constexpr (std::endian::native == std::endian::little) {
            std::memcpy(draws, words, sizeof(words));
        } else {
            for (std::size_t i = 0; i < kTokenBlocks * kTokenDraws; ++i)
                draws[i] = static_cast<std::uint16_t>(words[i / 2] >> (16 * (i % 2)));
        }
        const std::size_t some = std::min(kTokenBlocks * kTokenDraws, count - start);
        for (std::size_t i = 0; i < some; ++i) out[start + i] = draws[i] >= row.threshold ? keep : Element{0};
    }
}

constexpr DropoutKernels kKernels = {fill_row<std::uint16_t>, fill_row<std::uint32_t>, row_bits<Scalar>,
                                     column_bits<Scalar>};

}  // namespace

const DropoutKernels& dropout_kernels_portable() { return kKernels; }

}  // namespace fastbert
