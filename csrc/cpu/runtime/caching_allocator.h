// A caching allocator for large tensors of training steps, and another for weights, which outlive them.
//
// Fresh pages cost several times as much as warm ones. Blocks are therefore cut from large mappings of huge pages,
// oldest mapping and lowest address first, and a freed block is merged with its free neighbours: batches of any size
// reuse the same warm pages, and memory stays close to the peak use. Weights share huge pages: each by itself, most of
// a model's would lie on small ones, whose addresses take longer to translate than a few rows take to multiply.
#pragma once

#include <cstddef>

namespace fastbert {

// The memory of steps or of weights.
enum class Pool { steps, weights };

// A block of an allocator, aligned to 4 KiB and uninitialised; freed by the destructor, on any thread. Without a size
// it holds no memory.
class AllocatorBlock {
public:
    AllocatorBlock() = default;
    // Throws std::bad_alloc if out of memory.
    explicit AllocatorBlock(std::size_t bytes, Pool pool = Pool::steps);
    AllocatorBlock(AllocatorBlock&& other) noexcept;
    AllocatorBlock& operator=(AllocatorBlock&& other) noexcept;
    AllocatorBlock(const AllocatorBlock&) = delete;
    AllocatorBlock& operator=(const AllocatorBlock&) = delete;
    ~AllocatorBlock();

    std::byte* data() const { return data_; }

private:
    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
    Pool pool_ = Pool::steps;
};

// Of the steps' pool: bytes in blocks, bytes in warm pages without blocks, and the peak of bytes in blocks since
// `reset_allocator_peak`.
struct AllocatorStatistics {
    std::size_t in_use = 0, free = 0, peak = 0, blocks = 0;
};

AllocatorStatistics allocator_statistics();
void reset_allocator_peak();

// Return all unused pages of both pools to the system. Pages of steps unused for 2,048 allocations are returned
// automatically, so that one huge batch does not pin its memory; those of weights as soon as they are free.
void release_free_pages();

}  // namespace fastbert
