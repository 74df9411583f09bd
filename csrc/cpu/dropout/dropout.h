// Dropout masks as a function of (key of the sequence, layer and site, position within the sequence), never of state.
//
// Every element uses some bits of one Philox-4x32 block of seven rounds, with counter (block, row, head, site) under
// its sequence's 64-bit key, and is dropped if they are below `threshold`; `keep`, 1 / (1 - p), scales the others.
//
// Element `column` of a token's vector uses 16 bits: half column % 8 of block column / 8. Key `column` of a query uses
// eight: byte 2 * (j % 2) + column % 2 of word j / 2 of block 4 * (column / 64) + column % 8 / 2, where
// j = column % 64 / 8. This is the order in which a matrix unit distributes its results over threads.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fastbert {

// Write the mask of token-wise dropout: out is (tokens, width), each element zero or `keep` (the bits of 1 / (1 - p));
// row t uses keys[sequence[t]] and counter row position[t]. Element is uint16_t (bf16, fp16) or uint32_t (fp32).
template <typename Element>
void token_dropout_mask(Element* out, std::size_t tokens, std::size_t width, const std::int64_t* keys,
                        const std::int64_t* sequence, const std::int64_t* position, std::uint32_t site,
                        std::uint32_t threshold, Element keep);

// Write one row of that mask as factors of 0 or `keep`.
void token_dropout_row(float* out, std::size_t width, std::uint32_t position, std::uint32_t site, std::uint64_t key,
                       std::uint32_t threshold, float keep);

// Attention dropout of one head of a sequence.
struct HeadDropout {
    std::uint64_t key = 0;
    std::uint32_t head = 0, site = 0, threshold = 0;
};

// Attention dropout of a call; kept probabilities are multiplied by `keep`.
struct AttentionDropout {
    const std::int64_t* keys = nullptr;  // (sequences,); null for no dropout
    std::uint32_t site = 0;
    std::uint32_t threshold = 0;  // below kAttentionDraws
    float keep = 1;

    HeadDropout of(std::size_t sequence, std::size_t head) const {
        return {static_cast<std::uint64_t>(keys[sequence]), static_cast<std::uint32_t>(head), site, threshold};
    }
};

inline constexpr std::uint32_t kAttentionDraws = 256;  // the number of different draws

// Attention masks as bits, set where a probability is kept; bit i of a row is bit i % 8 of its byte i / 8. They are
// drawn for units of kDraws keys by kRowQueries queries in rows, kColumnQueries in columns.
struct KeepBits {
    static constexpr std::size_t kKeys = 64, kRowQueries = 4, kColumnQueries = 16;

    // The bytes of a row of `keys` bits, in whole units.
    static constexpr std::size_t row_bytes(std::size_t keys) { return (keys + kKeys - 1) / kKeys * (kKeys / 8); }
};

// Write four rows, one per query from `query` (a multiple of four) on and `stride` bytes apart: the bits of `keys` keys
// from `first_key` (a multiple of 64) on, in whole units.
void attention_row_bits(const HeadDropout& dropout, std::size_t query, std::size_t first_key, std::size_t keys,
                        std::uint8_t* bits, std::size_t stride);

// Write the same bits transposed: 64 rows, one per key from `first_key` (a multiple of 64) on and `stride` bytes apart:
// the bits of `queries` queries from `query` (a multiple of 16) on, in whole units.
void attention_column_bits(const HeadDropout& dropout, std::size_t query, std::size_t queries, std::size_t first_key,
                           std::uint8_t* bits, std::size_t stride);

// Write the mask of attention dropout for sequences of equal length: out is (sequences, heads, queries, key_count),
// each element zero or `keep` as in token_dropout_mask.
template <typename Element>
void attention_dropout_mask(Element* out, std::size_t sequences, std::size_t heads, std::size_t queries,
                            std::size_t key_count, const std::int64_t* keys, std::uint32_t site,
                            std::uint32_t threshold, Element keep);

}  // namespace fastbert
