// Bindings of csrc/cpu/decoder.
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bound_layers.h"
#include "bindings/layer_arguments.h"
#include "bindings/registration.h"
#include "bindings/tensors.h"
#include "cpu/decoder/best_tokens.h"
#include "cpu/decoder/decoder_stack.h"

namespace py = pybind11;

namespace fastbert::decoder_bindings {
namespace {

using Norm = std::tuple<LayerVector, LayerVector, float>;

// The layers of a decoder, and the norm behind them.
class BoundDecoderStack {
public:
    BoundDecoderStack(const std::vector<LayerTuple>& layers, std::size_t heads, bool pre_norm, bool tanh,
                      const std::optional<Norm>& final_norm)
        : layers_(layers, heads) {
        stack_.layers = layers_.layers();
        stack_.heads = heads;
        stack_.pre_norm = pre_norm;
        stack_.activation = tanh ? Epilogue::Activation::gelu_tanh : Epilogue::Activation::gelu;
        if (!final_norm) return;
        const auto& [weight, bias, eps] = *final_norm;
        require(std::get<1>(weight) == width() && std::get<1>(bias) == width(),
                "the final norm must have weight and bias of " + std::to_string(width()) + " elements");
        final_norm_ = joined_vectors({weight, bias});
        stack_.final_norm = {final_norm_.data(), final_norm_.data() + width(), eps};
    }

    std::size_t width() const { return layers_.width(); }

    void step(const Matrix& x, std::size_t rows, const std::vector<Address>& keys, const std::vector<Address>& values,
              std::size_t slots, std::size_t slot, Address starts, Address y) const {
        const auto& [address, dtype, stride] = x;
        DecoderStep call;
        call.dtype = dtype_of(dtype);
        require(keys.size() == stack_.layers.size() && values.size() == stack_.layers.size(),
                "keys and values must have one cache for each of the " + std::to_string(stack_.layers.size()) + " layers");
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
    BoundLayers layers_;
    std::vector<float> final_norm_;
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
}  // namespace fastbert::decoder_bindings
