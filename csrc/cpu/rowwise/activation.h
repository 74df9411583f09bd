// The activations of gated linear units.
#pragma once

namespace fastbert {

enum class Activation { gelu, gelu_tanh, relu, silu };

}  // namespace fastbert
