// The queries of a layer of which only some tokens are read: attention computes these alone, over the keys and values
// of all tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cpu/encoder_layer/encoder_layer.h"

namespace fastbert {

// The output tokens of a call, grouped by sequence: packed sequences of queries that are shorter than those of keys.
struct SelectedQueries {
    std::vector<std::int64_t> tokens;      // (outputs,)
    std::vector<std::int32_t> cu_seqlens;  // (sequences + 1,): offsets of each sequence's queries
    std::vector<std::int64_t> slots;       // (outputs,): the index in `tokens` of each output; empty if it is its own
};

// Return the queries of a call; nullopt for one that computes those of all tokens: without `rows`, with as many rows as
// tokens, and where attention reads the positions of queries. A causal mask and a bias by distance are aligned to the
// last key, so that they fit queries that are the last ones of their sequences. Throws std::bad_alloc.
std::optional<SelectedQueries> select_queries(const LayerCall& call);

}  // namespace fastbert
