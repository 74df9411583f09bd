// Each thread has heads and outputs of its own, and packs all rows of each matmul for itself. Four times per layer a
// thread needs what others have computed, and waits: for the context, the sums behind attention, the activations and the
// sums of the layer. LayerNorm, which needs whole rows, is computed by every thread for itself. While a thread waits, it
// prefetches the weights that it will read next.
#include "cpu/encoder_layer/short_stack.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <optional>

#include "cpu/encoder_layer/selected_queries.h"
#include "cpu/gemm/few_rows.h"
#include "cpu/gemm/kernel_table.h"
#include "cpu/runtime/arena.h"
#include "cpu/runtime/barrier.h"
#include "cpu/runtime/parallel.h"

namespace fastbert {
namespace {

// Tokens up to which packing all rows on every thread takes less time than waiting.
constexpr std::size_t kMostTokens = 64;
// Bytes of a thread's next weight that are prefetched into its L2 cache, and lines of 64 bytes at a time.
constexpr std::size_t kPrefetchBytes = std::size_t{1} << 18, kLinesPerStep = 8, kLinesPerRow = 64;

constexpr std::size_t round_up(std::size_t x, std::size_t step) { return (x + step - 1) / step * step; }
constexpr std::size_t part(std::size_t count, std::size_t index, std::size_t parts) { return count * index / parts; }

// Rows of activations.
struct Rows {
    const std::byte* data;
    Dtype dtype;
    std::size_t stride;

    const std::byte* row(std::size_t index) const { return data + index * stride * size_of(dtype); }
};

// The memory of a call: what all threads share, then that of each thread.
struct Layout {
    std::size_t projections, queries, context, sums, inner;  // shared; the queries are selected ones
    std::size_t normed, selected, norm_row, packed;  // of a thread
    std::size_t tokens_bytes, shared, per_thread;

    Layout(const LayerCall& call, std::span<const StackLayer> layers, bool selects) {
        const LayerWeights& weights = layers[0].weights;
        const std::size_t size = size_of(call.y_dtype), width = weights.attention_output->columns;
        std::size_t inner_width = 0, projections_width = weights.projections->columns;
        for (const StackLayer& layer : layers) inner_width = std::max(inner_width, layer.weights.intermediate->columns);
        std::size_t used = 0;
        const auto take = [&](std::size_t bytes) {
            const std::size_t at = used;
            used += round_up(bytes, 64);
            return at;
        };
        projections = take(call.tokens * projections_width * size);
        queries = take(selects ? call.outputs * round_up(width, kColumns) * size : 0);
        context = take(call.tokens * width * size);
        sums = take(call.tokens * round_up(width, kColumns) * sizeof(float));
        inner = take(call.tokens * inner_width * size);
        shared = used;
        used = 0;
        // Rows behind each of a layer's norms, and the selected ones of the last layer's context and input.
        tokens_bytes = round_up(call.tokens * width * std::max(size, size_of(call.x_dtype)), 64);
        normed = take(2 * tokens_bytes);
        selected = take(2 * tokens_bytes);
        norm_row = take(round_up(width, kColumns) * sizeof(float));
        packed = take(FewRows::bytes(weights.projections->element, call.tokens, std::max(width, inner_width)));
        per_thread = used;
    }
};

struct Shared {
    const LayerCall& call;
    std::span<const StackLayer> layers;
    const SelectedQueries* selected;  // of the last layer; null if all queries are computed
    const Layout layout;
    std::byte* memory;
    Barrier barrier;
    std::atomic<bool> out_of_memory{false};
};

// A range of blocks of a weight.
struct Range {
    std::size_t first, last;
};

class Worker {
public:
    Worker(Shared& shared, int thread, int threads)
        : shared_(shared),
          call_(shared.call),
          thread_(static_cast<std::size_t>(thread)),
          threads_(static_cast<std::size_t>(threads)),
          own_(shared.memory + shared.layout.shared + thread_ * shared.layout.per_thread),
          width_(shared.layers[0].weights.attention_output->columns),
          sums_stride_(round_up(width_, kColumns)),
          rows_(shared.layers[0].weights.projections->element, call_.tokens,
                std::max(width_, inner_width()), own_ + shared.layout.packed) {}

    void run() {
        rows_.enter();
        Rows x{static_cast<const std::byte*>(call_.x), call_.x_dtype, call_.x_stride};
        for (std::size_t i = 0; i < shared_.layers.size(); ++i) x = layer(x, i);
        rows_.leave();
    }

private:
    // Compute a layer of x; return its output, in this thread's memory. The last layer's is in `y`.
    Rows layer(Rows x, std::size_t index) {
        const StackLayer& layer = shared_.layers[index];
        const LayerWeights& weights = layer.weights;
        const LayerVectors& vectors = layer.vectors;
        const bool is_last = index + 1 == shared_.layers.size();
        const Dtype dtype = call_.y_dtype;
        std::size_t count = call_.tokens;

        const SelectedQueries* queries = is_last ? shared_.selected : nullptr;
        project(x, weights, vectors, queries);
        attend(weights, queries);
        wait();

        Rows context{shared_.memory + shared_.layout.context, dtype, width_};
        if (is_last && call_.rows) {
            count = call_.outputs;
            if (!queries) {
                context = selected(context, call_.rows, 0);
            } else if (!queries->slots.empty()) {
                context = selected(context, queries->slots.data(), 0);
            }
            x = selected(x, call_.rows, 1);
        }
        rows_.pack(context.data, dtype, context.stride, count, width_);
        multiply_to_sums(*weights.attention_output, vectors.attention_output, x);
        announce(*weights.intermediate);
        wait();
        const FusedNorm attention_norm{vectors.attention_norm, vectors.attention_norm_bias, layer.attention_eps};
        const Rows attended = normed(attention_norm, count, 0);

        rows_.pack(attended.data, dtype, attended.stride, count, width_);
        Epilogue activation;
        activation.bias = vectors.intermediate;
        activation.activation = call_.activation;
        activation.out = shared_.memory + shared_.layout.inner;
        activation.out_stride = weights.intermediate->columns;
        activation.dtype = dtype;
        const Range blocks = share(*weights.intermediate);
        rows_.multiply(*weights.intermediate, activation, blocks.first, blocks.last);
        announce(*weights.output);
        wait();

        rows_.pack(shared_.memory + shared_.layout.inner, dtype, weights.intermediate->columns, count,
                   weights.intermediate->columns);
        multiply_to_sums(*weights.output, vectors.output, attended);
        if (!is_last) {
            const bool selects = shared_.selected && index + 2 == shared_.layers.size();
            announce_projections(*shared_.layers[index + 1].weights.projections, selects);
        }
        wait();
        const FusedNorm output_norm{vectors.output_norm, vectors.output_norm_bias, layer.output_eps};
        if (!is_last) return normed(output_norm, count, 1);
        const std::size_t first = part(count, thread_, threads_), last = part(count, thread_ + 1, threads_);
        norm_rows(output_norm, first, last, static_cast<std::byte*>(call_.y));
        return x;
    }

    // Keys and values of x, and queries, of the selected tokens alone if given. If the heads divide evenly, a thread
    // computes those of its own heads, and need not wait for others before attention.
    void project(const Rows& x, const LayerWeights& weights, const LayerVectors& vectors,
                 const SelectedQueries* queries) {
        const PrepackedWeight& weight = *weights.projections;
        Epilogue epilogue;
        epilogue.bias = vectors.projections;
        epilogue.dtype = call_.y_dtype;
        std::size_t first_section = 0, first_block = 0;
        if (queries) {
            const Rows rows = selected(x, queries->tokens.data(), 0);
            rows_.pack(rows.data, rows.dtype, rows.stride, call_.outputs, width_);
            epilogue.out = shared_.memory + shared_.layout.queries;
            epilogue.out_stride = round_up(width_, kColumns);
            const Range blocks = has_own_heads() ? blocks_of_heads(0) : share(0, round_up(width_, kColumns) / kColumns);
            rows_.multiply(weight, epilogue, blocks.first, blocks.last);
            first_section = 1;
            first_block = width_ / kColumns;  // of the first key: it may hold queries, too
        }
        rows_.pack(x.data, x.dtype, x.stride, call_.tokens, width_);
        epilogue.out = shared_.memory + shared_.layout.projections;
        epilogue.out_stride = weight.columns;
        if (has_own_heads()) {
            for (std::size_t section = first_section; section < 3; ++section) {
                const Range blocks = blocks_of_heads(section);
                rows_.multiply(weight, epilogue, blocks.first, blocks.last);
            }
        } else {
            const Range blocks = share(first_block, weight.padded_columns / kColumns);
            rows_.multiply(weight, epilogue, blocks.first, blocks.last);
            wait();
        }
    }

    void attend(const LayerWeights& weights, const SelectedQueries* queries) {
        AttentionCall attention = call_.attention;
        const std::size_t heads = attention.heads, dim = attention.dim;
        const std::byte* projections = shared_.memory + shared_.layout.projections;
        announce(*weights.attention_output);
        prefetch(kLinesPerRow);
        const std::size_t size = size_of(call_.y_dtype), stride = weights.projections->columns;
        attention.q = {projections, stride, dim};
        attention.k = {projections + width_ * size, stride, dim};
        attention.v = {projections + 2 * width_ * size, stride, dim};
        attention.dtype = call_.y_dtype;
        attention.cu_seqlens_q = attention.cu_seqlens_k = call_.cu_seqlens;
        attention.sequences = call_.sequences;
        if (queries) {
            attention.q = {shared_.memory + shared_.layout.queries, round_up(width_, kColumns), dim};
            attention.cu_seqlens_q = queries->cu_seqlens.data();
        }
        attention.out = shared_.memory + shared_.layout.context;
        const std::size_t items = heads * call_.sequences;
        rows_.leave();
        if (!attention_items(attention, part(items, thread_, threads_), part(items, thread_ + 1, threads_)))
            shared_.out_of_memory = true;
        rows_.enter();
    }

    // Whether each thread has as many heads, whose outputs are whole blocks.
    bool has_own_heads() const {
        const std::size_t heads = call_.attention.heads, own = heads / threads_ * call_.attention.dim;
        return heads % threads_ == 0 && own % kColumns == 0 && width_ % kColumns == 0;
    }

    // The blocks of this thread's heads: of queries (section 0), keys or values.
    Range blocks_of_heads(std::size_t section) const {
        const std::size_t own = call_.attention.heads / threads_ * call_.attention.dim / kColumns;
        const std::size_t first = section * width_ / kColumns + thread_ * own;
        return {first, first + own};
    }

    // `selects`: of the layer whose queries are selected.
    void announce_projections(const PrepackedWeight& next, bool selects) {
        const std::size_t blocks = selects ? round_up(width_, kColumns) / kColumns : next.padded_columns / kColumns;
        announce(next, has_own_heads() ? blocks_of_heads(0).first : share(0, blocks).first);
    }

    // This thread's outputs of x weight^T + bias + residual, as floats.
    void multiply_to_sums(const PrepackedWeight& weight, const float* bias, const Rows& residual) {
        Epilogue epilogue;
        epilogue.bias = bias;
        epilogue.residual = residual.data;
        epilogue.residual_stride = residual.stride;
        epilogue.residual_dtype = residual.dtype;
        epilogue.out = sums();
        epilogue.out_stride = sums_stride_;
        epilogue.dtype = Dtype::fp32;
        const Range blocks = share(weight);
        rows_.multiply(weight, epilogue, blocks.first, blocks.last);
    }

    // LayerNorm of the sums, in this thread's memory.
    Rows normed(const FusedNorm& norm, std::size_t count, std::size_t slot) {
        std::byte* out = own_ + shared_.layout.normed + slot * shared_.layout.tokens_bytes;
        norm_rows(norm, 0, count, out);
        return {out, call_.y_dtype, width_};
    }

    void norm_rows(const FusedNorm& norm, std::size_t first, std::size_t last, std::byte* out) {
        auto* row = reinterpret_cast<float*>(own_ + shared_.layout.norm_row);
        const RowOperations& operations = row_operations();
        for (std::size_t i = first; i < last; ++i) {
            prefetch(kLinesPerRow);
            std::memcpy(row, sums() + i * sums_stride_, width_ * sizeof(float));
            operations.norm(row, width_, norm, out + i * width_ * size_of(call_.y_dtype), call_.y_dtype);
        }
    }

    // The selected rows, as many as outputs, in this thread's memory.
    Rows selected(const Rows& from, const std::int64_t* rows, std::size_t slot) {
        std::byte* out = own_ + shared_.layout.selected + slot * shared_.layout.tokens_bytes;
        const std::size_t bytes = width_ * size_of(from.dtype);
        for (std::size_t i = 0; i < call_.outputs; ++i)
            std::memcpy(out + i * bytes, from.row(static_cast<std::size_t>(rows[i])), bytes);
        return {out, from.dtype, width_};
    }

    // This thread's part of blocks first..last.
    Range share(std::size_t first, std::size_t last) const {
        const std::size_t blocks = last - first;
        return {first + part(blocks, thread_, threads_), first + part(blocks, thread_ + 1, threads_)};
    }

    Range share(const PrepackedWeight& weight) const { return share(0, weight.padded_columns / kColumns); }

    // Wait for all threads, and meanwhile prefetch this thread's part of the next weight.
    void wait() {
        shared_.barrier.wait(static_cast<int>(threads_), [&] { return prefetch(kLinesPerStep); });
    }

    // Name the weight of the next matmul, whose blocks from `first` on are prefetched while the memory is idle.
    void announce(const PrepackedWeight& next, std::size_t first) {
        ahead_ = next.panel(first * (kColumns / kPanel));
        ahead_end_ = std::min(ahead_ + kPrefetchBytes, next.panel(next.padded_columns / kPanel));
    }

    void announce(const PrepackedWeight& next) { announce(next, share(next).first); }

    // Prefetch some lines of the announced weight; return false after the last.
    bool prefetch(std::size_t lines) {
        for (; lines && ahead_ < ahead_end_; --lines, ahead_ += 64) __builtin_prefetch(ahead_, 0, 2);
        return ahead_ < ahead_end_;
    }

    float* sums() const { return reinterpret_cast<float*>(shared_.memory + shared_.layout.sums); }

    std::size_t inner_width() const {
        std::size_t widest = 0;
        for (const StackLayer& layer : shared_.layers) widest = std::max(widest, layer.weights.intermediate->columns);
        return widest;
    }

    Shared& shared_;
    const LayerCall& call_;
    const std::size_t thread_, threads_;
    std::byte* own_;
    const std::size_t width_, sums_stride_;
    FewRows rows_;
    const std::byte *ahead_ = nullptr, *ahead_end_ = nullptr;
};

}  // namespace

bool is_short_stack(const LayerCall& call, std::span<const StackLayer> layers) {
    // `gemm` splits deeper matmuls. Buffers have room for the tokens; a token that is read twice may make more rows.
    return call.tokens <= kMostTokens && call.outputs <= call.tokens && !call.pre_norm &&
           layers[0].weights.projections->depth <= kMostDepth &&
           std::ranges::none_of(layers, [](const StackLayer& layer) { return layer.weights.intermediate->gated_width; });
}

void short_stack(const LayerCall& call, std::span<const StackLayer> layers) {
    if (call.outputs == 0) return;
    const LayerWeights& weights = layers[0].weights;
    const auto elements = static_cast<double>(weights.projections->columns + weights.attention_output->columns) +
                          2.0 * static_cast<double>(weights.intermediate->columns);
    const double work = elements * static_cast<double>(weights.attention_output->columns);
    const bool serial = work * static_cast<double>(call.tokens) < 4 * kMinParallelWork &&
                        work * static_cast<double>(bytes_of(weights.projections->element)) < 4.0 * kMinParallelBytes;
    const int threads = serial ? 1 : parallel_threads();
    const std::optional<SelectedQueries> selection = select_queries(call);
    const Layout layout(call, layers, selection.has_value());
    std::byte* memory = arena(layout.shared + static_cast<std::size_t>(threads) * layout.per_thread);
    Shared shared{call, layers, selection ? &*selection : nullptr, layout, memory, {}, {}};
    parallel(threads, [&](int thread, int running) { Worker(shared, thread, running).run(); });
    release_large_arena();
    if (shared.out_of_memory) throw std::bad_alloc();
}

}  // namespace fastbert
