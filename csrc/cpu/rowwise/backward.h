// Gradients of the operations of rowwise.h.
//
// Rows are split into blocks whose length depends on their number alone. Sums over rows (the gradients of vectors) are
// taken per block and then reduced in block order, in fp32: their bits do not depend on threads.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "cpu/rowwise/rowwise.h"

namespace fastbert {

// Backward of y = norm(total), total = dropout(x + x_bias) + residual: the gradient of total is that through y
// plus grad_total; dresidual equals it, and dx is it times the dropout mask.
struct LayerNormBackwardCall {
    std::size_t rows = 0, width = 0;
    Dtype dtype = Dtype::fp32;  // of grad, grad_total, total, dx and dresidual
    RowsView grad, grad_total;  // the latter may be null
    RowsView total;
    const float* mean = nullptr;  // (rows,), as forward kept them; null for RMSNorm
    const float* rstd = nullptr;
    Vector weight;
    RowDropout dropout;
    void* dx = nullptr;
    void* dresidual = nullptr;  // may be null
    bool bias = true, x_bias = false;
    float* sums = nullptr;  // rows of `width`: dweight, with a bias dbias, with x_bias dx_bias

    std::size_t vectors() const { return 1 + (bias ? 1 : 0) + (x_bias ? 1 : 0); }
};

// Backward of y = GELU(x + bias): dx, its sums over rows unless null, and y again unless null.
struct GeluBackwardCall {
    GeluCall forward;  // y is written unless null
    RowsView grad;     // of x's dtype, as dx
    void* dx = nullptr;
    float* sums = nullptr;  // (width,)
};

// Backward of a gated activation: dx (rows, 2 * width) and its sums over rows unless null.
struct GatedBackwardCall {
    GatedCall forward;  // without y
    RowsView grad;      // of x's dtype, as dx
    void* dx = nullptr;
    float* sums = nullptr;  // (2 * width,)
};

// Backward of y = LayerNorm(GELU(x + bias)).
struct GeluNormBackwardCall {
    GeluCall gelu;  // without y
    RowsView grad;  // of x's dtype, as dx
    const float* mean = nullptr;
    const float* rstd = nullptr;
    Vector weight;
    void* dx = nullptr;
    bool norm_bias = true;
    float* sums = nullptr;  // rows of `width`: dweight, with norm_bias dbias, with a bias of GELU its gradient

    std::size_t vectors() const { return 1 + (norm_bias ? 1 : 0) + (gelu.bias.data ? 1 : 0); }
};

// Backward of y = dropout(LayerNorm(sum)): the gradient of the sum of embeddings, fp32 (tokens, width).
struct EmbeddingNormBackwardCall {
    std::size_t tokens = 0, width = 0;
    Dtype dtype = Dtype::fp32;       // of all tables
    Dtype grad_dtype = Dtype::fp32;  // of y and its gradient
    std::span<const Table> tables;
    RowsView grad;
    const float* mean = nullptr;
    const float* rstd = nullptr;
    Vector weight;
    RowDropout dropout;
    float* dsum = nullptr;
    float* sums = nullptr;  // (2, width): dweight, dbias
};

// Backward of softmax: `forward` holds the call's arguments, but its `out` receives the gradient of the scores. The
// upstream gradient is contiguous, in the dtype of the scores.
struct SoftmaxBackwardCall {
    SoftmaxCall forward;
    const void* grad = nullptr;
};

void layer_norm_backward(const LayerNormBackwardCall& call);
void bias_gelu_backward(const GeluBackwardCall& call);
void gated_activation_backward(const GatedBackwardCall& call);
void gelu_layer_norm_backward(const GeluNormBackwardCall& call);
void embedding_layer_norm_backward(const EmbeddingNormBackwardCall& call);
void softmax_backward(const SoftmaxBackwardCall& call);

}  // namespace fastbert
