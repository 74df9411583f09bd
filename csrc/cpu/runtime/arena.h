// Memory for the activations inside one call, used again by the next: fresh pages are several times slower to touch
// than warm ones.
#pragma once

#include <cstddef>

namespace fastbert {

// At least `bytes` bytes, aligned to 64, of the calling thread's own memory, valid until its next call. Kept for the
// next call unless it is much larger than what the last calls needed. Throws std::bad_alloc.
std::byte* arena(std::size_t bytes);

// Behind the last use of it in a call: gives back memory of more than a GiB, so that one huge batch does not hold it.
void release_large_arena();

}  // namespace fastbert
