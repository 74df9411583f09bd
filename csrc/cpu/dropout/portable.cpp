// Portable dropout masks.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/dropout/kernel_table.h"

namespace fastbert {
namespace {

constexpr std::size_t kBlocks = 32;  // Philox blocks computed in parallel, enough to fill vector registers
constexpr std::size_t kDraws = 8;    // 16-bit draws per block

// Words of the 32 blocks from `first` on: block by block, or for attention four blocks' first words, their second
// words, and so on.
void philox_row(const DropoutRow& row, std::uint32_t first, std::uint32_t* words) {
    std::uint32_t c0[kBlocks], c1[kBlocks], c2[kBlocks], c3[kBlocks];
    for (std::size_t i = 0; i < kBlocks; ++i) {
        c0[i] = first + static_cast<std::uint32_t>(i);
        c1[i] = row.row;
        c2[i] = row.head;
        c3[i] = row.site;
    }
    auto k0 = static_cast<std::uint32_t>(row.key), k1 = static_cast<std::uint32_t>(row.key >> 32);
    for (int round = 0; round < kDropoutRounds; ++round) {
        for (std::size_t i = 0; i < kBlocks; ++i) {
            const std::uint64_t a = std::uint64_t{kPhiloxMultipliers[0]} * c0[i];
            const std::uint64_t b = std::uint64_t{kPhiloxMultipliers[1]} * c2[i];
            c0[i] = static_cast<std::uint32_t>(b >> 32) ^ c1[i] ^ k0;
            c2[i] = static_cast<std::uint32_t>(a >> 32) ^ c3[i] ^ k1;
            c1[i] = static_cast<std::uint32_t>(b);
            c3[i] = static_cast<std::uint32_t>(a);
        }
        k0 += kPhiloxSteps[0];
        k1 += kPhiloxSteps[1];
    }
    for (std::size_t i = 0; row.attention && i < kBlocks; i += 4) {
        std::memcpy(words + 4 * i, c0 + i, 16);
        std::memcpy(words + 4 * i + 4, c1 + i, 16);
        std::memcpy(words + 4 * i + 8, c2 + i, 16);
        std::memcpy(words + 4 * i + 12, c3 + i, 16);
    }
    for (std::size_t i = 0; !row.attention && i < kBlocks; ++i) {
        words[4 * i] = c0[i];
        words[4 * i + 1] = c1[i];
        words[4 * i + 2] = c2[i];
        words[4 * i + 3] = c3[i];
    }
}

template <typename Element>
void fill(const DropoutRow& row, std::size_t count, Element keep, Element* out) {
    alignas(64) std::uint32_t words[kBlocks * 4];
    alignas(64) std::uint16_t draws[kBlocks * kDraws];
    for (std::size_t start = 0; start < count; start += kBlocks * kDraws) {
        philox_row(row, row.first_block + static_cast<std::uint32_t>(start / kDraws), words);
        // Draws alternate between the low and high halves of the words, which is memory order on little-endian
        // machines.
        if constexpr (std::endian::native == std::endian::little) {
            std::memcpy(draws, words, sizeof(words));
        } else {
            for (std::size_t i = 0; i < kBlocks * kDraws; ++i)
                draws[i] = static_cast<std::uint16_t>(words[i / 2] >> (16 * (i % 2)));
        }
        const std::size_t some = std::min(kBlocks * kDraws, count - start);
        for (std::size_t i = 0; i < some; ++i) out[start + i] = draws[i] >= row.threshold ? keep : Element{0};
    }
}

constexpr DropoutKernels kKernels = {fill<std::uint16_t>, fill<std::uint32_t>};

}  // namespace

const DropoutKernels& dropout_kernels_portable() { return kKernels; }

}  // namespace fastbert
