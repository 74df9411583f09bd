// Tasks are pairs of a layer and a group of neighbouring sequences, in the order of layers. Each thread takes the next
// task; the same group's task of the layer before was taken as many tasks ago as there are groups, so that it is almost
// always done. Weights are read from the last-level cache once per group, all of one layer at about the same time.
#include "cpu/encoder_layer/grouped_stack.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "cpu/gemm/kernel_table.h"
#include "cpu/runtime/parallel.h"

namespace fastbert {
namespace {

// Tokens of a group at most, unless it is one longer sequence: its activations should fit into L2. And the fewest for
// which each group reads all weights: with fewer tokens per thread, threads share matmuls.
constexpr std::size_t kMostTokens = 320, kLeastTokens = 128;
// Tokens of the largest group relative to a thread's even share, at most: its layers follow one another. And tokens of
// the longest sequence: a longer one reads its weights in two chunks, in which shared matmuls are as fast.
constexpr double kMostUneven = 1.1;
constexpr std::size_t kLongest = 384;
// The time of a group apart from that of its rows, in rows.
constexpr std::size_t kGroupRows = 16;

constexpr std::size_t round_up(std::size_t x, std::size_t step) { return (x + step - 1) / step * step; }

// Sequences first.. and their tokens first_token.., with offsets of their own.
struct Group {
    std::size_t first = 0, sequences = 0, first_token = 0, tokens = 0;
    std::vector<std::int32_t> cu_seqlens;
};

// Divide the sequences into groups of at most `most` tokens, or of one longer sequence, with the fewest rows in total
// where each group's are rounded up to a multiple of `step`.
std::vector<Group> groups_of(const LayerCall& call, std::size_t most, std::size_t step) {
    const auto offset = [&](std::size_t sequence) { return static_cast<std::size_t>(call.cu_seqlens[sequence]); };
    const std::size_t count = call.sequences;
    std::vector<std::size_t> rows(count + 1, std::numeric_limits<std::size_t>::max()), begins(count + 1);
    rows[0] = 0;
    for (std::size_t end = 1; end <= count; ++end) {
        for (std::size_t begin = end; begin-- > 0;) {
            const std::size_t tokens = offset(end) - offset(begin);
            // Empty sequences are limited, too: their number must not make this quadratic.
            if (std::max(tokens, end - begin) > most && begin + 1 < end) break;
            const std::size_t sum = rows[begin] + round_up(tokens, step) + kGroupRows;
            if (sum < rows[end]) {
                rows[end] = sum;
                begins[end] = begin;
            }
        }
    }
    std::vector<Group> groups;
    for (std::size_t end = count; end > 0; end = begins[end]) {
        Group group{begins[end], end - begins[end], offset(begins[end]), offset(end) - offset(begins[end]), {}};
        if (!group.tokens) continue;
        for (std::size_t i = 0; i <= group.sequences; ++i)
            group.cu_seqlens.push_back(call.cu_seqlens[group.first + i] - call.cu_seqlens[group.first]);
        groups.push_back(std::move(group));
    }
    std::ranges::reverse(groups);
    return groups;
}

// A group's share of a layer's call.
LayerCall share_of(const LayerCall& call, const Group& group, std::size_t width) {
    LayerCall share = call;
    share.x = static_cast<const std::byte*>(call.x) + group.first_token * call.x_stride * size_of(call.x_dtype);
    share.y = static_cast<std::byte*>(call.y) + group.first_token * width * size_of(call.y_dtype);
    share.tokens = share.outputs = group.tokens;
    share.cu_seqlens = group.cu_seqlens.data();
    share.sequences = group.sequences;
    if (call.attention.rotary.positions) share.attention.rotary.positions += group.first_token;
    return share;
}

}  // namespace

bool grouped_stack(std::span<const LayerCall> calls, std::span<const StackLayer> layers) {
    const LayerCall& call = calls[0];
    // Tables of relative positions are packed once per call of attention.
    if (call.attention.relative.any()) return false;
    const auto threads = static_cast<std::size_t>(parallel_threads());
    const std::size_t share = call.tokens / threads;
    if (threads > 1 && share < kLeastTokens) return false;
    const LayerWeights& first = layers[0].weights;
    const std::size_t step = micro_kernel(first.intermediate->element).row_step;
    const std::vector<Group> groups = groups_of(call, std::min(kMostTokens, share), step);
    const Group& largest = *std::ranges::max_element(groups, {}, &Group::tokens);
    const double limit = std::min(kMostUneven * static_cast<double>(share), static_cast<double>(kLongest));
    if (static_cast<double>(largest.tokens) > limit) return false;

    // A layer of which only some tokens are read is computed by all threads together. Those of no tokens may be null.
    const LayerCall& last = calls.back();
    const std::size_t grouped = calls.size() - (last.rows || last.outputs < last.tokens ? 1 : 0);
    const std::size_t width = first.attention_output->columns, tasks = grouped * groups.size();
    const auto done = std::make_unique<std::atomic<std::uint32_t>[]>(groups.size());  // layers of each group
    std::atomic<std::size_t> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error;  // none may leave a parallel region
    parallel(static_cast<int>(threads), [&](int, int) {
        for (std::size_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
            const std::size_t layer = task / groups.size(), index = task % groups.size();
            std::atomic<std::uint32_t>& layers_done = done[index];
            for (std::uint32_t seen; (seen = layers_done.load(std::memory_order_acquire)) < layer;)
                layers_done.wait(seen, std::memory_order_acquire);
            if (!failed.load(std::memory_order_relaxed)) {
                try {
                    const StackLayer& of_layer = layers[layer];
                    encoder_layer(share_of(calls[layer], groups[index], width), of_layer.weights, of_layer.vectors);
                } catch (...) {
                    if (!failed.exchange(true)) error = std::current_exception();
                }
            }
            layers_done.store(static_cast<std::uint32_t>(layer + 1), std::memory_order_release);
            layers_done.notify_all();
        }
    });
    if (error) std::rethrow_exception(error);
    if (grouped < calls.size()) encoder_layer(last, layers.back().weights, layers.back().vectors);
    return true;
}

}  // namespace fastbert
