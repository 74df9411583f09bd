#include "cpu/attention/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "cpu/runtime/cpu_capability.h"
#include "cpu/runtime/parallel.h"
#include "cpu/simd/target.h"

namespace fastbert {
namespace {

AttentionKernel kernel_of(Dtype dtype) {
#if FASTBERT_X86
    if (dtype == Dtype::bf16 && cpu_capability() >= CpuCapability::amx) return attention_amx();
    if (dtype == Dtype::bf16 && capability_features().avx512_bf16) return attention_avx512_bf16();
    if (cpu_capability() >= CpuCapability::avx512) return attention_avx512(dtype);
    if (cpu_capability() >= CpuCapability::avx2) return attention_avx2(dtype);
#endif
    return attention_portable(dtype);
}

// Per-thread memory kept for the next call: faulting in fresh pages would cost more than a short sequence.
class Scratch {
  public:
    // Return null if out of memory.
    std::byte* reserve(std::size_t bytes) {
        if (bytes <= size_) return memory_.get();
        memory_.reset();
        size_ = 0;
        void* fresh = ::operator new(bytes, kAlignment, std::nothrow);
        if (!fresh) return nullptr;
        memory_.reset(static_cast<std::byte*>(fresh));
        std::fill_n(memory_.get(), bytes, std::byte{0});
        size_ = bytes;
        return memory_.get();
    }

  private:
    static constexpr std::align_val_t kAlignment{64};
    struct Delete {
        void operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }
    };
    std::unique_ptr<std::byte, Delete> memory_;
    std::size_t size_ = 0;
};

Scratch& thread_scratch() {
    static thread_local Scratch scratch;
    return scratch;
}

AttentionItem sequence_of(const AttentionCall& call, std::size_t sequence) {
    AttentionItem item;
    item.sequence = sequence;
    item.query_token = static_cast<std::size_t>(call.cu_seqlens_q[sequence]);
    item.queries = static_cast<std::size_t>(call.cu_seqlens_q[sequence + 1]) - item.query_token;
    item.key_token = static_cast<std::size_t>(call.cu_seqlens_k[sequence]);
    item.keys = static_cast<std::size_t>(call.cu_seqlens_k[sequence + 1]) - item.key_token;
    return item;
}

// A range of a sequence's queries, for all heads.
struct QueryRange {
    AttentionItem item;
    double cost;
};

// The cost model: beyond its scores, each query and each packed key costs as much as 16 scores.
double cost_of(std::size_t queries, std::size_t keys) {
    return (static_cast<double>(queries) + 16) * (static_cast<double>(keys) + 16);
}

// Longest first, so that no thread is left with a long item at the end.
void sort_by_cost(std::vector<QueryRange>& ranges) {
    std::stable_sort(ranges.begin(), ranges.end(),
                     [](const QueryRange& a, const QueryRange& b) { return a.cost > b.cost; });
}

std::vector<QueryRange> query_ranges(const AttentionCall& call, std::size_t chunk) {
    std::vector<QueryRange> ranges;
    ranges.reserve(call.sequences);
    for (std::size_t s = 0; s < call.sequences; ++s) {
        AttentionItem item = sequence_of(call, s);
        for (; item.first < item.queries; item.first = item.last) {
            item.last = std::min(item.first + chunk, item.queries);
            ranges.push_back({item, cost_of(item.last - item.first, item.keys)});
        }
    }
    sort_by_cost(ranges);
    return ranges;
}

// Below this cost per thread, waking a thread takes longer than its work.
constexpr double kMinThreadCost = 4000;

// Either one thread or all: see parallel.h.
int threads_for(std::size_t items, double cost) {
    return items == 1 || cost < 2 * kMinThreadCost ? 1 : parallel_threads();
}

// Call run(i, scratch) for each item; threads fetch the next item dynamically.
template <class Run>
void for_each_item(const AttentionKernel& kernel, int threads, std::size_t items, std::size_t bytes, const Run& run) {
    std::atomic<std::size_t> next{0};
    std::atomic<bool> out_of_memory{false};
    parallel(threads, [&](int, int) {
        std::byte* memory = thread_scratch().reserve(bytes);
        if (!memory) {
            out_of_memory = true;
            return;
        }
        if (kernel.enter) kernel.enter();
        for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < items;) run(i, memory);
        if (kernel.leave) kernel.leave();
    });
    if (out_of_memory) throw std::bad_alloc();
}

// The number of tiles that backward keeps per block of a sequence's queries.
std::size_t tiles_of(const AttentionItem& item) {
    const std::size_t queries = std::min(item.queries, kGradientBlock);
    const std::size_t keys = item.keys <= kKeptKeys ? item.keys : 1;
    const auto count = [](std::size_t n) { return (n + kGradientTile - 1) / kGradientTile; };
    return count(queries) * count(keys);
}

}  // namespace

void attention(const AttentionCall& call) {
    const AttentionKernel kernel = kernel_of(call.dtype);
    const auto threads = static_cast<std::size_t>(parallel_threads());
    std::vector<QueryRange> ranges = query_ranges(call, kAttentionChunk);
    if (threads > 1 && ranges.size() * call.heads < 4 * threads) ranges = query_ranges(call, kAttentionTiles);
    const std::size_t items = ranges.size() * call.heads;
    if (items == 0) return;
    double cost = 0;
    for (const QueryRange& range : ranges) cost += range.cost * static_cast<double>(call.heads);
    for_each_item(kernel, threads_for(items, cost), items, kernel.scratch_bytes(call.dim),
                  [&](std::size_t i, std::byte* memory) {
                      AttentionItem item = ranges[i / call.heads].item;
                      item.head = i % call.heads;
                      kernel.run(call, item, memory);
                  });
}

void attention_backward(const AttentionBackwardCall& call) {
    const AttentionKernel kernel = kernel_of(call.forward.dtype);
    const std::size_t heads = call.forward.heads;
    std::vector<QueryRange> sequences;
    sequences.reserve(call.forward.sequences);
    std::size_t longest = 0, tiles = 0;
    double cost = 0;
    for (std::size_t s = 0; s < call.forward.sequences; ++s) {
        const AttentionItem item = sequence_of(call.forward, s);
        tiles = std::max(tiles, tiles_of(item));
        if (item.queries > kGradientBlock) longest = std::max(longest, item.keys);
        // Backward computes five matmuls, forward two.
        sequences.push_back({item, 2.5 * cost_of(item.queries, item.keys)});
        cost += sequences.back().cost * static_cast<double>(heads);
    }
    // The bias gradient is summed over sequences in order, on one thread per head.
    const bool by_head = call.dbias != nullptr;
    if (!by_head) sort_by_cost(sequences);
    const std::size_t items = by_head ? heads : heads * sequences.size();
    if (items == 0) return;
    for_each_item(kernel, threads_for(items, cost), items, kernel.gradient_bytes(call.forward.dim, longest, tiles),
                  [&](std::size_t i, std::byte* memory) {
                      const std::size_t first = by_head ? 0 : i / heads, last = by_head ? sequences.size() : first + 1;
                      for (std::size_t s = first; s < last; ++s) {
                          AttentionItem item = sequences[s].item;
                          item.head = i % heads;
                          kernel.gradient(call, item, memory);
                      }
                  });
}

}  // namespace fastbert
