// Dropout masks as a function of (key of the sequence, layer and site, place within the sequence), never of state.
//
// Every element owns 16 bits of one Philox-4x32-10 block: element `column` of a row takes the 16-bit word column % 8 of
// the block with counter (column / 8, row, head, site) under its sequence's 64-bit key, and is dropped when that word is
// below `threshold`. A mask holds `keep` (the bits of 1 / (1 - p)) or zero, so dropout is one product, forward and backward.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fastbert {

// Mask of token-wise dropout: out is (tokens, width); row t uses keys[sequence[t]] and counter row position[t].
// Element is uint16_t (bf16, fp16) or uint32_t (fp32).
template <typename Element>
void token_dropout_mask(Element* out, std::size_t tokens, std::size_t width, const std::int64_t* keys,
                        const std::int64_t* sequence, const std::int64_t* position, std::uint32_t site,
                        std::uint32_t threshold, Element keep);

// Mask of attention dropout for sequences of one length: out is (sequences, heads, queries, key_count).
template <typename Element>
void attention_dropout_mask(Element* out, std::size_t sequences, std::size_t heads, std::size_t queries,
                            std::size_t key_count, const std::int64_t* keys, std::uint32_t site,
                            std::uint32_t threshold, Element keep);

}  // namespace fastbert
