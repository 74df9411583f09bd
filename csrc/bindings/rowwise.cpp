// Bindings of csrc/cpu/rowwise. Shapes are validated in Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/registration.h"
#include "bindings/tensors.h"
#include "cpu/rowwise/embedding_gradient.h"
#include "cpu/rowwise/rowwise.h"
#include "cpu/rowwise/backward.h"

namespace py = pybind11;

namespace fastbert::rowwise_bindings {
namespace {

using Name = std::string_view;

Gelu form_of(bool tanh) { return tanh ? Gelu::tanh : Gelu::erf; }

Activation activation_of(Name name) {
    for (const auto& [known, activation] :
         {std::pair<Name, Activation>{"gelu", Activation::gelu}, {"gelu_tanh", Activation::gelu_tanh},
          {"relu", Activation::relu}, {"silu", Activation::silu}}) {
        if (name == known) return activation;
    }
    throw py::value_error("activation must be gelu, gelu_tanh, relu or silu, not " + std::string(name));
}

Vector vector_of(Address address, Name dtype) { return {pointer<const void>(address), dtype_of(dtype)}; }

// Validate sizes and addresses, so that no kernel dereferences a null pointer.
void require_rows(std::int64_t rows, std::int64_t width, std::initializer_list<Address> addresses) {
    require(rows >= 0, "rows=" + std::to_string(rows) + " must be at least 0");
    require(width >= 1, "width=" + std::to_string(width) + " must be at least 1");
    for (const Address address : addresses) require(rows == 0 || address, "an address is 0");
}

// A bias of 0 is none.
RowNorm norm_of(Address weight, Address bias, Name dtype, double eps, bool rms = false) {
    require(weight, "the address of weight is 0");
    return {vector_of(weight, dtype), vector_of(bias, dtype), static_cast<float>(eps), rms};
}

// Mean and rstd are either both stored or both omitted; RMSNorm has no mean.
void require_statistics(Address mean, Address rstd, bool rms = false) {
    require(rms ? !mean : !mean == !rstd, "an address of mean or rstd is 0");
}

Ids ids_of(Address ids, std::int64_t stride, bool wide) { return {pointer(ids), stride, wide}; }

// Keys, their number, sequence ids and offsets, each with a flag for int64, site, threshold, keep.
using PyDropout = std::tuple<Address, std::size_t, Address, bool, Address, bool, std::uint32_t, std::uint32_t, double>;

RowDropout dropout_of(const std::optional<PyDropout>& descriptions, std::int64_t rows) {
    if (!descriptions || rows <= 0) return {};
    const auto& [keys, sequences, sequence, wide, position, wide_position, site, threshold, keep] = *descriptions;
    require(keys && sequences && sequence && position, "an address of a dropout is 0");
    return {pointer<const std::int64_t>(keys), sequences, ids_of(sequence, 1, wide),
            ids_of(position, 1, wide_position), site, threshold, static_cast<float>(keep)};
}

void call_layer_norm(std::int64_t rows, std::int64_t width, Name dtype, Address x, std::int64_t x_stride,
                     Address weight, Address bias, Name vector_dtype, double eps, bool rms, Address y, Address mean,
                     Address rstd) {
    require_rows(rows, width, {x, y});
    require_statistics(mean, rstd, rms);
    const LayerNormCall call{static_cast<std::size_t>(rows),
                             static_cast<std::size_t>(width),
                             dtype_of(dtype),
                             {pointer(x), x_stride},
                             norm_of(weight, bias, vector_dtype, eps, rms),
                             pointer(y),
                             pointer<float>(mean),
                             pointer<float>(rstd)};
    py::gil_scoped_release release;
    layer_norm(call);
}

void call_dropout_add_layer_norm(std::int64_t rows, std::int64_t width, Name dtype, Address x, std::int64_t x_stride,
                                 Address residual, std::int64_t residual_stride, Address x_bias, Address weight,
                                 Address bias, Name vector_dtype, double eps, bool rms,
                                 const std::optional<PyDropout>& dropout, Address total, Address y, Address mean,
                                 Address rstd) {
    require_rows(rows, width, {x, y});
    require_statistics(mean, rstd, rms);
    const DropoutAddNormCall call{static_cast<std::size_t>(rows),
                                  static_cast<std::size_t>(width),
                                  dtype_of(dtype),
                                  {pointer(x), x_stride},
                                  {pointer(residual), residual_stride},
                                  vector_of(x_bias, vector_dtype),
                                  norm_of(weight, bias, vector_dtype, eps, rms),
                                  pointer(total),
                                  pointer(y),
                                  dropout_of(dropout, rows),
                                  pointer<float>(mean),
                                  pointer<float>(rstd)};
    py::gil_scoped_release release;
    dropout_add_layer_norm(call);
}

GeluCall gelu_of(std::int64_t rows, std::int64_t width, Name dtype, Address x, std::int64_t x_stride, Address bias,
                 Name vector_dtype, bool tanh, Address y) {
    require_rows(rows, width, {x});
    return {static_cast<std::size_t>(rows),
            static_cast<std::size_t>(width),
            dtype_of(dtype),
            {pointer(x), x_stride},
            vector_of(bias, vector_dtype),
            form_of(tanh),
            pointer(y)};
}

void call_bias_gelu(std::int64_t rows, std::int64_t width, Name dtype, Address x, std::int64_t x_stride, Address bias,
                    Name vector_dtype, bool tanh, Address y) {
    require(rows == 0 || y, "an address is 0");
    const GeluCall call = gelu_of(rows, width, dtype, x, x_stride, bias, vector_dtype, tanh, y);
    py::gil_scoped_release release;
    bias_gelu(call);
}

GatedCall gated_of(std::int64_t rows, std::int64_t width, Name dtype, Address x, std::int64_t x_stride, Address bias,
                   Name bias_dtype, Name activation, Address y) {
    require_rows(rows, width, {x});
    return {static_cast<std::size_t>(rows), static_cast<std::size_t>(width), dtype_of(dtype), {pointer(x), x_stride},
            vector_of(bias, bias_dtype),    activation_of(activation),       pointer(y)};
}

void call_gated_activation(std::int64_t rows, std::int64_t width, Name dtype, Address x, std::int64_t x_stride,
                           Address bias, Name bias_dtype, Name activation, Address y) {
    require(rows == 0 || y, "an address is 0");
    const GatedCall call = gated_of(rows, width, dtype, x, x_stride, bias, bias_dtype, activation, y);
    py::gil_scoped_release release;
    gated_activation(call);
}

void call_gated_activation_backward(std::int64_t rows, std::int64_t width, Name dtype, Address grad,
                                    std::int64_t grad_stride, Address x, std::int64_t x_stride, Address bias,
                                    Name bias_dtype, Name activation, Address dx, Address sums) {
    require(rows == 0 || (grad && dx), "an address is 0");
    const GatedBackwardCall call{gated_of(rows, width, dtype, x, x_stride, bias, bias_dtype, activation, 0),
                                 {pointer(grad), grad_stride},
                                 pointer(dx),
                                 pointer<float>(sums)};
    py::gil_scoped_release release;
    gated_activation_backward(call);
}

void call_gelu_layer_norm(std::int64_t rows, std::int64_t width, Name dtype, Address x, std::int64_t x_stride,
                          Address x_bias, Address weight, Address bias, Name vector_dtype, double eps, bool tanh,
                          Address y, Address mean, Address rstd) {
    require(rows == 0 || y, "an address is 0");
    require_statistics(mean, rstd);
    const GeluNormCall call{gelu_of(rows, width, dtype, x, x_stride, x_bias, vector_dtype, tanh, y),
                            norm_of(weight, bias, vector_dtype, eps), pointer<float>(mean), pointer<float>(rstd)};
    py::gil_scoped_release release;
    gelu_layer_norm(call);
}

using PyTable = std::tuple<Address, std::int64_t, bool, Address, std::int64_t, std::int64_t>;
using PyBadId = std::tuple<std::size_t, std::size_t, std::int64_t>;

std::vector<Table> tables_of(const std::vector<PyTable>& descriptions, std::int64_t tokens) {
    require(!descriptions.empty(), "there must be a table");
    std::vector<Table> tables;
    for (const auto& [ids, ids_stride, wide, data, stride, rows] : descriptions) {
        require(tokens == 0 || (ids && (data || rows == 0)), "an address is 0");
        tables.push_back({ids_of(ids, ids_stride, wide), pointer(data), stride, rows});
    }
    return tables;
}

std::optional<PyBadId> call_embedding_layer_norm(std::int64_t tokens, std::int64_t width, Name dtype, Name out_dtype,
                                                 const std::vector<PyTable>& descriptions, Address weight, Address bias,
                                                 Name vector_dtype, double eps, const std::optional<PyDropout>& dropout,
                                                 Address y, Address mean, Address rstd) {
    require_rows(tokens, width, {y});
    require_statistics(mean, rstd);
    const std::vector<Table> tables = tables_of(descriptions, tokens);
    const EmbeddingCall call{static_cast<std::size_t>(tokens),
                             static_cast<std::size_t>(width),
                             dtype_of(dtype),
                             dtype_of(out_dtype),
                             tables,
                             norm_of(weight, bias, vector_dtype, eps),
                             pointer(y),
                             dropout_of(dropout, tokens),
                             pointer<float>(mean),
                             pointer<float>(rstd)};
    py::gil_scoped_release release;
    const std::optional<BadId> bad = embedding_layer_norm(call);
    if (!bad) return std::nullopt;
    return PyBadId{bad->table, bad->token, bad->id};
}

// Keys, site, threshold, keep.
using PyScoresDropout = std::tuple<Address, std::uint32_t, std::uint32_t, double>;

SoftmaxCall softmax_of(const std::array<std::int64_t, 4>& sizes, Name dtype, Address scores,
                       const std::array<std::int64_t, 4>& strides, Address mask,
                       const std::array<std::int64_t, 4>& mask_strides, double scale,
                       const std::optional<PyScoresDropout>& dropout, Address out) {
    SoftmaxCall call;
    for (std::size_t i = 0; i < 4; ++i) {
        require(sizes[i] >= 0, "a size is negative");
        call.sizes[i] = static_cast<std::size_t>(sizes[i]);
        call.mask_strides[i] = mask_strides[i];
        if (i < 3) call.strides[i] = strides[i];
    }
    require(sizes[3] <= 1 || strides[3] == 1, "the keys of a query must lie side by side");
    const std::int64_t rows = sizes[0] * sizes[1] * sizes[2];
    require_rows(rows, sizes[3], {scores, out});
    call.dtype = dtype_of(dtype);
    call.scores = pointer(scores);
    call.mask = pointer<const std::uint8_t>(mask);
    call.scale = static_cast<float>(scale);
    call.out = pointer(out);
    if (dropout && rows) {
        const auto& [keys, site, threshold, keep] = *dropout;
        require(keys, "the address of a dropout's keys is 0");
        require(threshold < kAttentionDraws, "the threshold of attention's dropout is above 255");
        call.dropout = {pointer<const std::int64_t>(keys), site, threshold, static_cast<float>(keep)};
    }
    return call;
}

void call_softmax(const std::array<std::int64_t, 4>& sizes, Name dtype, Address scores,
                  const std::array<std::int64_t, 4>& strides, Address mask,
                  const std::array<std::int64_t, 4>& mask_strides, double scale,
                  const std::optional<PyScoresDropout>& dropout, Address out) {
    const SoftmaxCall call = softmax_of(sizes, dtype, scores, strides, mask, mask_strides, scale, dropout, out);
    py::gil_scoped_release release;
    softmax(call);
}

void call_softmax_backward(const std::array<std::int64_t, 4>& sizes, Name dtype, Address scores,
                           const std::array<std::int64_t, 4>& strides, Address mask,
                           const std::array<std::int64_t, 4>& mask_strides, double scale,
                           const std::optional<PyScoresDropout>& dropout, Address grad, Address dscores) {
    const SoftmaxCall forward =
        softmax_of(sizes, dtype, scores, strides, mask, mask_strides, scale, dropout, dscores);
    require(sizes[0] * sizes[1] * sizes[2] == 0 || grad, "an address is 0");
    py::gil_scoped_release release;
    softmax_backward({forward, pointer(grad)});
}

void call_dropout(std::int64_t rows, std::int64_t width, Name dtype, Address x, std::int64_t x_stride,
                  const PyDropout& dropout, Address y) {
    require_rows(rows, width, {x, y});
    const DropoutCall call{static_cast<std::size_t>(rows), static_cast<std::size_t>(width), dtype_of(dtype),
                           {pointer(x), x_stride},         dropout_of(dropout, rows),       pointer(y)};
    py::gil_scoped_release release;
    dropout_rows(call);
}

void call_layer_norm_backward(std::int64_t rows, std::int64_t width, Name dtype, Address grad, std::int64_t grad_stride,
                              Address grad_total, std::int64_t grad_total_stride, Address total,
                              std::int64_t total_stride, Address mean, Address rstd, Address weight, Name weight_dtype,
                              const std::optional<PyDropout>& dropout, Address dx, Address dresidual, bool bias,
                              bool x_bias, bool rms, Address sums) {
    require_rows(rows, width, {grad, total, rstd, dx});
    require(rows == 0 || rms == !mean, "an address is 0");
    require(weight && sums, "the address of weight or sums is 0");
    const LayerNormBackwardCall call{static_cast<std::size_t>(rows),
                                     static_cast<std::size_t>(width),
                                     dtype_of(dtype),
                                     {pointer(grad), grad_stride},
                                     {pointer(grad_total), grad_total_stride},
                                     {pointer(total), total_stride},
                                     pointer<const float>(mean),
                                     pointer<const float>(rstd),
                                     vector_of(weight, weight_dtype),
                                     dropout_of(dropout, rows),
                                     pointer(dx),
                                     pointer(dresidual),
                                     bias,
                                     x_bias,
                                     pointer<float>(sums)};
    py::gil_scoped_release release;
    layer_norm_backward(call);
}

void call_bias_gelu_backward(std::int64_t rows, std::int64_t width, Name dtype, Address grad, std::int64_t grad_stride,
                             Address x, std::int64_t x_stride, Address bias, Name bias_dtype, bool tanh, Address dx,
                             Address y, Address sums) {
    require(rows == 0 || (grad && dx), "an address is 0");
    const GeluBackwardCall call{gelu_of(rows, width, dtype, x, x_stride, bias, bias_dtype, tanh, y),
                                {pointer(grad), grad_stride},
                                pointer(dx),
                                pointer<float>(sums)};
    py::gil_scoped_release release;
    bias_gelu_backward(call);
}

void call_gelu_layer_norm_backward(std::int64_t rows, std::int64_t width, Name dtype, Address grad,
                                   std::int64_t grad_stride, Address x, std::int64_t x_stride, Address x_bias,
                                   Address weight, Name vector_dtype, bool tanh, Address mean, Address rstd, Address dx,
                                   bool norm_bias, Address sums) {
    require(rows == 0 || (grad && mean && rstd && dx), "an address is 0");
    require(weight && sums, "the address of weight or sums is 0");
    const GeluNormBackwardCall call{gelu_of(rows, width, dtype, x, x_stride, x_bias, vector_dtype, tanh, 0),
                                    {pointer(grad), grad_stride},
                                    pointer<const float>(mean),
                                    pointer<const float>(rstd),
                                    vector_of(weight, vector_dtype),
                                    pointer(dx),
                                    norm_bias,
                                    pointer<float>(sums)};
    py::gil_scoped_release release;
    gelu_layer_norm_backward(call);
}

void call_embedding_layer_norm_backward(std::int64_t tokens, std::int64_t width, Name dtype, Name grad_dtype,
                                        const std::vector<PyTable>& descriptions, Address grad,
                                        std::int64_t grad_stride, Address mean, Address rstd, Address weight,
                                        Name weight_dtype, const std::optional<PyDropout>& dropout, Address dsum,
                                        Address sums) {
    require_rows(tokens, width, {grad, mean, rstd, dsum});
    require(weight && sums, "the address of weight or sums is 0");
    const std::vector<Table> tables = tables_of(descriptions, tokens);
    for (const Table& table : tables) require(tokens == 0 || table.rows > 0, "a table has no row");
    const EmbeddingNormBackwardCall call{static_cast<std::size_t>(tokens),
                                         static_cast<std::size_t>(width),
                                         dtype_of(dtype),
                                         dtype_of(grad_dtype),
                                         tables,
                                         {pointer(grad), grad_stride},
                                         pointer<const float>(mean),
                                         pointer<const float>(rstd),
                                         vector_of(weight, weight_dtype),
                                         dropout_of(dropout, tokens),
                                         pointer<float>(dsum),
                                         pointer<float>(sums)};
    py::gil_scoped_release release;
    embedding_layer_norm_backward(call);
}

void call_embedding_backward(std::int64_t tokens, std::int64_t width, Name dtype, Address dsum, Address ids,
                             std::int64_t ids_stride, bool wide, std::int64_t rows, Address gradient) {
    require_rows(tokens, width, {dsum, ids});
    require(rows >= 0 && (rows == 0 || gradient), "an address is 0");
    const EmbeddingBackwardCall call{static_cast<std::size_t>(tokens),
                                     static_cast<std::size_t>(width),
                                     dtype_of(dtype),
                                     pointer<const float>(dsum),
                                     ids_of(ids, ids_stride, wide),
                                     rows,
                                     pointer(gradient)};
    py::gil_scoped_release release;
    embedding_backward(call);
}

std::size_t call_find_bad_id(Address ids, std::int64_t stride, bool wide, std::size_t count, std::int64_t below) {
    require(count == 0 || ids, "an address is 0");
    return find_bad_id(ids_of(ids, stride, wide), count, below);
}

const Registration registration{"rowwise", [](py::module_& module) {
    module.def("layer_norm", &call_layer_norm);
    module.def("dropout_add_layer_norm", &call_dropout_add_layer_norm);
    module.def("layer_norm_backward", &call_layer_norm_backward);
    module.def("bias_gelu", &call_bias_gelu);
    module.def("bias_gelu_backward", &call_bias_gelu_backward);
    module.def("gated_activation", &call_gated_activation);
    module.def("gated_activation_backward", &call_gated_activation_backward);
    module.def("gelu_layer_norm", &call_gelu_layer_norm);
    module.def("gelu_layer_norm_backward", &call_gelu_layer_norm_backward);
    module.def("embedding_layer_norm", &call_embedding_layer_norm,
               "Return None, or (table, token, id) of the first id outside its table, with nothing written.");
    module.def("embedding_layer_norm_backward", &call_embedding_layer_norm_backward);
    module.def("embedding_backward", &call_embedding_backward);
    module.def("softmax", &call_softmax);
    module.def("softmax_backward", &call_softmax_backward);
    module.def("dropout", &call_dropout);
    module.def("find_bad_id", &call_find_bad_id,
               "Return the index of the first id outside 0..below - 1, or their number.");
}};

}  // namespace
}  // namespace fastbert::rowwise_bindings
