// The layers of a stack as Python passes them, checked once and kept for many calls.
#pragma once
#include <pybind11/pybind11.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/layer_arguments.h"
#include "bindings/tensors.h"
#include "cpu/encoder_layer/encoder_layer.h"

namespace fastbert {

// Prepacked weights, vectors, and the epsilons of the attention's and the output's norm.
using LayerTuple = std::tuple<pybind11::tuple, std::vector<LayerVector>, std::pair<float, float>>;

// Layers of one width and one element type. Vectors are copied; the prepacked weights are kept alive.
class BoundLayers {
public:
    BoundLayers(const std::vector<LayerTuple>& layers, std::size_t heads) {
        require(!layers.empty(), "a stack has at least one layer");
        for (const auto& [weights, vectors, eps] : layers) {
            require(weights.size() == 4, "a layer has four weights");
            std::array<const PrepackedWeight*, 4> packed{};
            for (std::size_t i = 0; i < packed.size(); ++i) {
                require(pybind11::isinstance<PrepackedWeight>(weights[i]), "a layer's weights are PrepackedWeights");
                packed[i] = weights[i].cast<const PrepackedWeight*>();
            }
            const LayerWeights layer{packed[0], packed[1], packed[2], packed[3]};
            check_layer(layer, vectors, heads);
            const std::size_t width = packed[1]->columns;
            require(width > 0, "a layer is at least 1 wide");
            if (!layers_.empty()) {
                const LayerWeights& first = layers_[0].weights;
                require(width == first.attention_output->columns && packed[0]->element == first.projections->element,
                        "all layers of a stack have one width and one element type");
            }
            owners_.push_back(weights);
            vectors_.push_back(vectors);
            values_.push_back(joined_vectors(vectors));
            layers_.push_back({layer, layer_vectors_in(values_.back(), width, packed[2]->columns), eps.first, eps.second});
        }
    }
    BoundLayers(const BoundLayers&) = delete;
    BoundLayers& operator=(const BoundLayers&) = delete;

    const std::vector<StackLayer>& layers() const { return layers_; }
    std::size_t width() const { return layers_[0].weights.attention_output->columns; }

    // Whether the vectors, whose memory is still theirs, have the values that were copied.
    bool has_current_vectors() const {
        for (std::size_t i = 0; i < vectors_.size(); ++i) {
            const float* copied = values_[i].data();
            for (const auto& [address, count, dtype] : vectors_[i]) {
                const bool current = dtype_of(dtype) == Dtype::fp32
                                         ? std::memcmp(reinterpret_cast<const float*>(address), copied, 4 * count) == 0
                                         : equals(reinterpret_cast<const BFloat16*>(address), copied, count);
                if (!current) return false;
                copied += count;
            }
        }
        return true;
    }

private:
    static bool equals(const BFloat16* values, const float* copied, std::size_t count) {
        std::uint32_t differing = 0;
        for (std::size_t i = 0; i < count; ++i)
            differing |= std::bit_cast<std::uint32_t>(to_float(values[i])) ^ std::bit_cast<std::uint32_t>(copied[i]);
        return differing == 0;
    }

    std::vector<pybind11::tuple> owners_;
    std::vector<std::vector<LayerVector>> vectors_;
    std::vector<std::vector<float>> values_;  // their elements do not move when the outer vector grows
    std::vector<StackLayer> layers_;
};

}  // namespace fastbert
