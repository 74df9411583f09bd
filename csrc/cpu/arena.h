// Memory for the activations inside one call, used again by the next: fresh pages are several times slower to touch
// than warm ones.
#pragma once

#include <cstddef>

namespace fastbert {

// At least `bytes` bytes, aligned to 64, of the calling thread's own memory, valid until its next call. Kept for the
// next call unless it is much larger than what the last calls needed. Throws std::bad_alloc.
std::byte* arena(std::size_t bytes);

}  // namespace fastbert
