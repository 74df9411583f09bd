#include "cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "cpu/level.h"
#include "cpu/parallel.h"
#include "cpu/target.h"

namespace fastbert {
namespace {

AttentionKernel kernel_of(Dtype dtype) {
#if FASTBERT_X86
    if (dtype == Dtype::bf16 && level() >= Level::amx) return attention_amx();
    if (dtype == Dtype::bf16 && level_features().avx512_bf16) return attention_avx512_bf16();
    if (level() >= Level::avx512) return attention_avx512(dtype);
    if (level() >= Level::avx2) return attention_avx2(dtype);
#endif
    return attention_portable(dtype);
}

// Memory of one thread, kept for its next call: fresh pages would cost more than a short sequence.
class Scratch {
  public:
    // Null where there is no memory.
    std::byte* of_size(std::size_t bytes) {
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

// A run of a sequence's queries, for all heads.
struct Part {
    AttentionItem item;
    double cost;
};

// The longest first, so that no thread is left alone with a long one at the end.
std::vector<Part> parts_of(const AttentionCall& call, std::size_t chunk) {
    std::vector<Part> parts;
    parts.reserve(call.sequences);
    for (std::size_t s = 0; s < call.sequences; ++s) {
        AttentionItem item;
        item.query_token = static_cast<std::size_t>(call.cu_seqlens_q[s]);
        item.queries = static_cast<std::size_t>(call.cu_seqlens_q[s + 1]) - item.query_token;
        item.key_token = static_cast<std::size_t>(call.cu_seqlens_k[s]);
        item.keys = static_cast<std::size_t>(call.cu_seqlens_k[s + 1]) - item.key_token;
        for (; item.first < item.queries; item.first = item.last) {
            item.last = std::min(item.first + chunk, item.queries);
            // Beside its scores a query costs as much as some keys, and so does a key that is laid out.
            const double queries = static_cast<double>(item.last - item.first);
            parts.push_back({item, (queries + 16) * (static_cast<double>(item.keys) + 16)});
        }
    }
    std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.cost > b.cost; });
    return parts;
}

// Below this cost of a thread's share, waking it takes longer than its work.
constexpr double kWorthAThread = 4000;

}  // namespace

void attention(const AttentionCall& call) {
    const AttentionKernel kernel = kernel_of(call.dtype);
    int threads = parallel_threads();
    std::vector<Part> parts = parts_of(call, kAttentionChunk);
    if (threads > 1 && parts.size() * call.heads < 4 * static_cast<std::size_t>(threads))
        parts = parts_of(call, kAttentionTiles);
    const std::size_t items = parts.size() * call.heads;
    if (items == 0) return;
    double cost = 0;
    for (const Part& part : parts) cost += part.cost * static_cast<double>(call.heads);
    // One or all: parallel.h says why.
    if (items == 1 || cost < 2 * kWorthAThread) threads = 1;

    const std::size_t bytes = kernel.scratch_bytes(call.dim);
    std::atomic<std::size_t> next{0};
    std::atomic<bool> starved{false};
    parallel(threads, [&](int, int) {
        static thread_local Scratch scratch;
        std::byte* memory = scratch.of_size(bytes);
        if (!memory) {
            starved = true;
            return;
        }
        if (kernel.enter) kernel.enter();
        for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < items;) {
            AttentionItem item = parts[i / call.heads].item;
            item.head = i % call.heads;
            kernel.run(call, item, memory);
        }
        if (kernel.leave) kernel.leave();
    });
    if (starved) throw std::bad_alloc();
}

}  // namespace fastbert
