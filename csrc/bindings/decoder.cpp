// Bindings of csrc/cpu/decoder.
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/layer_arguments.h"
#include "bindings/registration.h"
#include "bindings/tensors.h"
#include "cpu/decoder/best_tokens.h"
#include "cpu/decoder/decoder_stack.h"

namespace py = pybind11;

namespace fastbert {
namespace {

// Prepacked weights, vectors, and the epsilons of the attention's and the output's norm.
using LayerTuple = std::tuple<py::tuple, std::vector<LayerVector>, std::pair<float, float>>;
using Norm = std::tuple<LayerVector, LayerVector, float>;

// The layers of a decoder. Vectors are copied; the prepacked weights are kept alive.
class BoundDecoderStack {
public:
    BoundDecoderStack(const std::vector<LayerTuple>& layers, std::size_t heads, bool pre_norm, bool tanh,
                      const std::optional<Norm>& final_norm) {
        require(!layers.empty(), "a decoder has at least one layer");
        for (const auto& [weights, vectors, eps] : layers) {
            require(weights.size() == 4, "a layer has four weights");
            std::array<const PrepackedWeight*, 4> packed{};
            for (std::size_t i = 0; i < packed.size(); ++i) {
                require(py::isinstance<PrepackedWeight>(weights[i]), "a layer's weights are PrepackedWeights");
                packed[i] = weights[i].cast<const PrepackedWeight*>();
            }
            const LayerWeights layer{packed[0], packed[1], packed[2], packed[3]};
            check_layer(layer, vectors, heads);
            const std::size_t width = packed[1]->columns;
            require(width > 0, "a layer is at least 1 wide");
            if (!layers_.empty()) {
                const LayerWeights& first = layers_[0].weights;
                require(width == first.attention_output->columns && packed[0]->element == first.projections->element,
                        "all layers of a decoder have one width and one element type");
            }
            owners_.push_back(weights);
            values_.push_back(joined_vectors(vectors));
            layers_.push_back({layer, layer_vectors_in(values_.back(), width, packed[2]->columns), eps.first, eps.second});
        }
        stack_.layers = layers_;
        stack_.heads = heads;
        stack_.pre_norm = pre_norm;
        stack_.activation = tanh ? Epilogue::Activation::gelu_tanh : Epilogue::Activation::gelu;
        if (!final_norm) return;
        const auto& [weight, bias, eps] = *final_norm;
        require(std::get<1>(weight) == width() && std::get<1>(bias) == width(),
                "the final norm must have weight and bias of " + std::to_string(width()) + " elements");
        values_.push_back(joined_vectors({weight, bias}));
        stack_.final_norm = {values_.back().data(), values_.back().data() + width(), eps};
    }
    BoundDecoderStack(const BoundDecoderStack&) = delete;
    BoundDecoderStack& operator=(const BoundDecoderStack&) = delete;

    std::size_t width() const { return layers_[0].weights.attention_output->columns; }

    void step(const Matrix& x, std::size_t rows, const std::vector<Address>& keys, const std::vector<Address>& values,
              std::size_t slots, std::size_t slot, Address starts, Address y) const {
        const auto& [address, dtype, stride] = x;
        DecoderStep call;
        call.dtype = dtype_of(dtype);
        require(keys.size() == layers_.size() && values.size() == layers_.size(),
                "keys and values must have one cache for each of the " + std::to_string(layers_.size()) + " layers");
        require(slot < slots, "slot " + std::to_string(slot) + " is outside of the " + std::to_string(slots) + " slots");
        require(rows <= 1 || stride >= width(), "x has rows that overlap");
        constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max() / 1024;
        require(slots <= kMost / width() && rows <= kMost / (std::max(stride, slots * width())),
                "the caches are larger than the memory");
        if (rows == 0) return;
        bool allocated = address && starts && y;
        for (const std::vector<Address>* caches : {&keys, &values})
            for (const Address cache : *caches) allocated &= cache != 0;
        require(allocated, "a tensor's memory was given back");
        // Copied before the GIL is released: other threads could change what was validated.
        const std::vector<std::int64_t> first(pointer<const std::int64_t>(starts),
                                              pointer<const std::int64_t>(starts) + rows);
        for (const std::int64_t start : first)
            require(start >= 0 && static_cast<std::size_t>(start) <= slot,
                    "starts holds " + std::to_string(start) + ": it must be from 0 to slot " + std::to_string(slot));
        std::vector<void*> caches;
        for (const Address cache : keys) caches.push_back(pointer<void>(cache));
        for (const Address cache : values) caches.push_back(pointer<void>(cache));
        call.x = pointer<const void>(address);
        call.x_stride = stride;
        call.rows = rows;
        call.keys = std::span<void* const>(caches).first(keys.size());
        call.values = std::span<void* const>(caches).last(values.size());
        call.slots = slots;
        call.slot = slot;
        call.starts = first.data();
        call.y = pointer<void>(y);
        py::gil_scoped_release release;
        decoder_step(stack_, call);
    }

private:
    std::vector<py::tuple> owners_;
    std::vector<std::vector<float>> values_;  // their elements do not move when the outer vector grows
    std::vector<DecoderLayer> layers_;
    DecoderStack stack_;
};

void call_best_tokens(const Matrix& logits, std::size_t rows, std::size_t vocab_size, Address tokens,
                      Address log_probabilities) {
    const auto& [address, dtype, stride] = logits;
    BestTokensCall call;
    call.dtype = dtype_of(dtype);
    require(vocab_size > 0, "logits have no columns");
    require(rows <= 1 || stride >= vocab_size, "logits have rows that overlap");
    constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max() / 1024;
    require(rows <= kMost / std::max(stride, vocab_size), "logits are larger than the memory");
    if (rows == 0) return;
    require(address && tokens && log_probabilities, "a tensor's memory was given back");
    call.logits = pointer<const void>(address);
    call.rows = rows;
    call.vocab_size = vocab_size;
    call.stride = stride;
    call.tokens = pointer<std::int64_t>(tokens);
    call.log_probabilities = pointer<float>(log_probabilities);
    py::gil_scoped_release release;
    best_tokens(call);
}

void bind_classes(py::module_& module) {
    py::class_<BoundDecoderStack>(module, "DecoderStack", "The layers of a decoder, for one token per row at a time.")
        .def(py::init<const std::vector<LayerTuple>&, std::size_t, bool, bool, const std::optional<Norm>&>(),
             py::kw_only(), py::arg("layers"), py::arg("heads"), py::arg("pre_norm"), py::arg("tanh"),
             py::arg("final_norm") = py::none())
        .def_property_readonly("width", &BoundDecoderStack::width)
        .def("step", &BoundDecoderStack::step, py::arg("x"), py::arg("rows"), py::kw_only(), py::arg("keys"),
             py::arg("values"), py::arg("slots"), py::arg("slot"), py::arg("starts"), py::arg("y"),
             "Compute one token per row; its keys and values are written to `slot` of the caches.");
}

void bind_functions(py::module_& module) {
    module.def("best_tokens", &call_best_tokens, py::arg("logits"), py::arg("rows"), py::arg("vocab_size"),
               py::arg("tokens"), py::arg("log_probabilities"),
               "Write each row's most probable token and its log probability.");
}

const Registration registration{"decoder", &bind_functions, &bind_classes};

}  // namespace
}  // namespace fastbert
