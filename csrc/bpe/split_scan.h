// Cuts text into chunks by the expression of GPT-2,
//
//     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// by bit algebra on the classes of 64 bytes at a time: a run of letters, of numbers or of others begins where the class
// changes, and one space before it belongs to it; of the white space before such a run the last character stands alone
// or joins it.
#pragma once
#include <cstddef>
#include <cstdint>

#include "tokenizer/positions.h"
#include "tokenizer/window.h"

namespace fastbert::bpe {

// The classes of the bytes of a block, without the characters beyond ASCII; what is in no class is none of these.
struct ByteClasses {
    std::uint64_t letter, number, space, plain_space, apostrophe, separator, continuation, beyond;
};

// Classify `size` bytes and copy them, both up to the end of the last block; what is beyond the text is a plain space.
using Classify = void (*)(const std::uint8_t* text, std::size_t size, std::uint8_t* copy, ByteClasses* blocks);

struct SplitScan {
    const char* name;
    Classify classify;
    tokenizer::SetChunks set_chunks;

    // Scan whole characters, at most kWindow bytes, as if the text ended after them. Texts may be separated by
    // kSeparator, a chunk of its own.
    void operator()(const std::uint8_t* text, std::size_t size, tokenizer::Window& window) const;
};

// The fastest version for this processor, and the portable one.
SplitScan fastest_split_scan();
SplitScan portable_split_scan();

// The size of the first chunk of a text.
std::size_t first_chunk(const std::uint8_t* text, const std::uint8_t* end);

namespace scans {
// Null if not compiled for this architecture.
extern const Classify avx512;
extern const Classify avx2;
}  // namespace scans

}  // namespace fastbert::bpe
