// Bindings of csrc/cpu/encoder_layer.
#include <pybind11/stl.h>

#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/layer_arguments.h"
#include "bindings/registration.h"
#include "bindings/tensors.h"
#include "cpu/attention/attention.h"
#include "cpu/encoder_layer/encoder_layer.h"

namespace py = pybind11;

namespace fastbert {
namespace {

// Reject offsets that would take a kernel outside the tokens.
void check_offsets(const std::vector<std::int32_t>& offsets, std::size_t sequences, std::size_t tokens) {
    if (offsets[0] != 0)
        throw py::value_error("cu_seqlens starts at " + std::to_string(offsets[0]) + ": it must start at 0");
    for (std::size_t i = 0; i < sequences; ++i) {
        if (offsets[i + 1] < offsets[i])
            throw py::value_error("cu_seqlens decreases from " + std::to_string(offsets[i]) + " to " +
                                  std::to_string(offsets[i + 1]) + " at sequence " + std::to_string(i));
    }
    if (static_cast<std::size_t>(offsets[sequences]) != tokens)
        throw py::value_error("cu_seqlens ends at " + std::to_string(offsets[sequences]) + ", but there are " +
                              std::to_string(tokens) + " tokens: it must end there");
}

// Reject row indices outside the tokens.
void check_rows(const std::vector<std::int64_t>& rows, std::size_t tokens) {
    for (const std::int64_t row : rows) {
        if (row < 0 || static_cast<std::size_t>(row) >= tokens)
            throw py::value_error("rows holds " + std::to_string(row) + ", outside the " + std::to_string(tokens) +
                                  " tokens");
    }
}

void call_encoder_layer(Address x, const std::string& x_dtype, std::size_t x_stride, std::size_t tokens,
                        std::size_t width, const std::array<const PrepackedWeight*, 4>& weights,
                        const std::vector<LayerVector>& vectors, Address cu_seqlens, std::size_t sequences,
                        std::size_t heads, float eps, bool tanh, bool causal,
                        const std::optional<std::pair<Address, std::size_t>>& rows, Address y,
                        const std::string& y_dtype) {
    const LayerWeights layer_weights{weights[0], weights[1], weights[2], weights[3]};
    check_layer(layer_weights, vectors, heads);
    if (width != weights[1]->columns)
        throw py::value_error("x has " + std::to_string(width) + " columns, but the layer is " +
                              std::to_string(weights[1]->columns) + " wide");
    const std::size_t outputs = rows ? rows->second : tokens;
    if ((tokens && width && !x) || (outputs && ((width && !y) || (rows && !rows->first))) || !cu_seqlens)
        throw py::value_error("a tensor's memory was given back");
    // Copied before the GIL is released: other threads could change what was validated.
    const auto* data = reinterpret_cast<const std::int32_t*>(cu_seqlens);
    const std::vector<std::int32_t> offsets(data, data + sequences + 1);
    check_offsets(offsets, sequences, tokens);
    std::vector<std::int64_t> selected_rows;
    if (rows && outputs) {
        const auto* indices = reinterpret_cast<const std::int64_t*>(rows->first);
        selected_rows.assign(indices, indices + outputs);
        check_rows(selected_rows, tokens);
    }
    const std::vector<float> values = joined_vectors(vectors);
    const LayerCall call{reinterpret_cast<const void*>(x),
                         dtype_of(x_dtype),
                         x_stride,
                         reinterpret_cast<void*>(y),
                         dtype_of(y_dtype),
                         tokens,
                         rows ? selected_rows.data() : nullptr,
                         outputs,
                         offsets.data(),
                         sequences,
                         heads,
                         eps,
                         tanh,
                         causal};
    py::gil_scoped_release release;
    const LayerVectors layer_vectors = layer_vectors_in(values, width, weights[2]->columns);
    encoder_layer(call, layer_weights, layer_vectors);
}

const Registration registration{
    "encoder_layer", [](py::module_& module) {
        module.def("encoder_layer", &call_encoder_layer, py::kw_only(), py::arg("x"), py::arg("x_dtype"),
                   py::arg("x_stride"), py::arg("tokens"), py::arg("width"), py::arg("weights"), py::arg("vectors"),
                   py::arg("cu_seqlens"), py::arg("sequences"), py::arg("heads"), py::arg("eps"), py::arg("tanh"),
                   py::arg("causal"), py::arg("rows"), py::arg("y"), py::arg("y_dtype"));
    }};

}  // namespace
}  // namespace fastbert
