#include "cpu/rowwise/rowwise.h"

#include <algorithm>

#include "cpu/runtime/cpu_capability.h"
#include "cpu/runtime/parallel.h"
#include "cpu/rowwise/scratch.h"
#include "cpu/rowwise/forward_table.h"
#include "cpu/simd/target.h"

namespace fastbert {
namespace {

const RowKernels& kernels() {
#if FASTBERT_X86
    if (cpu_capability() >= CpuCapability::avx512) return row_kernels_avx512();
    if (cpu_capability() >= CpuCapability::avx2) return row_kernels_avx2();
#endif
    return row_kernels_portable();
}

// Call kernel(first, last, scratch) on parts of 0..rows, one per thread, each with `scratch` floats of its own.
template <class Kernel>
void run(std::size_t rows, std::size_t width, std::size_t scratch, const Kernel& kernel) {
    if (rows == 0) return;
    const auto threads = static_cast<std::size_t>(threads_for(rows, width));
    const std::size_t each = scratch_stride(scratch);
    const AlignedFloats floats(each * threads);
    if (threads == 1) return kernel(std::size_t{0}, rows, floats.data());
    parallel(static_cast<int>(threads), [&](int thread, int running) {
        const auto index_of_thread = static_cast<std::size_t>(thread), thread_count = static_cast<std::size_t>(running);
        const std::size_t first =
            rows / thread_count * index_of_thread + std::min(index_of_thread, rows % thread_count);
        const std::size_t last = first + rows / thread_count + (index_of_thread < rows % thread_count ? 1 : 0);
        if (first < last) kernel(first, last, floats.data() + each * index_of_thread);
    });
}

template <class Call>
void run(RowKernels::Kernel<Call> kernel, const Call& call, std::size_t rows, std::size_t width, std::size_t scratch) {
    run(rows, width, scratch,
        [&](std::size_t first, std::size_t last, float* floats) { kernel(call, first, last, floats); });
}

std::optional<BadId> check_ids(const EmbeddingCall& call) {
    for (std::size_t i = 0; i < call.tables.size(); ++i) {
        const Table& table = call.tables[i];
        const std::size_t token = find_bad_id(table.ids, call.tokens, table.rows);
        if (token < call.tokens) return BadId{i, token, table.ids[token]};
    }
    return std::nullopt;
}

}  // namespace

std::size_t find_bad_id(const Ids& ids, std::size_t count, std::int64_t below) {
    for (std::size_t token = 0; token < count; ++token) {
        const std::int64_t id = ids[token];
        if (id < 0 || id >= below) return token;
    }
    return count;
}

void RowDropout::mask(std::size_t row, std::size_t width, float* out) const {
    const auto last = static_cast<std::int64_t>(sequences) - 1;
    const std::int64_t which = std::clamp<std::int64_t>(sequence[row], 0, last);
    token_dropout_row(out, width, static_cast<std::uint32_t>(position[row]), site,
                      static_cast<std::uint64_t>(keys[which]), threshold, keep);
}

void layer_norm(const LayerNormCall& arguments) {
    LayerNormCall call = arguments;
    const Fp32Vector weight(call.norm.weight, call.width), bias(call.norm.bias, call.width);
    run(kernels().layer_norm[index(call.dtype)], call, call.rows, call.width, 0);
}

void dropout_add_layer_norm(const DropoutAddNormCall& arguments) {
    DropoutAddNormCall call = arguments;
    const Fp32Vector x_bias(call.x_bias, call.width);
    const Fp32Vector weight(call.norm.weight, call.width), bias(call.norm.bias, call.width);
    const std::size_t scratch = call.dropout.keys ? call.width : 0;
    run(kernels().dropout_add_layer_norm[index(call.dtype)], call, call.rows, call.width, scratch);
}

void bias_gelu(const GeluCall& arguments) {
    GeluCall call = arguments;
    const Fp32Vector bias(call.bias, call.width);
    const auto kernel = kernels().bias_gelu[index(call.dtype)];
    const bool flat = !call.bias.data && (call.rows == 1 || call.x.stride == static_cast<std::ptrdiff_t>(call.width));
    if (!flat) return run(kernel, call, call.rows, call.width, 0);
    // Elementwise: chunks of a fixed length are faster than rows of one element, or a single row.
    const std::size_t total = call.rows * call.width;
    call.width = std::min<std::size_t>(total, 4096);
    call.x.stride = static_cast<std::ptrdiff_t>(call.width);
    if (!total) return;
    const std::size_t whole = total / call.width, rest = total % call.width;
    run(kernel, call, whole, call.width, 0);
    if (!rest) return;
    const std::size_t done = (total - rest) * size_of(call.dtype);
    call.x.data = static_cast<const std::byte*>(call.x.data) + done;
    call.y = static_cast<std::byte*>(call.y) + done;
    call.width = rest;
    run(kernel, call, 1, rest, 0);
}

void gated_activation(const GatedCall& arguments) {
    GatedCall call = arguments;
    const Fp32Vector bias(call.bias, 2 * call.width);
    run(kernels().gated[index(call.dtype)], call, call.rows, call.width, 0);
}

void gelu_layer_norm(const GeluNormCall& arguments) {
    GeluNormCall call = arguments;
    GeluCall& gelu = call.gelu;
    const Fp32Vector x_bias(gelu.bias, gelu.width);
    const Fp32Vector weight(call.norm.weight, gelu.width), bias(call.norm.bias, gelu.width);
    run(kernels().gelu_layer_norm[index(gelu.dtype)], call, gelu.rows, gelu.width, gelu.width);
}

std::optional<BadId> embedding_layer_norm(const EmbeddingCall& arguments) {
    EmbeddingCall call = arguments;
    if (const std::optional<BadId> bad = check_ids(call)) return bad;
    const Fp32Vector weight(call.norm.weight, call.width), bias(call.norm.bias, call.width);
    const auto kernel = kernels().embedding_layer_norm[index(call.dtype)][index(call.out_dtype)];
    run(kernel, call, call.tokens, call.width, call.dropout.keys ? 2 * call.width : call.width);
    return std::nullopt;
}

void softmax(const SoftmaxCall& call) {
    const std::size_t rows = call.sizes[0] * call.sizes[1] * call.sizes[2];
    const std::size_t keys = call.sizes[3];
    run(kernels().softmax[index(call.dtype)], call, rows, keys, keys + softmax_bits_floats(call));
}

void dropout_rows(const DropoutCall& call) {
    run(kernels().drop[index(call.dtype)], call, call.rows, call.width, call.width);
}

}  // namespace fastbert
