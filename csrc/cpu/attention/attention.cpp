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

// What a call prepares for all of its items, in the memory of the thread that calls.
Scratch& call_scratch() {
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

// The keys that a range of queries attends to, at most.
std::size_t visible_keys(const AttentionCall& call, std::size_t queries, std::size_t keys) {
    return call.window < keys ? std::min(keys, queries + 2 * call.window) : keys;
}

std::vector<QueryRange> query_ranges(const AttentionCall& call, std::size_t chunk) {
    std::vector<QueryRange> ranges;
    ranges.reserve(call.sequences);
    for (std::size_t s = 0; s < call.sequences; ++s) {
        AttentionItem item = sequence_of(call, s);
        for (; item.first < item.queries; item.first = item.last) {
            item.last = std::min(item.first + chunk, item.queries);
            const std::size_t queries = item.last - item.first;
            ranges.push_back({item, cost_of(queries, visible_keys(call, queries, item.keys))});
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
std::size_t tiles_of(const AttentionCall& call, const AttentionItem& item) {
    const std::size_t queries = std::min(item.queries, kGradientBlock);
    std::size_t visible = item.keys;
    // Tiles begin at a multiple of KeepBits::kKeys.
    if (call.window < item.keys)
        visible = std::min(visible, kGradientBlock + 2 * call.window + KeepBits::kKeys + kGradientTile);
    const std::size_t keys = visible <= kKeptKeys ? visible : 1;
    const auto count = [](std::size_t n) { return (n + kGradientTile - 1) / kGradientTile; };
    return count(queries) * count(keys);
}

std::size_t longest_of(const AttentionCall& call) {
    std::size_t longest = 0;
    for (std::size_t s = 0; s < call.sequences; ++s) {
        const AttentionItem item = sequence_of(call, s);
        longest = std::max({longest, item.queries, item.keys});
    }
    return longest;
}

// Hands out aligned parts of one allocation; without memory it only measures.
class Parts {
  public:
    explicit Parts(std::byte* memory) : memory_(memory) {}

    template <class T>
    T* take(std::size_t count) {
        std::byte* part = memory_ ? memory_ + used_ : nullptr;
        used_ += (count * sizeof(T) + 63) / 64 * 64;
        return reinterpret_cast<T*>(part);
    }
    std::size_t used() const { return used_; }

  private:
    std::byte* memory_;
    std::size_t used_ = 0;
};

// Columns are read up to a tile, a group of keys and a vector beyond the distances that are visible.
constexpr std::ptrdiff_t kPadding = 192, kRun = 16;

// The arrays of PositionColumns and of a backward call, for the distances that the call's sequences have.
struct CallTables {
    std::int32_t *of_keys, *of_queries;
    PositionColumns::Run *runs_of_keys, *runs_of_queries;
    std::byte *keys, *queries;
    float *key_rows = nullptr, *query_rows = nullptr;
    float *reversed_bias = nullptr, *reversed_gradient = nullptr, *key_columns = nullptr, *query_columns = nullptr;

    CallTables(Parts& parts, const AttentionCall& call, std::size_t distances, std::size_t packed_bytes,
               std::size_t row_floats, std::size_t gradient_floats, const AttentionBackwardCall* backward) {
        const std::size_t entries = call.relative.any() ? distances + 2 * static_cast<std::size_t>(kPadding) : 0;
        of_keys = parts.take<std::int32_t>(entries);
        of_queries = parts.take<std::int32_t>(entries);
        runs_of_keys = parts.take<PositionColumns::Run>(entries);
        runs_of_queries = parts.take<PositionColumns::Run>(entries);
        keys = parts.take<std::byte>(call.relative.keys.data ? call.heads * packed_bytes : 0);
        queries = parts.take<std::byte>(call.relative.queries.data ? call.heads * packed_bytes : 0);
        if (!backward) return;
        const std::size_t rows = call.heads * row_floats, gradients = call.heads * gradient_floats;
        key_rows = parts.take<float>(call.relative.keys.data ? rows : 0);
        query_rows = parts.take<float>(call.relative.queries.data ? rows : 0);
        key_columns = parts.take<float>(backward->dposition_keys ? gradients : 0);
        query_columns = parts.take<float>(backward->dposition_queries ? gradients : 0);
        const std::size_t biases = call.distance_bias.values ? call.heads * call.distance_bias.columns() : 0;
        reversed_bias = parts.take<float>(biases);
        reversed_gradient = parts.take<float>(backward->ddistance_bias ? biases : 0);
    }
};

void find_runs(const std::int32_t* columns, std::ptrdiff_t entries, PositionColumns::Run* runs) {
    for (std::ptrdiff_t i = 0; i < entries; ++i) {
        bool steps = i + kRun <= entries, stays = steps;
        for (std::ptrdiff_t k = 1; k < kRun && (steps || stays); ++k) {
            steps = steps && columns[i + k] == columns[i] + k;
            stays = stays && columns[i + k] == columns[i];
        }
        using enum PositionColumns::Run;
        runs[i] = steps ? consecutive : stays ? constant : other;
    }
}

// The rows of relative positions that a call needs: the lowest, and their number.
struct TableRows {
    std::ptrdiff_t lowest = 0, length = 0;
    std::size_t count = 0;

    explicit TableRows(const AttentionCall& call) {
        if (!call.relative.any()) return;
        std::size_t farthest = std::max<std::size_t>(longest_of(call), 1);
        if (call.window != kNoWindow) farthest = std::min(farthest, call.window + 1);
        length = static_cast<std::ptrdiff_t>(farthest);
        const std::int32_t* middle = call.relative.buckets + (call.relative.length - 1);
        const auto [low, high] = std::minmax_element(middle - (length - 1), middle + length);
        lowest = *low;
        count = static_cast<std::size_t>(*high - *low) + 1;
    }
    std::size_t distances() const { return length ? static_cast<std::size_t>(2 * length - 1) : 0; }
};

// Fill the columns of `call`, and of `backward` if there is one, whose forward call it is; false if out of memory.
bool prepare_positions(AttentionCall& call, AttentionBackwardCall* backward, const AttentionKernel& kernel) {
    const TableRows rows(call);
    if (!rows.count && !(backward && call.distance_bias.values)) return true;
    const std::size_t packed_bytes = (kernel.table_bytes(call.dim, rows.count) + 63) / 64 * 64;
    const std::size_t padded = (rows.count + 31) / 32 * 32;
    const std::size_t row_floats = padded * kTableStride, gradient_floats = padded * ((call.dim + 15) / 16 * 16);
    Parts sizing(nullptr);
    CallTables(sizing, call, rows.distances(), packed_bytes, row_floats, gradient_floats, backward);
    std::byte* memory = call_scratch().reserve(sizing.used());
    if (!memory) return false;
    Parts parts(memory);
    const CallTables tables(parts, call, rows.distances(), packed_bytes, row_floats, gradient_floats, backward);
    PositionColumns& columns = call.columns;
    if (rows.count) {
        const std::int32_t* middle = call.relative.buckets + (call.relative.length - 1);
        const std::ptrdiff_t entries = 2 * rows.length - 1 + 2 * kPadding;
        const auto highest = static_cast<std::int32_t>(rows.lowest + static_cast<std::ptrdiff_t>(rows.count) - 1);
        columns.monotone = true;
        for (std::ptrdiff_t i = 0; i < entries; ++i) {
            const std::ptrdiff_t distance = std::clamp(i - kPadding - (rows.length - 1), 1 - rows.length, rows.length - 1);
            tables.of_keys[i] = highest - middle[distance];
            tables.of_queries[i] = middle[-distance] - static_cast<std::int32_t>(rows.lowest);
            if (i && tables.of_keys[i] < tables.of_keys[i - 1]) columns.monotone = false;
        }
        find_runs(tables.of_keys, entries, tables.runs_of_keys);
        find_runs(tables.of_queries, entries, tables.runs_of_queries);
        columns.count = rows.count;
        columns.length = rows.length;
        columns.of_keys = tables.of_keys + kPadding;
        columns.of_queries = tables.of_queries + kPadding;
        columns.runs_of_keys = tables.runs_of_keys + kPadding;
        columns.runs_of_queries = tables.runs_of_queries + kPadding;
        columns.keys = call.relative.keys.data ? tables.keys : nullptr;
        columns.queries = call.relative.queries.data ? tables.queries : nullptr;
        columns.packed_bytes = packed_bytes;
        columns.key_rows = tables.key_rows;
        columns.query_rows = tables.query_rows;
        columns.head_floats = row_floats;
        const auto lowest = static_cast<std::size_t>(rows.lowest);
        parallel_ranges(call.heads, 1, [&](std::size_t first, std::size_t last) {
            for (std::size_t head = first; head < last; ++head) {
                const HeadRows &keys = call.relative.keys, &queries = call.relative.queries;
                if (keys.data) {
                    const std::size_t top = lowest + rows.count - 1;
                    kernel.pack_table(call, keys, head, top, rows.count, true, tables.keys + head * packed_bytes);
                    if (backward)
                        kernel.load_table(call, keys, head, top, rows.count, true, tables.key_rows + head * row_floats);
                }
                if (queries.data) {
                    kernel.pack_table(call, queries, head, lowest, rows.count, false,
                                      tables.queries + head * packed_bytes);
                    if (backward)
                        kernel.load_table(call, queries, head, lowest, rows.count, false,
                                          tables.query_rows + head * row_floats);
                }
            }
        });
    }
    if (!backward) return true;
    const DistanceBias& bias = call.distance_bias;
    for (std::size_t head = 0; bias.values && head < call.heads; ++head) {
        const float* values = bias.values + head * bias.columns();
        std::reverse_copy(values, values + bias.columns(), tables.reversed_bias + head * bias.columns());
    }
    backward->reversed_bias = bias.values ? tables.reversed_bias : nullptr;
    const auto zeroed = [](float* values, std::size_t count) {
        std::fill_n(values, count, 0.0F);
        return values;
    };
    if (backward->ddistance_bias)
        backward->reversed_gradient = zeroed(tables.reversed_gradient, call.heads * bias.columns());
    if (backward->dposition_keys) backward->key_columns = zeroed(tables.key_columns, call.heads * gradient_floats);
    if (backward->dposition_queries)
        backward->query_columns = zeroed(tables.query_columns, call.heads * gradient_floats);
    return true;
}

// Write the gradients of tables from those of their columns.
void finish_positions(const AttentionBackwardCall& call) {
    const AttentionCall& forward = call.forward;
    const std::size_t columns = forward.distance_bias.columns();
    for (std::size_t head = 0; call.ddistance_bias && head < forward.heads; ++head) {
        const float* gradient = call.reversed_gradient + head * columns;
        std::reverse_copy(gradient, gradient + columns, call.ddistance_bias + head * columns);
    }
    const TableRows rows(forward);
    const std::size_t stride = (forward.dim + 15) / 16 * 16, head_floats = (rows.count + 31) / 32 * 32 * stride;
    const auto write = [&](const float* sums, float* gradient, bool reversed) {
        for (std::size_t column = 0; column < rows.count; ++column) {
            const std::size_t row = static_cast<std::size_t>(rows.lowest) + (reversed ? rows.count - 1 - column : column);
            for (std::size_t head = 0; head < forward.heads; ++head) {
                const float* from = sums + head * head_floats + column * stride;
                float* to = gradient + (row * forward.heads + head) * forward.dim;
                for (std::size_t d = 0; d < forward.dim; ++d) to[d] = from[d] * forward.scale;
            }
        }
    };
    if (call.dposition_keys) write(call.key_columns, call.dposition_keys, true);
    if (call.dposition_queries) write(call.query_columns, call.dposition_queries, false);
}

}  // namespace

void attention(const AttentionCall& arguments) {
    AttentionCall call = arguments;
    const AttentionKernel kernel = kernel_of(call.dtype);
    const auto threads = static_cast<std::size_t>(parallel_threads());
    // With a window the blocks of keys begin with the range of queries, which must therefore not depend on the batch.
    const std::size_t chunk = call.window == kNoWindow ? kAttentionChunk : kAttentionTiles;
    std::vector<QueryRange> ranges = query_ranges(call, chunk);
    if (threads > 1 && ranges.size() * call.heads < 4 * threads) ranges = query_ranges(call, kAttentionTiles);
    const std::size_t items = ranges.size() * call.heads;
    if (items == 0) return;
    if (!prepare_positions(call, nullptr, kernel)) throw std::bad_alloc();
    double cost = 0;
    for (const QueryRange& range : ranges) cost += range.cost * static_cast<double>(call.heads);
    for_each_item(kernel, threads_for(items, cost), items, kernel.scratch_bytes(call),
                  [&](std::size_t i, std::byte* memory) {
                      AttentionItem item = ranges[i / call.heads].item;
                      item.head = i % call.heads;
                      kernel.run(call, item, memory);
                  });
}

bool attention_items(const AttentionCall& call, std::size_t first, std::size_t last) {
    const AttentionKernel kernel = kernel_of(call.dtype);
    std::byte* memory = thread_scratch().reserve(kernel.scratch_bytes(call));
    if (!memory) return false;
    if (kernel.enter) kernel.enter();
    for (std::size_t i = first; i < last; ++i) {
        AttentionItem item = sequence_of(call, i % call.sequences);
        item.head = i / call.sequences;
        for (; item.first < item.queries; item.first = item.last) {
            item.last = std::min(item.first + kAttentionTiles, item.queries);
            kernel.run(call, item, memory);
        }
    }
    if (kernel.leave) kernel.leave();
    return true;
}

void attention_backward(const AttentionBackwardCall& arguments) {
    AttentionBackwardCall call = arguments;
    const AttentionCall& forward = call.forward;
    const AttentionKernel kernel = kernel_of(forward.dtype);
    const std::size_t heads = forward.heads;
    std::vector<QueryRange> sequences;
    sequences.reserve(forward.sequences);
    std::size_t longest = 0, tiles = 0;
    double cost = 0;
    for (std::size_t s = 0; s < forward.sequences; ++s) {
        const AttentionItem item = sequence_of(forward, s);
        tiles = std::max(tiles, tiles_of(forward, item));
        if (accumulates_keys(forward, item)) longest = std::max(longest, item.keys);
        // Backward computes five matmuls, forward two.
        const std::size_t keys = visible_keys(forward, std::min(item.queries, kGradientBlock), item.keys);
        sequences.push_back({item, 2.5 * cost_of(item.queries, keys)});
        cost += sequences.back().cost * static_cast<double>(heads);
    }
    // Gradients of tables are summed over sequences in order, on one thread per head.
    const bool by_head = call.by_head();
    if (!by_head) sort_by_cost(sequences);
    const std::size_t items = by_head ? heads : heads * sequences.size();
    if (items == 0) return;
    if (!prepare_positions(call.forward, &call, kernel)) throw std::bad_alloc();
    for_each_item(kernel, threads_for(items, cost), items, kernel.gradient_bytes(forward, longest, tiles),
                  [&](std::size_t i, std::byte* memory) {
                      const std::size_t first = by_head ? 0 : i / heads, last = by_head ? sequences.size() : first + 1;
                      for (std::size_t s = first; s < last; ++s) {
                          AttentionItem item = sequences[s].item;
                          item.head = i % heads;
                          kernel.gradient(call, item, memory);
                      }
                  });
    finish_positions(call);
}

}  // namespace fastbert
