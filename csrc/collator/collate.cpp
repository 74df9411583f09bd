#include "collator/collate.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <stdexcept>
#include <string>

namespace fastbert {

int64_t length_with_specials(const PlannedSample& sample) { return sample.length() + (sample.b_length ? 3 : 2); }

int64_t count_tokens(std::span<const PlannedSample> plan, std::span<const int64_t> indices) {
    int64_t tokens = 0;
    for (const int64_t index : indices) {
        if (index < 0 || index >= static_cast<int64_t>(plan.size())) {
            throw std::out_of_range("sample " + std::to_string(index) + " of an epoch of " +
                                    std::to_string(plan.size()) + " samples");
        }
        tokens += length_with_specials(plan[index]);
    }
    return tokens;
}

MaskedTokens collate(const TokenCorpus& corpus, std::span<const PlannedSample> plan, std::span<const int64_t> indices,
                     const CollateRecipe& recipe, const RandomDomain& domain, const RandomDomain& dropout,
                     const BatchView& batch) {
    Masker masker(recipe.masking);
    MaskedTokens masked;
    int64_t begin = 0;
    batch.cu_seqlens[0] = 0;
    for (size_t row = 0; row < indices.size(); ++row) {
        const PlannedSample& sample = plan[indices[row]];
        const auto number = static_cast<uint64_t>(indices[row]);
        const auto a_end = static_cast<int32_t>(1 + sample.a_length);
        const auto b_end = static_cast<int32_t>(a_end + 1 + sample.b_length);
        const int64_t length = length_with_specials(sample);

        const std::span<int64_t> tokens = batch.input_ids.subspan(begin, length);
        uint32_t largest = corpus.copy(sample.a_begin, sample.a_length, &tokens[1]);
        tokens[0] = recipe.cls_id;
        tokens[a_end] = recipe.sep_id;
        std::array<std::pair<int32_t, int32_t>, 2> segments{{{1, a_end}, {a_end + 1, b_end}}};
        if (sample.b_length) {
            largest = std::max(largest, corpus.copy(sample.b_begin, sample.b_length, &tokens[a_end + 1]));
            tokens[b_end] = recipe.sep_id;
        }
        if (largest >= recipe.masking.is_continuation.size()) {
            throw std::invalid_argument("token " + std::to_string(largest) + " is outside the vocabulary of " +
                                        std::to_string(recipe.masking.is_continuation.size()));
        }
        masker.mask(tokens, std::span(segments).first(sample.b_length ? 2 : 1), domain, number, begin, masked.positions,
                    masked.labels);

        const std::span<int64_t> types = batch.token_type_ids.subspan(begin, length);
        std::fill(types.begin(), types.begin() + a_end + 1, 0);
        std::fill(types.begin() + a_end + 1, types.end(), 1);
        const std::span<int64_t> positions = batch.position_ids.subspan(begin, length);
        std::iota(positions.begin(), positions.end(), 0);
        const std::span<int64_t> sequences = batch.sequence_ids.subspan(begin, length);
        std::fill(sequences.begin(), sequences.end(), static_cast<int64_t>(row));

        begin += length;
        batch.cu_seqlens[row + 1] = static_cast<int32_t>(begin);
        batch.dropout_key[row] = static_cast<int64_t>(RandomStream(dropout, number, Purpose::dropout).word64());
        batch.labels[row] = sample.label;
    }
    return masked;
}

}  // namespace fastbert
