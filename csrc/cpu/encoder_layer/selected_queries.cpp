#include "cpu/encoder_layer/selected_queries.h"

#include <algorithm>
#include <cstddef>

namespace fastbert {
namespace {

// Whether the queries of each sequence are its last tokens, in order.
bool are_last(const LayerCall& call, const SelectedQueries& queries) {
    for (std::size_t s = 0; s < call.sequences; ++s) {
        std::int64_t token = call.cu_seqlens[s + 1];
        for (std::int32_t i = queries.cu_seqlens[s + 1]; i > queries.cu_seqlens[s]; --i)
            if (queries.tokens[static_cast<std::size_t>(i - 1)] != --token) return false;
    }
    return true;
}

}  // namespace

std::optional<SelectedQueries> select_queries(const LayerCall& call) {
    const AttentionCall& attention = call.attention;
    if (!call.rows || call.outputs >= call.tokens) return std::nullopt;
    // A window's blocks of keys begin with the first query that is computed; rotary embeddings and relative positions
    // need each query's own position.
    if (attention.window != kNoWindow || attention.rotary.angles || attention.relative.any() || attention.bias)
        return std::nullopt;

    SelectedQueries queries;
    queries.cu_seqlens.assign(call.sequences + 1, 0);
    const std::int32_t *begin = call.cu_seqlens, *end = begin + call.sequences + 1;
    std::vector<std::size_t> sequences(call.outputs);
    for (std::size_t i = 0; i < call.outputs; ++i) {
        // The last of the sequences that begin at or before the token: those before it may be empty.
        sequences[i] = static_cast<std::size_t>(std::upper_bound(begin, end, call.rows[i]) - begin) - 1;
        ++queries.cu_seqlens[sequences[i] + 1];
    }
    for (std::size_t s = 0; s < call.sequences; ++s) queries.cu_seqlens[s + 1] += queries.cu_seqlens[s];

    queries.tokens.resize(call.outputs);
    if (std::ranges::is_sorted(sequences)) {
        std::copy_n(call.rows, call.outputs, queries.tokens.begin());
    } else {
        std::vector<std::int32_t> next(queries.cu_seqlens);
        queries.slots.resize(call.outputs);
        for (std::size_t i = 0; i < call.outputs; ++i) {
            queries.slots[i] = next[sequences[i]]++;
            queries.tokens[static_cast<std::size_t>(queries.slots[i])] = call.rows[i];
        }
    }
    const bool reads_distances = attention.causal || attention.distance_bias.values;
    if (reads_distances && !are_last(call, queries)) return std::nullopt;
    return queries;
}

}  // namespace fastbert
