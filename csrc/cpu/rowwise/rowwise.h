// Operations on rows: LayerNorm alone and behind a sum, a GELU or embeddings; GELU; softmax.
//
// Every row is computed by itself, in an order that only its width decides, so its bits depend neither on the rows
// around it nor on how they are cut between threads. Sums and statistics are fp32. Strides count elements from one row
// to the next, and results are contiguous. Nothing outside the rows is read or written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "cpu/simd/bfloat16.h"

namespace fastbert {

// (width,), contiguous; a null pointer where there is none.
struct Vector {
    const void* data = nullptr;
    Dtype dtype = Dtype::fp32;
};

struct RowsView {
    const void* data = nullptr;
    std::ptrdiff_t stride = 0;
};

enum class Gelu { erf, tanh };

// Ids, one a token.
struct Ids {
    const void* data = nullptr;  // int64 where `wide`, else int32
    std::ptrdiff_t stride = 0;
    bool wide = true;

    std::int64_t operator[](std::size_t token) const {
        const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(token) * stride;
        return wide ? static_cast<const std::int64_t*>(data)[at] : static_cast<const std::int32_t*>(data)[at];
    }
};

// Dropout of token vectors, one a row: dropout.h says what decides.
struct RowDropout {
    const std::int64_t* keys = nullptr;  // (sequences,); null where nothing is dropped
    std::size_t sequences = 0;
    Ids sequence, position;  // of each row
    std::uint32_t site = 0, threshold = 0;
    float keep = 1.0F;

    // The mask of a row: `width` floats, 0 or `keep`. Whatever the ids say, a key of those there are is read.
    void mask(std::size_t row, std::size_t width, float* out) const;
};

// Dropout of attention probabilities.
struct ScoresDropout {
    const std::int64_t* keys = nullptr;  // (sequences,); null where nothing is dropped
    std::uint32_t site = 0, threshold = 0;
    float keep = 1.0F;

    // The mask of the row of a sequence, a head and a query.
    void mask(const std::size_t (&index)[3], std::size_t keys, float* out) const;
};

// What LayerNorm does behind the statistics: y = (x - mean) / sqrt(variance + eps) * weight + bias.
struct RowNorm {
    Vector weight, bias;
    float eps = 0.0F;
};

// y = LayerNorm(x). Here and below mean and rstd (rows,), the statistics, may be null.
struct LayerNormCall {
    std::size_t rows = 0, width = 0;
    Dtype dtype = Dtype::fp32;  // of x and y
    RowsView x;
    RowNorm norm;
    void* y = nullptr;
    float* mean = nullptr;
    float* rstd = nullptr;
};

// total = dropout(x + x_bias) + residual, rounded once; y = LayerNorm(total). `total` and `residual` may be null.
struct SumNormCall {
    std::size_t rows = 0, width = 0;
    Dtype dtype = Dtype::fp32;  // of x, residual, total and y
    RowsView x, residual;
    Vector x_bias;
    RowNorm norm;
    void* total = nullptr;
    void* y = nullptr;
    RowDropout dropout;
    float* mean = nullptr;
    float* rstd = nullptr;
};

// y = GELU(x + bias).
struct GeluCall {
    std::size_t rows = 0, width = 0;
    Dtype dtype = Dtype::fp32;  // of x and y
    RowsView x;
    Vector bias;
    Gelu form = Gelu::erf;
    void* y = nullptr;
};

// y = LayerNorm(GELU(x + bias)), nothing rounded in between.
struct GeluNormCall {
    GeluCall gelu;
    RowNorm norm;
    float* mean = nullptr;
    float* rstd = nullptr;
};

// A table of embeddings and the ids of its rows, one a token.
struct Table {
    Ids ids;
    const void* data = nullptr;
    std::ptrdiff_t stride = 0;
    std::int64_t rows = 0;
};

// y[token] = dropout(LayerNorm(sum of tables[i][ids[i][token]])), the sum in fp32.
struct EmbeddingCall {
    std::size_t tokens = 0, width = 0;
    Dtype dtype = Dtype::fp32;      // of all tables
    Dtype out_dtype = Dtype::fp32;  // of y
    std::span<const Table> tables;
    RowNorm norm;
    void* y = nullptr;
    RowDropout dropout;
    float* mean = nullptr;
    float* rstd = nullptr;
};

struct BadId {
    std::size_t table = 0, token = 0;
    std::int64_t id = 0;
};

// out = dropout(softmax(scale * scores)) over the last axis of (sequences, heads, queries, keys), masked scores left
// out; a row without any gets zeros.
struct SoftmaxCall {
    std::size_t sizes[4] = {};
    Dtype dtype = Dtype::fp32;  // of scores and out
    const void* scores = nullptr;
    std::ptrdiff_t strides[3] = {};      // of all but the keys, which lie side by side
    const std::uint8_t* mask = nullptr;  // bytes, not 0 where a query may see a key; null where all may
    std::ptrdiff_t mask_strides[4] = {};
    float scale = 1.0F;
    void* out = nullptr;
    ScoresDropout dropout;
};

// y = dropout(x).
struct DropoutCall {
    std::size_t rows = 0, width = 0;
    Dtype dtype = Dtype::fp32;  // of x and y
    RowsView x;
    RowDropout dropout;
    void* y = nullptr;
};

// Each runs on the threads that parallel.h grants, fewer for little work. Width and keys are at least 1.
void layer_norm(const LayerNormCall& call);
void sum_layer_norm(const SumNormCall& call);
void bias_gelu(const GeluCall& call);
void gelu_layer_norm(const GeluNormCall& call);
// Looks at all ids first: where one is no row of its table, says so and writes nothing.
std::optional<BadId> embedding_layer_norm(const EmbeddingCall& call);
void softmax(const SoftmaxCall& call);
void drop(const DropoutCall& call);

// The first of `count` ids that is not one of 0 to below - 1, or `count`.
std::size_t first_outside(const Ids& ids, std::size_t count, std::int64_t below);

}  // namespace fastbert
