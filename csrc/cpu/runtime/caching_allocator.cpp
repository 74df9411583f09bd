#include "cpu/runtime/caching_allocator.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace fastbert {
namespace {

constexpr std::size_t kBlockAlignment = 4096;           // granularity of sizes and addresses
constexpr std::size_t kPage = std::size_t{2} << 20;     // granularity of warm memory
constexpr std::size_t kSegment = std::size_t{1} << 30;  // mapped at a time; untouched memory is free
constexpr std::uint64_t kIdleBlocks = 2048;             // allocations before an unused page is released
constexpr std::uint64_t kTrimInterval = 64;             // allocations between two scans for such pages

constexpr std::size_t round_up(std::size_t x, std::size_t step) { return (x + step - 1) / step * step; }

// Map memory aligned to a huge page; null if out of memory.
std::byte* map(std::size_t bytes) {
    void* mapped = mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    auto* begin = static_cast<std::byte*>(mapped);
    const std::size_t before = (kPage - reinterpret_cast<std::uintptr_t>(begin) % kPage) % kPage;
    if (before) munmap(begin, before);
    if (before < kPage) munmap(begin + before + bytes, kPage - before);
#if defined(__linux__)
    madvise(begin + before, bytes, MADV_HUGEPAGE);  // only a hint
#endif
    return begin + before;
}

struct Page {
    std::uint64_t used = 0;  // clock at the last deallocation
    bool warm = false;       // may be backed by physical memory
};

struct Segment {
    std::size_t size = 0;
    std::uint64_t number = 0;
    std::vector<Page> pages;
};

// The key of a free span, ordered by the age of its segment: the system maps new segments below old ones, and
// lowest-address-first would abandon the warm pages.
struct SpanKey {
    std::uint64_t segment = 0;
    std::byte* begin = nullptr;

    auto operator<=>(const SpanKey&) const = default;
};

class CachingAllocator {
public:
    // Never destroyed: tensors may outlive everything else in the process.
    static CachingAllocator& get(Pool pool) {
        union Storage {
            CachingAllocator allocators[2];
            Storage() : allocators() {
                pthread_atfork([] { lock_all(); }, [] { unlock_all(); }, [] { unlock_all(); });
            }
            ~Storage() {}
        };
        static Storage storage;
        return storage.allocators[pool == Pool::weights ? 1 : 0];
    }

    std::byte* allocate(std::size_t size) {
        const std::lock_guard lock(mutex_);
        if (++clock_ % kTrimInterval == 0) trim(kIdleBlocks);
        auto span = fit(size);
        if (span == free_.end()) span = grow(size);
        const auto [segment, begin] = span->first;
        const std::size_t rest = span->second - size;
        free_.erase(span);
        if (rest) free_.emplace(SpanKey{segment, begin + size}, rest);
        for_pages(begin, size, [&](Page& page) {
            warm_ += page.warm ? 0 : kPage;
            page.warm = true;
        });
        in_use_ += size;
        ++blocks_;
        peak_ = std::max(peak_, in_use_);
        return begin;
    }

    void deallocate(std::byte* begin, std::size_t size) {
        const std::lock_guard lock(mutex_);
        for_pages(begin, size, [&](Page& page) { page.used = clock_; });
        in_use_ -= size;
        --blocks_;
        const SpanKey key{segment_of(begin).second.number, begin};
        auto next = free_.upper_bound(key);
        if (next != free_.end() && next->first == SpanKey{key.segment, begin + size}) {
            size += next->second;
            next = free_.erase(next);
        }
        if (next != free_.begin()) {
            const auto before = std::prev(next);
            if (before->first.segment == key.segment && before->first.begin + before->second == begin) {
                before->second += size;
                return;
            }
        }
        free_.emplace_hint(next, key, size);
    }

    void release() {
        const std::lock_guard lock(mutex_);
        trim(0);
    }

    void reset_peak() {
        const std::lock_guard lock(mutex_);
        peak_ = in_use_;
    }

    AllocatorStatistics statistics() {
        const std::lock_guard lock(mutex_);
        return {in_use_, warm_ - in_use_, peak_, blocks_};
    }

private:
    static void lock_all() {
        get(Pool::steps).mutex_.lock();
        get(Pool::weights).mutex_.lock();
    }

    static void unlock_all() {
        get(Pool::weights).mutex_.unlock();
        get(Pool::steps).mutex_.unlock();
    }

    using Free = std::map<SpanKey, std::size_t>;
    using Segments = std::map<std::byte*, Segment>;

    Free::iterator fit(std::size_t size) {
        return std::find_if(free_.begin(), free_.end(), [&](const auto& span) { return span.second >= size; });
    }

    // Map a new segment, only as large as needed if the system refuses more.
    Free::iterator grow(std::size_t size) {
        std::size_t bytes = std::max(kSegment, round_up(size, kPage));
        std::byte* begin = map(bytes);
        if (!begin) begin = map(bytes = round_up(size, kPage));
        if (!begin) {
            trim(0);
            begin = map(bytes);
        }
        if (!begin) throw std::bad_alloc();
        segments_.emplace(begin, Segment{bytes, ++mapped_, std::vector<Page>(bytes / kPage)});
        return free_.emplace(SpanKey{mapped_, begin}, bytes).first;
    }

    Segments::value_type& segment_of(std::byte* address) { return *std::prev(segments_.upper_bound(address)); }

    template <class Visit>
    void for_pages(std::byte* begin, std::size_t size, const Visit& visit) {
        auto& [first, segment] = segment_of(begin);
        const auto from = static_cast<std::size_t>(begin - first);
        for (std::size_t page = from / kPage; page < (from + size + kPage - 1) / kPage; ++page)
            visit(segment.pages[page]);
    }

    // Release free pages that no block used during the last `patience` allocations.
    void trim(std::uint64_t patience) {
        for (auto span = free_.begin(); span != free_.end();) {
            const auto [key, size] = *span;
            auto& [first, segment] = segment_of(key.begin);
            const auto from = static_cast<std::size_t>(key.begin - first);
            const std::size_t last = (from + size) / kPage;
            std::size_t retained = 0;
            for (std::size_t page = round_up(from, kPage) / kPage; page < last; ++page) {
                Page& state = segment.pages[page];
                if (!state.warm) continue;
                if (clock_ - state.used < patience) {
                    ++retained;
                    continue;
                }
                madvise(first + page * kPage, kPage, MADV_DONTNEED);
                state.warm = false;
                warm_ -= kPage;
            }
            const bool empty = size == segment.size && !retained;
            span = empty ? free_.erase(span) : std::next(span);
            if (empty) {
                munmap(first, segment.size);
                segments_.erase(first);
            }
        }
    }

    std::mutex mutex_;
    Free free_;
    Segments segments_;
    std::uint64_t clock_ = 0;   // allocations so far
    std::uint64_t mapped_ = 0;  // segments mapped so far
    std::size_t in_use_ = 0, warm_ = 0, peak_ = 0, blocks_ = 0;
};

std::size_t rounded(std::size_t bytes) {
    if (bytes > (std::size_t{1} << 47)) throw std::bad_alloc();
    return round_up(std::max<std::size_t>(bytes, 1), kBlockAlignment);
}

}  // namespace

AllocatorBlock::AllocatorBlock(std::size_t bytes, Pool pool) : size_(rounded(bytes)), pool_(pool) {
    data_ = CachingAllocator::get(pool).allocate(size_);
}

AllocatorBlock::AllocatorBlock(AllocatorBlock&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), pool_(other.pool_) {}

AllocatorBlock& AllocatorBlock::operator=(AllocatorBlock&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(pool_, other.pool_);
    return *this;
}

AllocatorBlock::~AllocatorBlock() {
    if (!data_) return;
    CachingAllocator& allocator = CachingAllocator::get(pool_);
    allocator.deallocate(data_, size_);
    // No step asks for a weight's pages again, and too few weights are allocated to age them.
    if (pool_ == Pool::weights) allocator.release();
}

AllocatorStatistics allocator_statistics() { return CachingAllocator::get(Pool::steps).statistics(); }

void reset_allocator_peak() { CachingAllocator::get(Pool::steps).reset_peak(); }

void release_free_pages() {
    for (const Pool pool : {Pool::steps, Pool::weights}) CachingAllocator::get(pool).release();
}

}  // namespace fastbert
