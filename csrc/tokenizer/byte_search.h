// Search for two bytes in a row, the first of which is in a set and the second in another.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace fastbert::tokenizer {

// A set of bytes, for lookups by halves: bit h of low[l] (high[l]) stands for byte 16 h + l (16 (h + 8) + l).
struct ByteSet {
    alignas(16) std::array<std::uint8_t, 16> low{}, high{};

    void insert(std::uint8_t byte) {
        (byte < 0x80 ? low : high)[byte & 15] |= static_cast<std::uint8_t>(1 << (byte >> 4 & 7));
    }
    bool contains(std::uint8_t byte) const {
        return ((byte < 0x80 ? low : high)[byte & 15] >> (byte >> 4 & 7) & 1) != 0;
    }
};

// The first place from `from` on of which this is true, or where fewer than two bytes are left and the first one is in
// its set; `size` if there is none.
using FindPair = std::size_t (*)(const std::uint8_t* text, std::size_t from, std::size_t size, const ByteSet& first,
                                 const ByteSet& second);

// The fastest version for this processor.
FindPair fastest_find_pair();

}  // namespace fastbert::tokenizer
