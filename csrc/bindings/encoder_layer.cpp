// Bindings of csrc/cpu/encoder_layer.
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/activations.h"
#include "bindings/attention_arguments.h"
#include "bindings/bound_layers.h"
#include "bindings/layer_arguments.h"
#include "bindings/registration.h"
#include "bindings/tensors.h"
#include "cpu/attention/attention.h"
#include "cpu/encoder_layer/encoder_layer.h"

namespace py = pybind11;

namespace fastbert::encoder_layer_bindings {
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

// Inputs and outputs of BERT's layers as Python passes them, checked. Offsets and rows are copied before the GIL is
// released: other threads could change what was validated.
struct CheckedCall {
    CheckedCall(const Matrix& x, std::size_t tokens, std::size_t width, Address cu_seqlens, std::size_t sequences,
                std::size_t heads, bool tanh, bool causal, const std::optional<std::pair<Address, std::size_t>>& rows,
                Address y, const std::string& y_dtype) {
        const auto& [address, x_dtype, x_stride] = x;
        const std::size_t outputs = rows ? rows->second : tokens;
        if ((tokens && width && !address) || (outputs && ((width && !y) || (rows && !rows->first))) || !cu_seqlens)
            throw py::value_error("a tensor's memory was given back");
        const auto* data = pointer<const std::int32_t>(cu_seqlens);
        offsets.assign(data, data + sequences + 1);
        check_offsets(offsets, sequences, tokens);
        if (rows && outputs) {
            const auto* indices = pointer<const std::int64_t>(rows->first);
            selected_rows.assign(indices, indices + outputs);
            check_rows(selected_rows, tokens);
        }
        call.x = pointer<const void>(address);
        call.x_dtype = dtype_of(x_dtype);
        call.x_stride = x_stride;
        call.y = pointer<void>(y);
        call.y_dtype = dtype_of(y_dtype);
        call.tokens = tokens;
        call.rows = rows ? selected_rows.data() : nullptr;
        call.outputs = outputs;
        call.cu_seqlens = offsets.data();
        call.sequences = sequences;
        call.attention.heads = heads;
        call.attention.dim = width / heads;
        call.attention.causal = causal;
        call.attention.scale = 1.0F / std::sqrt(static_cast<float>(call.attention.dim));
        call.activation = tanh ? Epilogue::Activation::gelu_tanh : Epilogue::Activation::gelu;
    }
    CheckedCall(const CheckedCall&) = delete;
    CheckedCall& operator=(const CheckedCall&) = delete;

    std::vector<std::int32_t> offsets;
    std::vector<std::int64_t> selected_rows;
    LayerCall call{};
};

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
    CheckedCall checked({x, x_dtype, x_stride}, tokens, width, cu_seqlens, sequences, heads, tanh, causal, rows, y,
                        y_dtype);
    checked.call.attention_eps = checked.call.output_eps = eps;
    const std::vector<float> values = joined_vectors(vectors);
    py::gil_scoped_release release;
    const LayerVectors layer_vectors = layer_vectors_in(values, width, weights[2]->columns);
    encoder_layer(checked.call, layer_weights, layer_vectors);
}

// 64 words spread evenly over each weight, and its last one. A look at all of them would take as long as a layer of a
// short text, so that a call compares every fourth, and the next call the ones beside: a weight that was overwritten as a
// whole is found by any of them.
class WeightSamples {
public:
    explicit WeightSamples(const std::vector<std::pair<Address, std::size_t>>& spans) : spans_(spans) {
        for (const auto& [address, bytes] : spans_) {
            require(address || !bytes, "a weight's memory was given back");
            for (std::size_t i = 0; i <= kWords; ++i) words_.push_back(word(address, bytes, i));
        }
    }

    bool are_current() {
        const std::size_t first = next_.fetch_add(1, std::memory_order_relaxed) % kTurns;
        std::uint64_t differing = 0;
        const std::uint64_t* expected = words_.data();
        for (const auto& [address, bytes] : spans_) {
            for (std::size_t i = first; i <= kWords; i += kTurns) differing |= word(address, bytes, i) ^ expected[i];
            expected += kWords + 1;
        }
        return differing == 0;
    }

private:
    static constexpr std::size_t kWords = 64, kTurns = 4;

    static std::uint64_t word(Address address, std::size_t bytes, std::size_t index) {
        std::uint64_t value = 0;
        const std::size_t size = std::min(bytes, sizeof value), last = bytes - size;
        const std::size_t at = index < kWords ? std::min(index * (bytes / kWords), last) : last;
        if (size) std::memcpy(&value, pointer<const std::byte>(address) + at, size);
        return value;
    }

    std::vector<std::pair<Address, std::size_t>> spans_;
    std::vector<std::uint64_t> words_;
    std::atomic<std::size_t> next_{0};
};

// BERT's layers with copies of their weights and vectors.
class BoundEncoderStack {
public:
    // `spans` are the addresses and bytes of the weights that were packed, for `is_current`.
    BoundEncoderStack(const std::vector<LayerTuple>& layers, std::size_t heads, bool tanh, bool causal,
                      const std::vector<std::pair<Address, std::size_t>>& spans)
        : layers_(layers, heads), heads_(heads), tanh_(tanh), causal_(causal), samples_(spans) {}

    std::size_t width() const { return layers_.width(); }

    // Whether the samples of the weights and all of the vectors are what they were. Their memory must still be theirs.
    bool is_current() { return samples_.are_current() && layers_.has_current_vectors(); }

    void run(const Matrix& x, std::size_t tokens, Address cu_seqlens, std::size_t sequences,
             const std::optional<std::pair<Address, std::size_t>>& rows, Address states, Address y,
             const std::string& y_dtype) const {
        CheckedCall checked(x, tokens, width(), cu_seqlens, sequences, heads_, tanh_, causal_, rows, y, y_dtype);
        require(states || !tokens || layers_.layers().size() == 1, "a tensor's memory was given back");
        py::gil_scoped_release release;
        encoder_stack(checked.call, layers_.layers(), pointer<void>(states));
    }

private:
    BoundLayers layers_;
    std::size_t heads_;
    bool tanh_, causal_;
    WeightSamples samples_;
};

// A layer that is not BERT's: positions and grouped heads in attention, gated networks, norms in front, absent vectors.
// q, k and v of `attention` are not read.
void call_general_layer(const Matrix& x, std::size_t tokens, const std::array<const PrepackedWeight*, 4>& weights,
                        const std::vector<LayerVector>& vectors, const AttentionArguments& attention,
                        const std::pair<float, float>& eps, const std::string& activation, bool pre_norm, bool rms,
                        const std::optional<std::pair<Address, std::size_t>>& rows, Address y,
                        const std::string& y_dtype) {
    const LayerWeights layer_weights{weights[0], weights[1], weights[2], weights[3]};
    const std::size_t width = weights[1]->columns;
    require(attention.group > 0 && attention.heads % attention.group == 0 && attention.dim > 0 &&
                attention.dim <= kMaxHeadDim,
            "the layer's heads do not fit its kernels");
    const std::size_t queries = attention.heads * attention.dim;
    check_general_layer(layer_weights, vectors, width, queries, queries / attention.group);
    const auto [kind, gate] = activation_of(activation);
    using enum Epilogue::Activation;
    require(weights[2]->gated_width ? kind == gated : kind == gelu || kind == gelu_tanh,
            "activation " + activation + " does not fit the layer's network");
    require(pre_norm || (!rms && std::get<1>(vectors[4]) && std::get<1>(vectors[8])),
            "norms behind the sub-layers are LayerNorms, and both present");
    require(std::get<1>(vectors[8]) > 0, "the norm of the network is absent");
    const auto& [x_address, x_dtype, x_stride] = x;
    const std::size_t outputs = rows ? rows->second : tokens;
    if ((tokens && !x_address) || (outputs && (!y || (rows && !rows->first))))
        throw py::value_error("a tensor's memory was given back");
    const CheckedAttention checked(attention);
    if (!checked.fits()) {
        const auto* data = reinterpret_cast<const std::int32_t*>(attention.cu_seqlens_q);
        check_offsets({data, data + attention.sequences + 1}, attention.sequences, tokens);
        throw py::value_error("a sequence is longer than max_seqlen");
    }
    std::vector<std::int64_t> selected_rows;
    if (rows && outputs) {
        const auto* indices = reinterpret_cast<const std::int64_t*>(rows->first);
        selected_rows.assign(indices, indices + outputs);
        check_rows(selected_rows, tokens);
    }
    const std::vector<float> values = joined_vectors(vectors);
    LayerCall call{reinterpret_cast<const void*>(x_address),
                   dtype_of(x_dtype),
                   x_stride,
                   reinterpret_cast<void*>(y),
                   dtype_of(y_dtype),
                   tokens,
                   rows ? selected_rows.data() : nullptr,
                   outputs,
                   checked.offsets_q.data(),
                   attention.sequences,
                   checked.call,
                   eps.first,
                   eps.second,
                   kind,
                   gate,
                   pre_norm,
                   rms};
    py::gil_scoped_release release;
    encoder_layer(call, layer_weights, general_vectors_in(vectors, values));
}

void bind_stack(py::module_& module) {
    py::class_<BoundEncoderStack>(module, "EncoderStack", "BERT's layers with copies of their weights and vectors.")
        .def(py::init<const std::vector<LayerTuple>&, std::size_t, bool, bool,
                      const std::vector<std::pair<Address, std::size_t>>&>(),
             py::kw_only(), py::arg("layers"), py::arg("heads"), py::arg("tanh"), py::arg("causal"), py::arg("spans"))
        .def("is_current", &BoundEncoderStack::is_current,
             "Return whether samples of the weights, and all vectors, are what they were; their memory must be theirs.")
        .def_property_readonly("width", &BoundEncoderStack::width)
        .def("run", &BoundEncoderStack::run, py::arg("x"), py::arg("tokens"), py::kw_only(), py::arg("cu_seqlens"),
             py::arg("sequences"), py::arg("rows"), py::arg("states"), py::arg("y"), py::arg("y_dtype"),
             "Compute all layers; `states` has room for the outputs of two layers, one for two layers.");
}

const Registration registration{
    "encoder_layer", [](py::module_& module) {
        bind_stack(module);
        module.def("general_layer", &call_general_layer, py::kw_only(), py::arg("x"), py::arg("tokens"),
                   py::arg("weights"), py::arg("vectors"), py::arg("attention"), py::arg("eps"), py::arg("activation"),
                   py::arg("pre_norm"), py::arg("rms"), py::arg("rows"), py::arg("y"), py::arg("y_dtype"));
        module.def("encoder_layer", &call_encoder_layer, py::kw_only(), py::arg("x"), py::arg("x_dtype"),
                   py::arg("x_stride"), py::arg("tokens"), py::arg("width"), py::arg("weights"), py::arg("vectors"),
                   py::arg("cu_seqlens"), py::arg("sequences"), py::arg("heads"), py::arg("eps"), py::arg("tanh"),
                   py::arg("causal"), py::arg("rows"), py::arg("y"), py::arg("y_dtype"));
    }};

}  // namespace
}  // namespace fastbert::encoder_layer_bindings
