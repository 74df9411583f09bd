// Dropout masks as a function of (key of the sequence, layer and site, position within the sequence), never of state.
//
// Every element uses 16 bits of one Philox-4x32 block of seven rounds, with counter (block, row, head, site) under its
// sequence's 64-bit key, and is dropped if they are below `threshold`. Element `column` of a token's vector uses half
// column % 8 of block column / 8. Key `column` of a query uses half column % 2 of word column % 32 / 8 of block 4 *
// (column / 32) + column % 8 / 2: the order in which a matrix unit distributes its results over threads. A mask element
// is `keep` (the bits of 1 / (1 - p)) or zero, so dropout is one multiplication, forward and backward.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fastbert {

// Write the mask of token-wise dropout: out is (tokens, width); row t uses keys[sequence[t]] and counter row
// position[t]. Element is uint16_t (bf16, fp16) or uint32_t (fp32).
template <typename Element>
void token_dropout_mask(Element* out, std::size_t tokens, std::size_t width, const std::int64_t* keys,
                        const std::int64_t* sequence, const std::int64_t* position, std::uint32_t site,
                        std::uint32_t threshold, Element keep);

// Write one row of a mask as factors of 0 or `keep`. Token-wise: columns 0 to `width`; attention: for a query of one
// head, keys `first_key` (a multiple of 32) to `first_key + count`.
void token_dropout_row(float* out, std::size_t width, std::uint32_t position, std::uint32_t site, std::uint64_t key,
                       std::uint32_t threshold, float keep);
void attention_dropout_row(float* out, std::size_t first_key, std::size_t count, std::uint32_t query,
                           std::uint32_t head, std::uint32_t site, std::uint64_t key, std::uint32_t threshold,
                           float keep);

// Write the mask of attention dropout for sequences of equal length: out is (sequences, heads, queries, key_count).
template <typename Element>
void attention_dropout_mask(Element* out, std::size_t sequences, std::size_t heads, std::size_t queries,
                            std::size_t key_count, const std::int64_t* keys, std::uint32_t site,
                            std::uint32_t threshold, Element keep);

}  // namespace fastbert
