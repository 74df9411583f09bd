// Finds the chunks of a text: punctuation marks of ASCII by themselves, and the runs of other bytes between these and
// ASCII white space. ASCII boundaries are hard: nothing on one side of them has an effect on words on the other side, so
// the tokens of a chunk are a function of its bytes alone.
//
// A window of text is classified 64 bytes at a time with the widest instructions of the processor; all versions give the
// same answer.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace fastbert::wordpiece {

inline constexpr std::size_t kBlock = 64;
inline constexpr std::size_t kWindow = 4096;
// As many bytes behind a chunk can be read (a whole register from its first byte on).
inline constexpr std::size_t kOverread = 64;

// Bit i of each: what byte i of a block is.
struct BlockMasks {
    std::uint64_t inside;        // neither ASCII white space nor ASCII punctuation
    std::uint64_t punctuation;
    std::uint64_t continuation;  // continues a character
};

// What a scan finds. Places are offsets from the start of the window.
struct Window {
    std::size_t count = 0;  // chunks
    alignas(64) std::array<std::uint8_t, kWindow + kOverread> bytes{};  // the text, ASCII in lower case if asked for
    // First and last byte of each chunk. A block's places are stored in full registers, so there is room for one more.
    std::array<std::uint16_t, kWindow + kBlock> starts;
    std::array<std::uint16_t, kWindow + kBlock> lasts;
    std::array<BlockMasks, kWindow / kBlock> masks;
    std::array<std::uint16_t, kWindow / kBlock + 1> chunks_before;  // each block, and behind the last one
};

// Scans `size` bytes, at most kWindow; behind them, a boundary is assumed.
using Scan = void (*)(const std::uint8_t* text, std::size_t size, bool lower_case, Window& window);

// A version of the scan by name; `usable` is false where this processor cannot run it.
struct ScanVersion {
    const char* name;
    Scan scan;
    bool usable;
};

// All versions that were compiled, the fastest first; the last one is portable.
const std::array<ScanVersion, 4>& scan_versions();

// The fastest one that is usable.
Scan fastest_scan();

namespace scans {
void portable(const std::uint8_t* text, std::size_t size, bool lower_case, Window& window);
// Null where the compiler does not make code for the processor family.
extern const Scan avx512;
extern const Scan avx2;
extern const Scan neon;
}  // namespace scans

}  // namespace fastbert::wordpiece
