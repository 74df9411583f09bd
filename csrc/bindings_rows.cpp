// Python's view of csrc/cpu/rows.h; fastbert/ops/native_rows.py has checked the tensors' shapes.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "bindings.h"
#include "bindings_tensors.h"
#include "cpu/rows.h"

namespace py = pybind11;

namespace fastbert {
namespace {

using Name = std::string_view;

Gelu form_of(bool tanh) { return tanh ? Gelu::tanh : Gelu::erf; }

Vector vector_of(Address address, Name dtype) { return {pointer<const void>(address), dtype_of(dtype)}; }

// What a call of these sizes must come with, so that no kernel follows a null pointer.
void require_rows(std::int64_t rows, std::int64_t width, std::initializer_list<Address> addresses) {
    require(rows >= 0, "rows=" + std::to_string(rows) + " must be at least 0");
    require(width >= 1, "width=" + std::to_string(width) + " must be at least 1");
    for (const Address address : addresses) require(rows == 0 || address, "an address is 0");
}

RowNorm norm_of(Address weight, Address bias, Name dtype, double eps) {
    require(weight && bias, "the address of weight or bias is 0");
    return {vector_of(weight, dtype), vector_of(bias, dtype), static_cast<float>(eps)};
}

void call_layer_norm(std::int64_t rows, std::int64_t width, Name dtype, Address x, std::int64_t x_stride,
                     Address weight, Address bias, Name vector_dtype, double eps, Address y) {
    require_rows(rows, width, {x, y});
    const LayerNormCall call{static_cast<std::size_t>(rows),
                             static_cast<std::size_t>(width),
                             dtype_of(dtype),
                             {pointer(x), x_stride},
                             norm_of(weight, bias, vector_dtype, eps),
                             pointer(y)};
    py::gil_scoped_release release;
    layer_norm(call);
}

void call_sum_layer_norm(std::int64_t rows, std::int64_t width, Name dtype, Address x, std::int64_t x_stride,
                         Address residual, std::int64_t residual_stride, Address x_bias, Address weight, Address bias,
                         Name vector_dtype, double eps, Address total, Address y) {
    require_rows(rows, width, {x, residual, y});
    const SumNormCall call{static_cast<std::size_t>(rows),
                           static_cast<std::size_t>(width),
                           dtype_of(dtype),
                           {pointer(x), x_stride},
                           {pointer(residual), residual_stride},
                           vector_of(x_bias, vector_dtype),
                           norm_of(weight, bias, vector_dtype, eps),
                           pointer(total),
                           pointer(y)};
    py::gil_scoped_release release;
    sum_layer_norm(call);
}

GeluCall gelu_of(std::int64_t rows, std::int64_t width, Name dtype, Address x, std::int64_t x_stride, Address bias,
                 Name vector_dtype, bool tanh, Address y) {
    require_rows(rows, width, {x, y});
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
    const GeluCall call = gelu_of(rows, width, dtype, x, x_stride, bias, vector_dtype, tanh, y);
    py::gil_scoped_release release;
    bias_gelu(call);
}

void call_gelu_layer_norm(std::int64_t rows, std::int64_t width, Name dtype, Address x, std::int64_t x_stride,
                          Address x_bias, Address weight, Address bias, Name vector_dtype, double eps, bool tanh,
                          Address y) {
    const GeluNormCall call{gelu_of(rows, width, dtype, x, x_stride, x_bias, vector_dtype, tanh, y),
                            norm_of(weight, bias, vector_dtype, eps)};
    py::gil_scoped_release release;
    gelu_layer_norm(call);
}

using PyTable = std::tuple<Address, std::int64_t, bool, Address, std::int64_t, std::int64_t>;
using PyBadId = std::tuple<std::size_t, std::size_t, std::int64_t>;

std::optional<PyBadId> call_embedding_layer_norm(std::int64_t tokens, std::int64_t width, Name dtype, Name out_dtype,
                                                 const std::vector<PyTable>& given, Address weight, Address bias,
                                                 Name vector_dtype, double eps, Address y) {
    require_rows(tokens, width, {y});
    require(!given.empty(), "there must be a table");
    std::vector<Table> tables;
    for (const auto& [ids, ids_stride, wide, data, stride, rows] : given) {
        require(tokens == 0 || (ids && (data || rows == 0)), "an address is 0");
        tables.push_back({pointer(ids), ids_stride, wide, pointer(data), stride, rows});
    }
    const EmbeddingCall call{static_cast<std::size_t>(tokens),
                             static_cast<std::size_t>(width),
                             dtype_of(dtype),
                             dtype_of(out_dtype),
                             tables,
                             norm_of(weight, bias, vector_dtype, eps),
                             pointer(y)};
    py::gil_scoped_release release;
    const std::optional<BadId> bad = embedding_layer_norm(call);
    if (!bad) return std::nullopt;
    return PyBadId{bad->table, bad->token, bad->id};
}

void call_softmax(const std::array<std::int64_t, 4>& sizes, Name dtype, Address scores,
                  const std::array<std::int64_t, 4>& strides, Address mask,
                  const std::array<std::int64_t, 4>& mask_strides, double scale, Address out) {
    SoftmaxCall call;
    for (std::size_t i = 0; i < 4; ++i) {
        require(sizes[i] >= 0, "a size is negative");
        call.sizes[i] = static_cast<std::size_t>(sizes[i]);
        call.mask_strides[i] = mask_strides[i];
        if (i < 3) call.strides[i] = strides[i];
    }
    require(sizes[3] <= 1 || strides[3] == 1, "the keys of a query must lie side by side");
    require_rows(sizes[0] * sizes[1] * sizes[2], sizes[3], {scores, out});
    call.dtype = dtype_of(dtype);
    call.scores = pointer(scores);
    call.mask = pointer<const std::uint8_t>(mask);
    call.scale = static_cast<float>(scale);
    call.out = pointer(out);
    py::gil_scoped_release release;
    softmax(call);
}

}  // namespace

void bind_rows(py::module_& module) {
    module.def("layer_norm", &call_layer_norm);
    module.def("sum_layer_norm", &call_sum_layer_norm);
    module.def("bias_gelu", &call_bias_gelu);
    module.def("gelu_layer_norm", &call_gelu_layer_norm);
    module.def("embedding_layer_norm", &call_embedding_layer_norm,
               "None, or (table, token, id) of the first id that is no row of its table; then nothing was written.");
    module.def("softmax", &call_softmax);
}

}  // namespace fastbert
