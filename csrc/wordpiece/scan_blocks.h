// Shared by all versions of the scan.
#pragma once
#include <array>
#include <cstdint>
#include <cstring>

#include "wordpiece/scanner.h"

namespace fastbert::wordpiece::scans {

// Two tables of sixteen bytes that classify ASCII by its low and its high half: a byte is a boundary if the entries
// share a bit, white space if they share one of kSpaceBits. Bytes from 128 on must be looked up as zero.
//   bit 0: 09 0A 0D   bit 1: 20   bit 2: 21-2F   bit 3: 3A-3F   bit 4: 40 60   bit 5: 5B-5F   bit 6: 7B-7E
inline constexpr std::uint8_t kSpaceBits = 0x03;
inline constexpr std::uint8_t kPunctuationBits = 0x7C;
alignas(16) inline constexpr std::array<std::uint8_t, 16> kLowHalf = {
    0x12, 0x04, 0x04, 0x04, 0x04, 0x04, 0x04, 0x04, 0x04, 0x05, 0x0D, 0x6C, 0x6C, 0x6D, 0x6C, 0x2C,
};
alignas(16) inline constexpr std::array<std::uint8_t, 16> kHighHalf = {
    0x01, 0, 0x06, 0x08, 0x10, 0x20, 0x10, 0x40, 0, 0, 0, 0, 0, 0, 0, 0,
};

using tokenizer::block_at;
using tokenizer::block_count;

struct Edges {
    std::uint64_t starts, lasts;
};

// The masks of the first and last bytes of the chunks in block i of `count`.
inline Edges edges_of(const Window& window, std::size_t i, std::size_t count) {
    const BlockMasks& block = window.masks[i];
    const std::uint64_t before = i == 0 ? 0 : window.masks[i - 1].inside;
    const std::uint64_t after = i + 1 == count ? 0 : window.masks[i + 1].inside;
    const std::uint64_t preceded = block.inside << 1 | before >> 63;
    const std::uint64_t followed = block.inside >> 1 | after << 63;
    return {block.punctuation | (block.inside & ~preceded), block.punctuation | (block.inside & ~followed)};
}

// Convert the masks of `count` blocks to chunk offsets. `append` writes those of a mask's bits, for a block that begins
// at an offset, and returns their end. Inlined, so that it is compiled for the processor that its caller is.
template <class Append>
[[gnu::always_inline]] inline void collect_chunks(Window& window, std::size_t count, const Append& append) {
    std::uint16_t* starts = window.starts.data();
    std::uint16_t* lasts = window.lasts.data();
    for (std::size_t i = 0; i < count; ++i) {
        const Edges edges = edges_of(window, i, count);
        window.chunks_before[i] = static_cast<std::uint16_t>(starts - window.starts.data());
        window.first_bytes[i] = edges.starts;
        starts = append(edges.starts, i * kBlock, starts);
        lasts = append(edges.lasts, i * kBlock, lasts);
    }
    window.count = static_cast<std::size_t>(starts - window.starts.data());
    window.chunks_before[count] = static_cast<std::uint16_t>(window.count);
}

// With the portable append().
void collect_chunks(Window& window, std::size_t count);

}  // namespace fastbert::wordpiece::scans
