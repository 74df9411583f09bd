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

#include "tokenizer/window.h"

namespace fastbert::wordpiece {

using tokenizer::kBlock;
using tokenizer::kOverread;
using tokenizer::kWindow;
using tokenizer::BlockMasks;
using tokenizer::Window;

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
