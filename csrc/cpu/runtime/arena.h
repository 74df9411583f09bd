// Per-thread memory for the activations inside one call, reused by the next: fresh pages are several times slower to
// touch than warm ones.
#pragma once

#include <cstddef>

namespace fastbert {

// Return at least `bytes` bytes, aligned to 64, owned by the calling thread and valid until its next call. Kept for the
// next call unless much larger than recent calls needed. Throws std::bad_alloc.
std::byte* arena(std::size_t bytes);

// Call after the last use within a call: releases more than a GiB, so that one huge batch does not pin it.
void release_large_arena();

}  // namespace fastbert
