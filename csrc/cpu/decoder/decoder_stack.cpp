#include "cpu/decoder/decoder_stack.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/decoder/cached_attention.h"
#include "cpu/gemm/quantize.h"
#include "cpu/rowwise/rowwise.h"
#include "cpu/runtime/arena.h"
#include "cpu/runtime/parallel.h"

namespace fastbert {
namespace {

constexpr std::size_t round_up(std::size_t x) { return (x + 63) / 64 * 64; }

// The intermediate activations of a step, in the calling thread's arena.
struct Buffers {
    std::byte *projections, *context, *normed, *attended, *inner;
    std::int8_t* integers;
    float *scales, *attention;
    int threads;

    Buffers(const DecoderStack& stack, const DecoderStep& step) : threads(parallel_threads()) {
        const LayerWeights& weights = stack.layers[0].weights;
        const std::size_t width = weights.attention_output->columns, size = size_of(step.dtype), rows = step.rows;
        std::size_t inner_width = 0;
        for (const StackLayer& layer : stack.layers)
            inner_width = std::max(inner_width, layer.weights.intermediate->columns);
        const std::size_t scratch = cached_attention_scratch(stack.heads, width / stack.heads);
        const std::size_t bytes[] = {rows * 3 * width * size,
                                     rows * width * size,
                                     rows * width * size,
                                     rows * width * size,
                                     rows * inner_width * size,
                                     rows * std::max(width, inner_width),
                                     rows * sizeof(float),
                                     static_cast<std::size_t>(threads) * scratch * sizeof(float)};
        std::size_t total = 0;
        for (const std::size_t part : bytes) total += round_up(part);
        std::byte* memory = arena(total);
        std::size_t index = 0;
        const auto next = [&] {
            std::byte* part = memory;
            memory += round_up(bytes[index++]);
            return part;
        };
        projections = next();
        context = next();
        normed = next();
        attended = next();
        inner = next();
        integers = reinterpret_cast<std::int8_t*>(next());
        scales = reinterpret_cast<float*>(next());
        attention = reinterpret_cast<float*>(next());
    }
};

// Rows of activations of the step's dtype.
struct Rows {
    const void* data;
    std::size_t stride;
};

class Step {
public:
    Step(const DecoderStack& stack, const DecoderStep& step)
        : stack_(stack), step_(step), width_(stack.layers[0].weights.attention_output->columns), buffers_(stack, step) {}

    void run() {
        Rows x{step_.x, step_.x_stride};
        for (std::size_t i = 0; i < stack_.layers.size(); ++i) {
            stack_.pre_norm ? pre_norm_layer(i, x) : post_norm_layer(i, x);
            x = {step_.y, width_};
        }
        const FusedNorm& final_norm = stack_.final_norm;
        if (!final_norm.weight) return;
        norm(x, final_norm.weight, final_norm.bias, final_norm.eps, buffers_.normed);
        std::memcpy(step_.y, buffers_.normed, step_.rows * width_ * size_of(step_.dtype));
    }

private:
    void pre_norm_layer(std::size_t index, const Rows& x) {
        const StackLayer& layer = stack_.layers[index];
        const LayerVectors& vectors = layer.vectors;
        norm(x, vectors.attention_norm, vectors.attention_norm_bias, layer.attention_eps, buffers_.normed);
        attend(index, {buffers_.normed, width_});
        GemmCall output = into(buffers_.attended, width_, vectors.attention_output);
        add_residual(output, x);
        multiply({buffers_.context, width_}, *layer.weights.attention_output, output);

        const Rows attended{buffers_.attended, width_};
        norm(attended, vectors.output_norm, vectors.output_norm_bias, layer.output_eps, buffers_.normed);
        widen(layer, {buffers_.normed, width_});
        GemmCall narrowed = into(step_.y, width_, vectors.output);
        add_residual(narrowed, attended);
        multiply({buffers_.inner, layer.weights.intermediate->columns}, *layer.weights.output, narrowed);
    }

    void post_norm_layer(std::size_t index, const Rows& x) {
        const StackLayer& layer = stack_.layers[index];
        const LayerVectors& vectors = layer.vectors;
        attend(index, x);
        GemmCall output = into(buffers_.attended, width_, vectors.attention_output);
        add_residual(output, x);
        output.norm = {vectors.attention_norm, vectors.attention_norm_bias, layer.attention_eps};
        multiply({buffers_.context, width_}, *layer.weights.attention_output, output);

        const Rows attended{buffers_.attended, width_};
        widen(layer, attended);
        GemmCall narrowed = into(step_.y, width_, vectors.output);
        add_residual(narrowed, attended);
        narrowed.norm = {vectors.output_norm, vectors.output_norm_bias, layer.output_eps};
        multiply({buffers_.inner, layer.weights.intermediate->columns}, *layer.weights.output, narrowed);
    }

    // Project x to queries, keys and values, cache the latter, and write the attention of the queries to the context.
    void attend(std::size_t index, const Rows& x) {
        const StackLayer& layer = stack_.layers[index];
        multiply(x, *layer.weights.projections, into(buffers_.projections, 3 * width_, layer.vectors.projections));
        const std::size_t bytes = width_ * size_of(step_.dtype);
        for (std::size_t row = 0; row < step_.rows; ++row) {
            const std::byte* projected = buffers_.projections + 3 * row * bytes;
            const std::size_t offset = (row * step_.slots + step_.slot) * bytes;
            std::memcpy(static_cast<std::byte*>(step_.keys[index]) + offset, projected + bytes, bytes);
            std::memcpy(static_cast<std::byte*>(step_.values[index]) + offset, projected + 2 * bytes, bytes);
        }
        CachedAttentionCall call;
        call.q = buffers_.projections;
        call.q_stride = 3 * width_;
        call.keys = step_.keys[index];
        call.values = step_.values[index];
        call.dtype = step_.dtype;
        call.rows = step_.rows;
        call.slots = step_.slots;
        call.heads = stack_.heads;
        call.dim = width_ / stack_.heads;
        call.starts = step_.starts;
        call.end = step_.slot + 1;
        call.scale = 1.0F / std::sqrt(static_cast<float>(call.dim));
        call.out = buffers_.context;
        cached_attention(call, buffers_.attention, buffers_.threads);
    }

    void widen(const StackLayer& layer, const Rows& x) {
        const PrepackedWeight& weight = *layer.weights.intermediate;
        GemmCall call = into(buffers_.inner, weight.columns, layer.vectors.intermediate);
        call.epilogue.activation = stack_.activation;
        multiply(x, weight, call);
    }

    void norm(const Rows& x, const float* weight, const float* bias, float eps, void* y) const {
        LayerNormCall call;
        call.rows = step_.rows;
        call.width = width_;
        call.dtype = step_.dtype;
        call.x = {x.data, static_cast<std::ptrdiff_t>(x.stride)};
        call.norm = {{weight, Dtype::fp32}, {bias, Dtype::fp32}, eps};
        call.y = y;
        layer_norm(call);
    }

    GemmCall into(void* out, std::size_t stride, const float* bias) const {
        GemmCall call;
        call.epilogue.bias = bias;
        call.epilogue.out = out;
        call.epilogue.out_stride = stride;
        call.epilogue.dtype = step_.dtype;
        call.weight_in_memory = true;
        return call;
    }

    void add_residual(GemmCall& call, const Rows& residual) const {
        call.epilogue.residual = residual.data;
        call.epilogue.residual_stride = residual.stride;
        call.epilogue.residual_dtype = step_.dtype;
    }

    // Multiply x by a weight; int8 weights first quantize the rows. `call` holds all other arguments.
    void multiply(const Rows& x, const PrepackedWeight& weight, GemmCall call) const {
        call.x = x.data;
        call.x_stride = x.stride;
        call.x_dtype = step_.dtype;
        call.rows = step_.rows;
        call.weight = &weight;
        if (weight.element == Element::int8) {
            quantize({x.data, step_.dtype, x.stride, step_.rows, weight.depth, buffers_.integers, buffers_.scales});
            call.x = buffers_.integers;
            call.x_stride = weight.depth;
            call.epilogue.row_scales = buffers_.scales;
        }
        gemm(call);
    }

    const DecoderStack& stack_;
    const DecoderStep& step_;
    std::size_t width_;
    Buffers buffers_;
};

}  // namespace

void decoder_step(const DecoderStack& stack, const DecoderStep& step) {
    if (step.rows == 0) return;
    Step(stack, step).run();
    release_large_arena();
}

}  // namespace fastbert
