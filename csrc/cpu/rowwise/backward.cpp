#include "cpu/rowwise/backward.h"

#include <algorithm>
#include <cstddef>

#include "cpu/runtime/cpu_capability.h"
#include "cpu/runtime/parallel.h"
#include "cpu/rowwise/backward_table.h"
#include "cpu/rowwise/scratch.h"
#include "cpu/simd/target.h"

namespace fastbert {
namespace {

const RowGradientKernels& kernels() {
#if FASTBERT_X86
    if (cpu_capability() >= CpuCapability::avx512) return row_gradient_kernels_avx512();
    if (cpu_capability() >= CpuCapability::avx2) return row_gradient_kernels_avx2();
#endif
    return row_gradient_kernels_portable();
}

// Rows per block of partial sums: enough blocks for many threads, few enough to be reduced quickly.
std::size_t rows_of_block(std::size_t rows) {
    constexpr std::size_t kMinRows = 64, kMaxBlocks = 256;
    return std::max(kMinRows, (rows + kMaxBlocks - 1) / kMaxBlocks);
}

// sums[i] = partial[i] + partial[stride + i] + ..., over all blocks in order.
void reduce_blocks(const float* partial, std::size_t stride, std::size_t blocks, std::size_t count, float* sums) {
    parallel_ranges(count, std::size_t{65536} / blocks, [&](std::size_t first, std::size_t last) {
        std::copy(partial + first, partial + last, sums + first);
        for (std::size_t block = 1; block < blocks; ++block) {
            const float* row = partial + block * stride;
            for (std::size_t i = first; i < last; ++i) sums[i] += row[i];
        }
    });
}

// Call kernel(first, last, scratch, sums) block by block over all rows, then reduce sums (count,) over the blocks.
template <class Kernel>
void run(std::size_t rows, std::size_t width, std::size_t scratch, std::size_t count, float* sums,
         const Kernel& kernel) {
    const std::size_t each_block = rows_of_block(rows), blocks = (rows + each_block - 1) / each_block;
    if (blocks == 0) return void(std::fill_n(sums, count, 0.0F));
    const auto threads = static_cast<std::size_t>(blocks == 1 ? 1 : threads_for(rows, width));
    const std::size_t each = scratch_stride(scratch), stride = scratch_stride(count);
    const AlignedFloats floats(each * threads), partial(stride * blocks);
    const auto work = [&](std::size_t thread, std::size_t running) {
        for (std::size_t block = blocks * thread / running; block < blocks * (thread + 1) / running; ++block) {
            float* block_sums = partial.data() + stride * block;
            std::fill_n(block_sums, count, 0.0F);
            const std::size_t first = block * each_block, last = std::min(rows, first + each_block);
            kernel(first, last, floats.data() + each * thread, block_sums);
        }
    };
    if (threads == 1) {
        work(0, 1);
    } else {
        parallel(static_cast<int>(threads), [&](int thread, int running) {
            work(static_cast<std::size_t>(thread), static_cast<std::size_t>(running));
        });
    }
    reduce_blocks(partial.data(), stride, blocks, count, sums);
}

template <class Call>
void run(RowGradientKernels::Kernel<Call> kernel, const Call& call, std::size_t rows, std::size_t width,
         std::size_t scratch, std::size_t count) {
    run(rows, width, scratch, count, call.sums,
        [&](std::size_t first, std::size_t last, float* floats, float* sums) {
            kernel(call, first, last, floats, sums);
        });
}

}  // namespace

void layer_norm_backward(const LayerNormBackwardCall& arguments) {
    LayerNormBackwardCall call = arguments;
    const Fp32Vector weight(call.weight, call.width);
    const std::size_t scratch = call.dropout.keys ? call.width : 0;
    run(kernels().norm[index(call.dtype)], call, call.rows, call.width, scratch, call.vectors() * call.width);
}

void bias_gelu_backward(const GeluBackwardCall& arguments) {
    GeluBackwardCall call = arguments;
    const GeluCall& forward = call.forward;
    const Fp32Vector bias(call.forward.bias, forward.width);
    run(kernels().gelu[index(forward.dtype)], call, forward.rows, forward.width, 0, call.sums ? forward.width : 0);
}

void gated_activation_backward(const GatedBackwardCall& arguments) {
    GatedBackwardCall call = arguments;
    const GatedCall& forward = call.forward;
    const Fp32Vector bias(call.forward.bias, 2 * forward.width);
    const std::size_t count = call.sums ? 2 * forward.width : 0;
    run(kernels().gated[index(forward.dtype)], call, forward.rows, 2 * forward.width, 0, count);
}

void gelu_layer_norm_backward(const GeluNormBackwardCall& arguments) {
    GeluNormBackwardCall call = arguments;
    const std::size_t width = call.gelu.width;
    const Fp32Vector weight(call.weight, width), bias(call.gelu.bias, width);
    run(kernels().gelu_norm[index(call.gelu.dtype)], call, call.gelu.rows, width, 2 * width, call.vectors() * width);
}

void embedding_layer_norm_backward(const EmbeddingNormBackwardCall& arguments) {
    EmbeddingNormBackwardCall call = arguments;
    const Fp32Vector weight(call.weight, call.width);
    const auto kernel = kernels().embedding_norm[index(call.dtype)][index(call.grad_dtype)];
    run(kernel, call, call.tokens, call.width, (call.dropout.keys ? 2 : 1) * call.width, 2 * call.width);
}

void softmax_backward(const SoftmaxBackwardCall& call) {
    const SoftmaxCall& forward = call.forward;
    const std::size_t rows = forward.sizes[0] * forward.sizes[1] * forward.sizes[2], keys = forward.sizes[3];
    const std::size_t scratch = 2 * keys + softmax_bits_floats(forward);
    run(rows, keys, scratch, 0, nullptr, [&](std::size_t first, std::size_t last, float* floats, float*) {
        kernels().softmax[index(forward.dtype)](call, first, last, floats);
    });
}

}  // namespace fastbert
