// Finds the chunks of a text: ASCII punctuation marks, and the runs of other bytes between these and ASCII white space.
// ASCII boundaries are hard: text on one side does not affect words on the other, so the tokens of a chunk are a
// function of its bytes alone.
//
// A window of text is classified 64 bytes at a time with the processor's widest instructions; all versions return the
// same result.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace fastbert::wordpiece {

inline constexpr std::size_t kBlock = 64;
inline constexpr std::size_t kWindow = 4096;
// This many bytes after a chunk are readable (a whole register from its first byte on).
inline constexpr std::size_t kOverread = 64;

// Bit i classifies byte i of a block.
struct BlockMasks {
    std::uint64_t inside;        // neither ASCII white space nor ASCII punctuation
    std::uint64_t punctuation;
    std::uint64_t continuation;  // continues a character
};

// The result of a scan. Positions are offsets from the start of the window.
struct Window {
    std::size_t count = 0;  // chunks
    alignas(64) std::array<std::uint8_t, kWindow + kOverread> bytes{};  // the text, ASCII in lower case if asked for
    // First and last byte of each chunk. A block's offsets are stored in full registers, which needs slack for one
    // more.
    std::array<std::uint16_t, kWindow + kBlock> starts;
    std::array<std::uint16_t, kWindow + kBlock> lasts;
    std::array<BlockMasks, kWindow / kBlock> masks;
    std::array<std::uint16_t, kWindow / kBlock + 1> chunks_before;  // each block, and behind the last one
};

// Scan `size` bytes, at most kWindow, assuming a boundary after them.
using Scan = void (*)(const std::uint8_t* text, std::size_t size, bool lower_case, Window& window);

// A version of the scan by name; `usable` is false if this processor lacks its instructions.
struct ScanVersion {
    const char* name;
    Scan scan;
    bool usable;
};

// All compiled versions, fastest first; the last one is portable.
const std::array<ScanVersion, 4>& scan_versions();

// The fastest usable version.
Scan fastest_scan();

namespace scans {
void portable(const std::uint8_t* text, std::size_t size, bool lower_case, Window& window);
// Null if not compiled for this architecture.
extern const Scan avx512;
extern const Scan avx2;
extern const Scan neon;
}  // namespace scans

}  // namespace fastbert::wordpiece
