// Row-wise operations: LayerNorm and RMSNorm, alone or fused after a sum, GELU or embeddings; GELU; gated activations;
// softmax; dropout.
//
// Every row is computed independently, in an order that depends on its width alone, so its bits depend neither on the
// other rows nor on the threads. Sums and statistics are fp32. Strides count elements between rows, and results are
// contiguous. Nothing outside the rows is read or written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "cpu/dropout/dropout.h"
#include "cpu/rowwise/activation.h"
#include "cpu/simd/bfloat16.h"

namespace fastbert {

// (width,), contiguous; null for none.
struct Vector {
    const void* data = nullptr;
    Dtype dtype = Dtype::fp32;
};

struct RowsView {
    const void* data = nullptr;
    std::ptrdiff_t stride = 0;
};

enum class Gelu { erf, tanh };

// Ids, one per token.
struct Ids {
    const void* data = nullptr;  // int64 if `wide`, else int32
    std::ptrdiff_t stride = 0;
    bool wide = true;

    std::int64_t operator[](std::size_t token) const {
        const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(token) * stride;
        return wide ? static_cast<const std::int64_t*>(data)[at] : static_cast<const std::int32_t*>(data)[at];
    }
};

// Token-wise dropout, one mask row per row: see dropout.h.
struct RowDropout {
    const std::int64_t* keys = nullptr;  // (sequences,); null for no dropout
    std::size_t sequences = 0;
    Ids sequence, position;  // of each row
    std::uint32_t site = 0, threshold = 0;
    float keep = 1.0F;

    // Write the mask of a row: `width` floats, 0 or `keep`. The sequence id is clamped to the existing keys.
    void mask(std::size_t row, std::size_t width, float* out) const;
};

// LayerNorm, y = (x - mean) / sqrt(variance + eps) * weight + bias, or RMSNorm, y = x / sqrt(mean of squares + eps) *
// weight + bias. The bias may be null.
struct RowNorm {
    Vector weight, bias;
    float eps = 0.0F;
    bool rms = false;
};

// y = norm(x). Here and below, the statistics mean and rstd (rows,) may be null; RMSNorm has no mean.
struct LayerNormCall {
    std::size_t rows = 0, width = 0;
    Dtype dtype = Dtype::fp32;  // of x and y
    RowsView x;
    RowNorm norm;
    void* y = nullptr;
    float* mean = nullptr;
    float* rstd = nullptr;
};

// total = dropout(x + x_bias) + residual, rounded once; y = norm(total). `total` and `residual` may be null.
struct DropoutAddNormCall {
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

// y = activation(gate + its bias) * (value + its bias): a row of x and the bias hold the gates, then the values.
struct GatedCall {
    std::size_t rows = 0, width = 0;  // of y; x has 2 * width columns
    Dtype dtype = Dtype::fp32;        // of x and y
    RowsView x;
    Vector bias;  // (2 * width,); may be null
    Activation form = Activation::gelu;
    void* y = nullptr;
};

// y = LayerNorm(GELU(x + bias)), without intermediate rounding.
struct GeluNormCall {
    GeluCall gelu;
    RowNorm norm;
    float* mean = nullptr;
    float* rstd = nullptr;
};

// An embedding table and its ids, one per token.
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

// out = dropout(softmax(scale * scores)) over the last axis of (sequences, heads, queries, keys), excluding masked
// scores; a fully masked row is zero.
struct SoftmaxCall {
    std::size_t sizes[4] = {};
    Dtype dtype = Dtype::fp32;  // of scores and out
    const void* scores = nullptr;
    std::ptrdiff_t strides[3] = {};      // keys are contiguous
    const std::uint8_t* mask = nullptr;  // nonzero for visible keys; null for all
    std::ptrdiff_t mask_strides[4] = {};
    float scale = 1.0F;
    void* out = nullptr;
    AttentionDropout dropout;
};

// y = dropout(x).
struct DropoutCall {
    std::size_t rows = 0, width = 0;
    Dtype dtype = Dtype::fp32;  // of x and y
    RowsView x;
    RowDropout dropout;
    void* y = nullptr;
};

// Each runs on the threads that parallel.h grants, or on one for little work. Width and keys are at least 1.
void layer_norm(const LayerNormCall& call);
void dropout_add_layer_norm(const DropoutAddNormCall& call);
void bias_gelu(const GeluCall& call);
void gated_activation(const GatedCall& call);
void gelu_layer_norm(const GeluNormCall& call);
// Validates all ids first: if one is outside its table, returns it and writes nothing.
std::optional<BadId> embedding_layer_norm(const EmbeddingCall& call);
void softmax(const SoftmaxCall& call);
void dropout_rows(const DropoutCall& call);

// Return the index of the first of `count` ids outside 0..below - 1, or `count`.
std::size_t find_bad_id(const Ids& ids, std::size_t count, std::int64_t below);

}  // namespace fastbert
