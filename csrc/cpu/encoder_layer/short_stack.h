// All layers for few tokens in one parallel region: the time between matmuls, in which threads start and wait for each
// other, is otherwise as long as the matmuls.
#pragma once

#include <cstddef>
#include <span>

#include "cpu/encoder_layer/encoder_layer.h"

namespace fastbert {

// Whether `short_stack` computes a call of layers, and faster.
bool is_short_stack(const LayerCall& call, std::span<const StackLayer> layers);

// As `encoder_stack`, bit for bit. Throws std::bad_alloc.
void short_stack(const LayerCall& call, std::span<const StackLayer> layers);

}  // namespace fastbert
