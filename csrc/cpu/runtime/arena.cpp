#include "cpu/runtime/arena.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace fastbert {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kLargest = std::size_t{1} << 30;
// Calls using less than a quarter before memory is released: more than those for groups of one batch.
constexpr int kIdleCalls = 1024;

struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
};

struct Arena {
    std::unique_ptr<std::byte, Free> memory;
    std::size_t size = 0;
    std::size_t needed = 0;  // maximum of the recent calls
    int calls = 0;

    void allocate(std::size_t bytes) {
        memory.reset();
        size = 0;
        const std::size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
        memory.reset(static_cast<std::byte*>(std::aligned_alloc(kHugePage, rounded)));
        if (!memory) throw std::bad_alloc();
        size = rounded;
#if defined(__linux__)
        madvise(memory.get(), rounded, MADV_HUGEPAGE);  // only a hint
#endif
    }

    std::byte* reserve(std::size_t bytes) {
        needed = std::max(needed, bytes);
        if (++calls >= kIdleCalls) {
            if (needed < size / 4) allocate(needed);
            needed = bytes;
            calls = 0;
        }
        if (size < bytes) allocate(std::max(bytes, size + size / 4));
        return memory.get();
    }
};

Arena& thread_arena() {
    static thread_local Arena arena;
    return arena;
}

}  // namespace

std::byte* arena(std::size_t bytes) { return thread_arena().reserve(bytes); }

void release_large_arena() {
    if (thread_arena().size > kLargest) thread_arena() = Arena{};
}

}  // namespace fastbert
