#include "cpu/encoder_layer/encoder_layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/runtime/arena.h"
#include "cpu/attention/attention.h"
#include "cpu/gemm/quantize.h"

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

struct Buffers {
    std::byte *projections, *context, *attended, *inner;
    std::byte *selected_context = nullptr, *selected_x = nullptr;  // rows of the selected tokens
    std::int8_t* integers = nullptr;
    float* scales = nullptr;

    Buffers(ScratchLayout& layout, const LayerCall& call, const LayerWeights& weights) {
        const std::size_t size = size_of(call.y_dtype), width = weights.attention_output->columns;
        const std::size_t inner_width = weights.intermediate->columns, chunk = std::min(call.outputs, kChunk);
        projections = layout.allocate(call.tokens * 3 * width * size);
        context = layout.allocate(call.tokens * width * size);
        attended = layout.allocate(call.outputs * width * size);
        inner = layout.allocate(chunk * inner_width * size);
        if (call.rows) {
            selected_context = layout.allocate(call.outputs * width * size);
            selected_x = layout.allocate(call.outputs * width * size_of(call.x_dtype));
        }
        if (weights.projections->element != Element::int8) return;
        const std::size_t longest = std::max(call.tokens, call.outputs);
        integers = reinterpret_cast<std::int8_t*>(layout.allocate(std::max(longest * width, chunk * inner_width)));
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

GemmCall& add_residual_norm(GemmCall& call, const Rows& residual, const float* weight, const float* bias, float eps) {
    call.epilogue.residual = residual.data;
    call.epilogue.residual_stride = residual.stride;
    call.epilogue.residual_dtype = residual.dtype;
    call.norm = {weight, bias, eps};
    return call;
}

void run_attention(const LayerCall& call, const Buffers& buffers, std::size_t width) {
    AttentionCall attention_call;
    const std::size_t size = size_of(call.y_dtype), dim = width / call.heads;
    attention_call.q = {buffers.projections, 3 * width, dim};
    attention_call.k = {buffers.projections + width * size, 3 * width, dim};
    attention_call.v = {buffers.projections + 2 * width * size, 3 * width, dim};
    attention_call.dtype = call.y_dtype;
    attention_call.heads = call.heads;
    attention_call.dim = dim;
    attention_call.cu_seqlens_q = attention_call.cu_seqlens_k = call.cu_seqlens;
    attention_call.sequences = call.sequences;
    attention_call.causal = call.causal;
    attention_call.scale = 1.0F / std::sqrt(static_cast<float>(dim));
    attention_call.out = buffers.context;
    attention(attention_call);
}

// Gather the selected rows into `memory`; return `from` if all are selected.
Rows select_rows(const Rows& from, const LayerCall& call, std::size_t width, std::byte* memory) {
    if (!call.rows) return from;
    const std::size_t size = size_of(from.dtype);
    for (std::size_t i = 0; i < call.outputs; ++i) {
        const std::byte* row = static_cast<const std::byte*>(from.data) + call.rows[i] * from.stride * size;
        std::memcpy(memory + i * width * size, row, width * size);
    }
    return {memory, from.dtype, width, call.outputs};
}

}  // namespace

void encoder_layer(const LayerCall& call, const LayerWeights& weights, const LayerVectors& vectors) {
    if (call.outputs == 0) return;
    ScratchLayout sizing(nullptr);
    Buffers(sizing, call, weights);
    ScratchLayout layout(arena(sizing.used()));
    const Buffers buffers(layout, call, weights);
    const std::size_t width = weights.attention_output->columns, inner_width = weights.intermediate->columns;
    const Dtype dtype = call.y_dtype;

    const Rows x{call.x, call.x_dtype, call.x_stride, call.tokens};
    multiply(x, *weights.projections, gemm_into(buffers.projections, 3 * width, dtype, vectors.projections), buffers);
    run_attention(call, buffers, width);

    const Rows context =
        select_rows({buffers.context, dtype, width, call.tokens}, call, width, buffers.selected_context);
    const Rows residual = select_rows(x, call, width, buffers.selected_x);
    GemmCall output = gemm_into(buffers.attended, width, dtype, vectors.attention_output);
    add_residual_norm(output, residual, vectors.attention_norm, vectors.attention_norm_bias, call.eps);
    multiply(context, *weights.attention_output, output, buffers);

    const Rows attended{buffers.attended, dtype, width, call.outputs};
    for (std::size_t first = 0; first < call.outputs; first += kChunk) {
        const Rows rows = attended.from(first, std::min(kChunk, call.outputs - first));
        GemmCall intermediate = gemm_into(buffers.inner, inner_width, dtype, vectors.intermediate);
        intermediate.epilogue.activation = call.tanh ? Epilogue::Activation::gelu_tanh : Epilogue::Activation::gelu;
        multiply(rows, *weights.intermediate, intermediate, buffers);

        auto* out = static_cast<std::byte*>(call.y) + first * width * size_of(dtype);
        GemmCall output_call = gemm_into(out, width, dtype, vectors.output);
        add_residual_norm(output_call, rows, vectors.output_norm, vectors.output_norm_bias, call.eps);
        multiply({buffers.inner, dtype, inner_width, rows.count}, *weights.output, output_call, buffers);
    }
    release_large_arena();
}

}  // namespace fastbert
