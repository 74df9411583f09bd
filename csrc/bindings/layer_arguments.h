// The weights and vectors of a layer as Python passes them, checked and converted.
#pragma once
#include <pybind11/pybind11.h>

#include <array>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/tensors.h"
#include "cpu/attention/attention.h"
#include "cpu/encoder_layer/encoder_layer.h"

namespace fastbert {

// Data, elements, dtype. A layer has ten: the biases of query, key, value and attention output, weight and bias of the
// attention's norm, the biases of the intermediate and the output matmul, weight and bias of the output's norm.
using LayerVector = std::tuple<Address, std::size_t, std::string>;

// Concatenate vectors, converted to fp32.
inline std::vector<float> joined_vectors(const std::vector<LayerVector>& vectors) {
    std::vector<float> values;
    std::size_t total = 0;
    for (const auto& [address, count, dtype] : vectors) total += count;
    values.reserve(total);
    for (const auto& [address, count, dtype] : vectors) {
        if (count && !address) throw pybind11::value_error("the memory of one of the layer's vectors was given back");
        if (dtype_of(dtype) == Dtype::fp32) {
            const auto* from = reinterpret_cast<const float*>(address);
            values.insert(values.end(), from, from + count);
        } else {
            const auto* from = reinterpret_cast<const BFloat16*>(address);
            const std::size_t done = values.size();
            values.resize(done + count);
            for (std::size_t i = 0; i < count; ++i) values[done + i] = to_float(from[i]);
        }
    }
    return values;
}

// What a layer other than BERT's lacks is an empty vector. `heads` are those of queries, keys and values together.
inline void check_general_layer(const LayerWeights& layer, const std::vector<LayerVector>& vectors, std::size_t width,
                                std::size_t queries, std::size_t keys) {
    const std::size_t gated = layer.intermediate->gated_width;
    const std::size_t inner = gated ? gated : layer.intermediate->columns, first = gated ? 2 * gated : inner;
    const std::array<std::array<std::size_t, 2>, 4> expected = {
        {{queries + 2 * keys, width}, {width, queries}, {layer.intermediate->columns, width}, {width, inner}}};
    const std::array<const PrepackedWeight*, 4> weights = {layer.projections, layer.attention_output,
                                                           layer.intermediate, layer.output};
    for (std::size_t i = 0; i < weights.size(); ++i) {
        const bool fits = weights[i]->columns == expected[i][0] && weights[i]->depth == expected[i][1];
        require(fits && weights[i]->element == layer.projections->element && (i == 2 || !weights[i]->gated_width),
                "weight " + std::to_string(i) + " of the layer is " + std::to_string(weights[i]->columns) + " x " +
                    std::to_string(weights[i]->depth) + ": it must be " + std::to_string(expected[i][0]) + " x " +
                    std::to_string(expected[i][1]));
    }
    const std::array<std::size_t, 10> sizes = {queries, keys, keys, width, width, width, first, width, width, width};
    require(vectors.size() == sizes.size(), "a layer has ten vectors");
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        const std::size_t count = std::get<1>(vectors[i]);
        require(count == 0 || count == sizes[i], "vector " + std::to_string(i) + " of the layer has " +
                                                     std::to_string(count) + " elements: it must have none or " +
                                                     std::to_string(sizes[i]));
    }
    const bool biased = std::get<1>(vectors[0]) > 0;
    require((std::get<1>(vectors[1]) > 0) == biased && (std::get<1>(vectors[2]) > 0) == biased,
            "the projections of a layer have a bias each, or none");
}

// The vectors of such a layer in the memory of `joined_vectors`.
inline LayerVectors general_vectors_in(const std::vector<LayerVector>& vectors, const std::vector<float>& values) {
    std::array<const float*, 10> parts{};
    std::size_t begin = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const std::size_t count = std::get<1>(vectors[i]);
        parts[i] = count ? values.data() + begin : nullptr;
        begin += count;
    }
    return {parts[0], parts[3], parts[4], parts[5], parts[6], parts[7], parts[8], parts[9]};
}

inline void check_layer(const LayerWeights& layer, const std::vector<LayerVector>& vectors, std::size_t heads) {
    const std::size_t width = layer.attention_output->columns, inner = layer.intermediate->columns;
    const Element element = layer.projections->element;
    const std::array<std::array<std::size_t, 2>, 4> expected = {
        {{3 * width, width}, {width, width}, {inner, width}, {width, inner}}};
    const std::array<const PrepackedWeight*, 4> weights = {layer.projections, layer.attention_output,
                                                           layer.intermediate, layer.output};
    for (std::size_t i = 0; i < weights.size(); ++i) {
        if (weights[i]->columns != expected[i][0] || weights[i]->depth != expected[i][1] ||
            weights[i]->element != element)
            throw pybind11::value_error("weight " + std::to_string(i) + " of the layer is " +
                                  std::to_string(weights[i]->columns) + " x " + std::to_string(weights[i]->depth) +
                                  ": it must be " + std::to_string(expected[i][0]) + " x " +
                                  std::to_string(expected[i][1]) +
                                  ", prepacked for the same element type as the others");
    }
    const std::array<std::size_t, 10> sizes = {width, width, width, width, width, width, inner, width, width, width};
    if (vectors.size() != sizes.size()) throw pybind11::value_error("a layer has ten vectors");
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        if (std::get<1>(vectors[i]) != sizes[i])
            throw pybind11::value_error("vector " + std::to_string(i) + " of the layer has " +
                                  std::to_string(std::get<1>(vectors[i])) + " elements: it must have " +
                                  std::to_string(sizes[i]));
    }
    if (heads == 0 || width % heads || width / heads > kMaxHeadDim)
        throw pybind11::value_error("width " + std::to_string(width) + " cannot have " + std::to_string(heads) +
                              " heads: it must be a multiple of them, at most 256 times as large");
}

// The vectors of a layer in the memory of `joined_vectors`.
inline LayerVectors layer_vectors_in(const std::vector<float>& values, std::size_t width, std::size_t inner) {
    const float* rest = values.data() + 3 * width;
    return {values.data(),
            rest,
            rest + width,
            rest + 2 * width,
            rest + 3 * width,
            rest + 3 * width + inner,
            rest + 4 * width + inner,
            rest + 5 * width + inner};
}

}  // namespace fastbert
