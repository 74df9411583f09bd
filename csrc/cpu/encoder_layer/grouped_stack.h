// Layers for many tokens, a few hundred at a time: each thread computes whole layers of whole sequences by itself, so that
// what a layer passes from one operation to the next stays in its L2 cache, and threads hardly ever wait for each other.
#pragma once

#include <cstddef>
#include <span>

#include "cpu/encoder_layer/encoder_layer.h"

namespace fastbert {

// Compute each layer's call, for all tokens of the one before, bit for bit as one after the other; only the last one may
// select rows. Returns false, with nothing computed, for sequences that the threads cannot share evenly. Throws
// std::bad_alloc.
bool grouped_stack(std::span<const LayerCall> calls, std::span<const StackLayer> layers);

}  // namespace fastbert
