// Memory for large tensors that come and go with every step of training, used again by the next step.
//
// Fresh pages cost several times what warm ones do. So blocks are cut from large mappings of huge pages, the oldest
// mapping and its lowest place first, and a block that comes back is joined with its free neighbours: batches of any
// size are served from the same warm pages, and memory stays as dense as the busiest moment needs.
#pragma once

#include <cstddef>

namespace fastbert {

// A piece of the pool's memory, aligned to 4 KiB; it goes back when the owner dies, on any thread. Nobody wrote to it,
// or anybody did.
class AllocatorBlock {
public:
    // Throws std::bad_alloc where the system has no more.
    explicit AllocatorBlock(std::size_t bytes);
    AllocatorBlock(AllocatorBlock&& other) noexcept;
    AllocatorBlock(const AllocatorBlock&) = delete;
    AllocatorBlock& operator=(const AllocatorBlock&) = delete;
    AllocatorBlock& operator=(AllocatorBlock&&) = delete;
    ~AllocatorBlock();

    std::byte* data() const { return data_; }

private:
    std::byte* data_;
    std::size_t size_;
};

// Bytes: in blocks, in warm pages that no block uses, and the most there ever were in blocks at once since `reset_peak`.
struct AllocatorStatistics {
    std::size_t in_use = 0, free = 0, peak = 0, blocks = 0;
};

AllocatorStatistics allocator_statistics();
void reset_allocator_peak();

// Gives all pages that no block uses back to the system. Those that no block used for a long while (2,048 blocks taken
// since) go by themselves, so that one huge batch does not hold its memory for ever.
void release_free_pages();

}  // namespace fastbert
