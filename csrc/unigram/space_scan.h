// Cuts text into chunks before spaces: every one, or the first of each run.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "tokenizer/positions.h"
#include "tokenizer/window.h"

namespace fastbert::unigram {

// The bytes that count as spaces: three of them, some of which may be equal.
using SpaceBytes = std::array<std::uint8_t, 3>;

struct SpaceMasks {
    std::uint64_t space, separator, continuation;
};

// Classify `size` bytes and copy them, both up to the end of the last block.
using ClassifySpaces = void (*)(const std::uint8_t* text, std::size_t size, const SpaceBytes& spaces,
                                std::uint8_t* copy, SpaceMasks* blocks);

struct SpaceScan {
    const char* name;
    ClassifySpaces classify;
    tokenizer::SetChunks set_chunks;

    // Scan at most kWindow bytes. Texts may be separated by kSeparator, a chunk of its own.
    void operator()(const std::uint8_t* text, std::size_t size, const SpaceBytes& spaces, bool in_runs,
                    tokenizer::Window& window) const;
};

// The fastest version for this processor, and the portable one.
SpaceScan fastest_space_scan();
SpaceScan portable_space_scan();

namespace scans {
// Null if not compiled for this architecture.
extern const ClassifySpaces avx512;
extern const ClassifySpaces avx2;
}  // namespace scans

}  // namespace fastbert::unigram
