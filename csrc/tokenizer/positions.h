// From bit masks to the offsets of their set bits, for scans.
#pragma once
#include <array>
#include <cstdint>

#include "tokenizer/window.h"

namespace fastbert::tokenizer {

// Set the chunks of a window of `size` bytes that they cover without gaps, from the masks of their first bytes.
using SetChunks = void (*)(const std::uint64_t* starts, std::size_t size, Window& window);

// The fastest version for this processor.
SetChunks fastest_set_chunks();

namespace positions {
void portable(const std::uint64_t* starts, std::size_t size, Window& window);
// Null if not compiled for this architecture.
extern const SetChunks avx512;

// Common to all versions: count, the end of the last chunk, and the total.
inline void finish(std::uint16_t* end, std::size_t size, Window& window) {
    window.count = static_cast<std::size_t>(end - window.starts.data());
    *end = static_cast<std::uint16_t>(size);
    window.chunks_before[block_count(size)] = static_cast<std::uint16_t>(window.count);
}
}  // namespace positions

}  // namespace fastbert::tokenizer
