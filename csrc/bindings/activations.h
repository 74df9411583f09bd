// Activations by the names that Python passes.
#pragma once
#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <utility>

#include "cpu/gemm/gemm.h"

namespace fastbert {

// An activation by its name, with the gate of a gated one.
inline std::pair<Epilogue::Activation, Activation> activation_of(const std::optional<std::string>& name) {
    using enum Epilogue::Activation;
    if (!name) return {none, {}};
    for (const auto& [known, gate] :
         {std::pair{"geglu", Activation::gelu}, std::pair{"geglu_tanh", Activation::gelu_tanh},
          std::pair{"reglu", Activation::relu}, std::pair{"swiglu", Activation::silu}}) {
        if (*name == known) return {gated, gate};
        if (*name == std::string(known) + "_gradient") return {gated_gradient, gate};
    }
    for (const auto& [known, activation] : {std::pair{"gelu", gelu}, std::pair{"gelu_tanh", gelu_tanh},
                                            std::pair{"gelu_gradient", gelu_gradient},
                                            std::pair{"gelu_tanh_gradient", gelu_tanh_gradient}}) {
        if (*name == known) return {activation, {}};
    }
    throw pybind11::value_error(
        "activation must be gelu, gelu_tanh, geglu, geglu_tanh, reglu, swiglu or the gradient of one, not " + *name);
}

}  // namespace fastbert
