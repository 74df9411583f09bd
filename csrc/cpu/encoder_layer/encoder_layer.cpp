#include "cpu/encoder_layer/encoder_layer.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "cpu/runtime/arena.h"
#include "cpu/attention/attention.h"
#include "cpu/encoder_layer/grouped_stack.h"
#include "cpu/encoder_layer/selected_queries.h"
#include "cpu/encoder_layer/short_stack.h"
#include "cpu/gemm/kernel_table.h"
#include "cpu/gemm/quantize.h"
#include "cpu/rowwise/rowwise.h"
#include "cpu/runtime/parallel.h"

namespace fastbert {
namespace {

// Tokens per chunk of the feed-forward network: its activations stay in the last-level cache, and memory does not grow
// with the number of tokens. A multiple of every micro-kernel's rows.
constexpr std::size_t kChunk = 1344;

// A bump allocator with 64-byte alignment; without memory it only measures the size.
class ScratchLayout {
public:
    explicit ScratchLayout(std::byte* memory) : memory_(memory) {}

    std::byte* allocate(std::size_t bytes) {
        std::byte* part = memory_ ? memory_ + used_ : nullptr;
        used_ += (bytes + 63) / 64 * 64;
        return part;
    }

    std::size_t used() const { return used_; }

private:
    std::byte* memory_;
    std::size_t used_ = 0;
};

// Outputs of a network's first half, gates multiplied.
std::size_t inner_width_of(const LayerWeights& weights) {
    return weights.intermediate->gated_width ? weights.intermediate->gated_width : weights.intermediate->columns;
}

struct Buffers {
    std::byte *projections, *context, *attended, *inner;
    std::byte* normed = nullptr;  // what a norm in front of attention or of the network returns
    std::byte *selected_context = nullptr, *selected_x = nullptr;  // rows of the selected tokens
    std::byte *queries = nullptr, *query_source = nullptr;         // the selected queries, and their rows of x
    std::int8_t* integers = nullptr;
    float* scales = nullptr;

    // `selects`: only queries of the selected tokens are computed.
    Buffers(ScratchLayout& layout, const LayerCall& call, const LayerWeights& weights, bool selects) {
        const std::size_t size = size_of(call.y_dtype), width = weights.attention_output->columns;
        const std::size_t inner_width = inner_width_of(weights), chunk = std::min(call.outputs, kChunk);
        const std::size_t heads_width = weights.attention_output->depth;
        projections = layout.allocate(call.tokens * weights.projections->columns * size);
        context = layout.allocate((selects ? call.outputs : call.tokens) * heads_width * size);
        if (call.pre_norm) {
            const std::size_t element = std::max(size, size_of(call.x_dtype));
            normed = layout.allocate(std::max(call.tokens, chunk) * width * element);
        }
        attended = layout.allocate(call.outputs * width * size);
        inner = layout.allocate(chunk * inner_width * size);
        if (call.rows) {
            selected_context = layout.allocate(call.outputs * heads_width * size);
            selected_x = layout.allocate(call.outputs * width * size_of(call.x_dtype));
        }
        if (selects) {
            queries = layout.allocate(call.outputs * heads_width * size);
            query_source = layout.allocate(call.outputs * width * size_of(call.x_dtype));
        }
        if (weights.projections->element != Element::int8) return;
        const std::size_t longest = std::max(call.tokens, call.outputs);
        integers = reinterpret_cast<std::int8_t*>(
            layout.allocate(std::max(longest * std::max(width, heads_width), chunk * inner_width)));
        scales = reinterpret_cast<float*>(layout.allocate(longest * sizeof(float)));
    }
};

// Rows of activations.
struct Rows {
    const void* data;
    Dtype dtype;
    std::size_t stride, count;

    Rows from(std::size_t first, std::size_t rows) const {
        return {static_cast<const std::byte*>(data) + first * stride * size_of(dtype), dtype, stride, rows};
    }
};

// Multiply x by a weight; int8 weights first quantize the rows. `call` holds all other arguments.
void multiply(const Rows& x, const PrepackedWeight& weight, GemmCall call, const Buffers& buffers) {
    call.x = x.data;
    call.x_stride = x.stride;
    call.x_dtype = x.dtype;
    call.rows = x.count;
    call.weight = &weight;
    if (weight.element == Element::int8) {
        quantize({x.data, x.dtype, x.stride, x.count, weight.depth, buffers.integers, buffers.scales});
        call.x = buffers.integers;
        call.x_stride = weight.depth;
        call.epilogue.row_scales = buffers.scales;
    }
    gemm(call);
}

GemmCall gemm_into(void* out, std::size_t stride, Dtype dtype, const float* bias) {
    GemmCall call;
    call.epilogue.bias = bias;
    call.epilogue.out = out;
    call.epilogue.out_stride = stride;
    call.epilogue.dtype = dtype;
    return call;
}

void add_residual(GemmCall& call, const Rows& residual) {
    call.epilogue.residual = residual.data;
    call.epilogue.residual_stride = residual.stride;
    call.epilogue.residual_dtype = residual.dtype;
}

// The norm of x in the buffer for it; x itself without a norm in front.
Rows norm_rows(const Rows& x, const LayerCall& call, const float* weight, const float* bias, float eps,
               std::size_t width, const Buffers& buffers) {
    if (!call.pre_norm || !weight) return x;
    LayerNormCall norm;
    norm.rows = x.count;
    norm.width = width;
    norm.dtype = x.dtype;
    norm.x = {x.data, static_cast<std::ptrdiff_t>(x.stride)};
    norm.norm = {{weight, Dtype::fp32}, {bias, Dtype::fp32}, eps, call.rms};
    norm.y = buffers.normed;
    layer_norm(norm);
    return {buffers.normed, x.dtype, width, x.count};
}

// Gather `count` rows of a width into `memory`; return `from` without `rows`.
Rows gather(const Rows& from, const std::int64_t* rows, std::size_t count, std::size_t width, std::byte* memory) {
    if (!rows) return from;
    const std::size_t size = size_of(from.dtype);
    for (std::size_t i = 0; i < count; ++i) {
        const std::size_t first = static_cast<std::size_t>(rows[i]) * from.stride * size;
        std::memcpy(memory + i * width * size, static_cast<const std::byte*>(from.data) + first, width * size);
    }
    return {memory, from.dtype, width, count};
}

// Project x to keys and values, and to queries; only to queries of `selected` if given.
void project(const Rows& x, const LayerWeights& weights, const LayerVectors& vectors, Dtype dtype,
             const SelectedQueries* selected, const Buffers& buffers) {
    const PrepackedWeight& weight = *weights.projections;
    const std::size_t queries = weights.attention_output->depth;
    GemmCall all = gemm_into(buffers.projections, weight.columns, dtype, vectors.projections);
    if (selected) {
        // The block of the first key may hold queries, too.
        all.first_column = queries / kColumns * kColumns;
        all.columns = weight.columns - all.first_column;
    }
    multiply(x, weight, all, buffers);
    if (!selected) return;
    GemmCall some = gemm_into(buffers.queries, queries, dtype, vectors.projections);
    some.columns = queries;
    const std::vector<std::int64_t>& tokens = selected->tokens;
    multiply(gather(x, tokens.data(), tokens.size(), weight.depth, buffers.query_source), weight, some, buffers);
}

void run_attention(const LayerCall& call, const LayerWeights& weights, const SelectedQueries* selected,
                   const Buffers& buffers) {
    AttentionCall attention_call = call.attention;
    const std::size_t size = size_of(call.y_dtype), dim = attention_call.dim;
    const std::size_t stride = weights.projections->columns, queries = attention_call.heads * dim;
    const std::size_t keys = queries / attention_call.group;
    attention_call.q = {buffers.projections, stride, dim};
    attention_call.k = {buffers.projections + queries * size, stride, dim};
    attention_call.v = {buffers.projections + (queries + keys) * size, stride, dim};
    attention_call.dtype = call.y_dtype;
    attention_call.cu_seqlens_q = attention_call.cu_seqlens_k = call.cu_seqlens;
    attention_call.sequences = call.sequences;
    if (selected) {
        attention_call.q = {buffers.queries, queries, dim};
        attention_call.cu_seqlens_q = selected->cu_seqlens.data();
    }
    attention_call.out = buffers.context;
    attention(attention_call);
}

void run_layer(const LayerCall& call, const LayerWeights& weights, const LayerVectors& vectors) {
    const std::optional<SelectedQueries> selection = select_queries(call);
    const SelectedQueries* selected = selection ? &*selection : nullptr;
    ScratchLayout sizing(nullptr);
    Buffers(sizing, call, weights, selected != nullptr);
    ScratchLayout layout(arena(sizing.used()));
    const Buffers buffers(layout, call, weights, selected != nullptr);
    const std::size_t width = weights.attention_output->columns, inner_width = inner_width_of(weights);
    const std::size_t heads_width = weights.attention_output->depth;
    const Dtype dtype = call.y_dtype;

    const Rows x{call.x, call.x_dtype, call.x_stride, call.tokens};
    const Rows source =
        norm_rows(x, call, vectors.attention_norm, vectors.attention_norm_bias, call.attention_eps, width, buffers);
    project(source, weights, vectors, dtype, selected, buffers);
    run_attention(call, weights, selected, buffers);

    // The rows of the context that are outputs: of selected queries all, in the outputs' order.
    const std::int64_t* context_rows =
        !selected ? call.rows : selected->slots.empty() ? nullptr : selected->slots.data();
    const Rows context = gather({buffers.context, dtype, heads_width, selected ? call.outputs : call.tokens},
                                context_rows, call.outputs, heads_width, buffers.selected_context);
    const Rows residual = gather(x, call.rows, call.outputs, width, buffers.selected_x);
    GemmCall output = gemm_into(buffers.attended, width, dtype, vectors.attention_output);
    add_residual(output, residual);
    if (!call.pre_norm) output.norm = {vectors.attention_norm, vectors.attention_norm_bias, call.attention_eps};
    multiply(context, *weights.attention_output, output, buffers);

    const Rows attended{buffers.attended, dtype, width, call.outputs};
    for (std::size_t first = 0; first < call.outputs; first += kChunk) {
        const Rows rows = attended.from(first, std::min(kChunk, call.outputs - first));
        const Rows network =
            norm_rows(rows, call, vectors.output_norm, vectors.output_norm_bias, call.output_eps, width, buffers);
        GemmCall intermediate = gemm_into(buffers.inner, inner_width, dtype, vectors.intermediate);
        intermediate.epilogue.activation = call.activation;
        intermediate.epilogue.gate = call.gate;
        intermediate.epilogue.gated_width = weights.intermediate->gated_width;
        multiply(network, *weights.intermediate, intermediate, buffers);

        auto* out = static_cast<std::byte*>(call.y) + first * width * size_of(dtype);
        GemmCall output_call = gemm_into(out, width, dtype, vectors.output);
        add_residual(output_call, rows);
        if (!call.pre_norm) output_call.norm = {vectors.output_norm, vectors.output_norm_bias, call.output_eps};
        multiply({buffers.inner, dtype, inner_width, rows.count}, *weights.output, output_call, buffers);
    }
    release_large_arena();
}

// The calls of a stack's layers, each for all tokens.
std::vector<LayerCall> calls_of(const LayerCall& call, std::span<const StackLayer> layers, void* states) {
    const std::size_t width = layers[0].weights.attention_output->columns;
    const std::size_t state = call.tokens * width * size_of(call.y_dtype);
    std::vector<LayerCall> calls;
    LayerCall next = call;
    for (std::size_t i = 0; i < layers.size(); ++i) {
        const bool is_last = i + 1 == layers.size();
        next.rows = is_last ? call.rows : nullptr;
        next.outputs = is_last ? call.outputs : call.tokens;
        next.y = is_last ? call.y : static_cast<std::byte*>(states) + (i % 2) * state;
        next.attention_eps = layers[i].attention_eps;
        next.output_eps = layers[i].output_eps;
        calls.push_back(next);
        next.x = next.y;
        next.x_dtype = call.y_dtype;
        next.x_stride = width;
    }
    return calls;
}

void run_stack(const LayerCall& call, std::span<const StackLayer> layers, void* states) {
    const std::vector<LayerCall> calls = calls_of(call, layers, states);
    if (grouped_stack(calls, layers)) return;
    for (std::size_t i = 0; i < layers.size(); ++i)
        if (calls[i].outputs) run_layer(calls[i], layers[i].weights, layers[i].vectors);
}

// The threads of a session: all if the network's first matmul, mostly the largest, is divided among them.
int threads_of(const LayerCall& call, const LayerWeights& weights) {
    const PrepackedWeight& weight = *weights.intermediate;
    const double work =
        static_cast<double>(call.tokens) * static_cast<double>(weight.columns) * static_cast<double>(weight.depth);
    return work < kMinParallelWork ? 1 : parallel_threads();
}

}  // namespace

void encoder_layer(const LayerCall& call, const LayerWeights& weights, const LayerVectors& vectors) {
    if (call.outputs == 0) return;
    parallel_session(threads_of(call, weights), [&] { run_layer(call, weights, vectors); });
}

void encoder_stack(const LayerCall& call, std::span<const StackLayer> layers, void* states) {
    if (is_short_stack(call, layers)) return short_stack(call, layers);
    if (call.tokens) parallel_session(threads_of(call, layers[0].weights), [&] { run_stack(call, layers, states); });
}

}  // namespace fastbert
