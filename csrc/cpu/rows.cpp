#include "cpu/rows.h"

#include <algorithm>
#include <memory>

#include "cpu/level.h"
#include "cpu/parallel.h"
#include "cpu/rows_table.h"
#include "cpu/target.h"

namespace fastbert {
namespace {

// What a thread must have to do: some microseconds, as long as it takes to wake one.
constexpr std::size_t kGrain = 32768;

const RowKernels& kernels() {
#if FASTBERT_X86
    if (level() >= Level::avx512) return row_kernels_avx512();
    if (level() >= Level::avx2) return row_kernels_avx2();
#endif
    return row_kernels_portable();
}

std::size_t index(Dtype dtype) { return static_cast<std::size_t>(dtype); }

// Floats in memory that begins at a multiple of 64 bytes.
class Floats {
public:
    explicit Floats(std::size_t count)
        : memory_(std::make_unique_for_overwrite<float[]>(count + kLine)), begin_(memory_.get()) {
        void* begin = memory_.get();
        std::size_t space = (count + kLine) * sizeof(float);
        begin_ = static_cast<float*>(std::align(kLine * sizeof(float), count * sizeof(float), begin, space));
    }
    float* data() const { return begin_; }

    static constexpr std::size_t kLine = 16;

private:
    std::unique_ptr<float[]> memory_;
    float* begin_;
};

// A vector as kernels take it: fp32, as it stands or converted.
class Widened {
public:
    Widened(Vector& vector, std::size_t width) {
        if (!vector.data || vector.dtype == Dtype::fp32) return;
        values_ = std::make_unique_for_overwrite<float[]>(width);
        const auto* from = static_cast<const BFloat16*>(vector.data);
        for (std::size_t i = 0; i < width; ++i) values_[i] = to_float(from[i]);
        vector = {values_.get(), Dtype::fp32};
    }

private:
    std::unique_ptr<float[]> values_;
};

// kernel(first, last, scratch) over parts of 0..rows, one a thread, each with `scratch` floats of its own.
template <class Kernel>
void run(std::size_t rows, std::size_t width, std::size_t scratch, const Kernel& kernel) {
    if (rows == 0) return;
    const std::size_t grain = std::max<std::size_t>(1, kGrain / width);
    // One or all: parallel.h says why.
    const auto threads = static_cast<std::size_t>(rows < 2 * grain ? 1 : parallel_threads());
    // A line more, so that threads do not write to the same one.
    const std::size_t each = scratch ? (scratch / Floats::kLine + 2) * Floats::kLine : 0;
    const Floats floats(each * threads);
    if (threads == 1) return kernel(std::size_t{0}, rows, floats.data());
    parallel(static_cast<int>(threads), [&](int thread, int running) {
        const auto mine = static_cast<std::size_t>(thread), all = static_cast<std::size_t>(running);
        const std::size_t first = rows / all * mine + std::min(mine, rows % all);
        const std::size_t last = first + rows / all + (mine < rows % all ? 1 : 0);
        if (first < last) kernel(first, last, floats.data() + each * mine);
    });
}

template <class Call>
void run(RowKernels::Kernel<Call> kernel, const Call& call, std::size_t rows, std::size_t width, std::size_t scratch) {
    run(rows, width, scratch,
        [&](std::size_t first, std::size_t last, float* floats) { kernel(call, first, last, floats); });
}

std::optional<BadId> find_bad_id(const EmbeddingCall& call) {
    for (std::size_t i = 0; i < call.tables.size(); ++i) {
        const Table& table = call.tables[i];
        for (std::size_t token = 0; token < call.tokens; ++token) {
            const std::int64_t id = table.id(token);
            if (id < 0 || id >= table.rows) return BadId{i, token, id};
        }
    }
    return std::nullopt;
}

}  // namespace

void layer_norm(const LayerNormCall& given) {
    LayerNormCall call = given;
    const Widened weight(call.norm.weight, call.width), bias(call.norm.bias, call.width);
    run(kernels().layer_norm[index(call.dtype)], call, call.rows, call.width, 0);
}

void sum_layer_norm(const SumNormCall& given) {
    SumNormCall call = given;
    const Widened x_bias(call.x_bias, call.width);
    const Widened weight(call.norm.weight, call.width), bias(call.norm.bias, call.width);
    run(kernels().sum_layer_norm[index(call.dtype)], call, call.rows, call.width, 0);
}

void bias_gelu(const GeluCall& given) {
    GeluCall call = given;
    const Widened bias(call.bias, call.width);
    const auto kernel = kernels().bias_gelu[index(call.dtype)];
    const bool flat = !call.bias.data && (call.rows == 1 || call.x.stride == static_cast<std::ptrdiff_t>(call.width));
    if (!flat) return run(kernel, call, call.rows, call.width, 0);
    // Neither rows nor columns mean anything: pieces of one length serve better than rows of one element, or one row.
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

void gelu_layer_norm(const GeluNormCall& given) {
    GeluNormCall call = given;
    GeluCall& gelu = call.gelu;
    const Widened x_bias(gelu.bias, gelu.width);
    const Widened weight(call.norm.weight, gelu.width), bias(call.norm.bias, gelu.width);
    run(kernels().gelu_layer_norm[index(gelu.dtype)], call, gelu.rows, gelu.width, gelu.width);
}

std::optional<BadId> embedding_layer_norm(const EmbeddingCall& given) {
    EmbeddingCall call = given;
    if (const std::optional<BadId> bad = find_bad_id(call)) return bad;
    const Widened weight(call.norm.weight, call.width), bias(call.norm.bias, call.width);
    const auto kernel = kernels().embedding_layer_norm[index(call.dtype)][index(call.out_dtype)];
    run(kernel, call, call.tokens, call.width, call.width);
    return std::nullopt;
}

void softmax(const SoftmaxCall& call) {
    const std::size_t rows = call.sizes[0] * call.sizes[1] * call.sizes[2];
    run(kernels().softmax[index(call.dtype)], call, rows, call.sizes[3], call.sizes[3]);
}

}  // namespace fastbert
