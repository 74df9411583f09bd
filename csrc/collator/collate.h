// Collate samples of a planned epoch into one packed batch: concatenated `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "collator/masking.h"
#include "collator/plan.h"
#include "collator/token_corpus.h"

namespace fastbert {

struct CollateRecipe {
    MaskRecipe masking;
    int64_t cls_id = 0;
    int64_t sep_id = 0;
};

// The output buffers of a batch, T tokens and B samples; the fields of fastbert.packing.PackedBatch.
struct BatchView {
    std::span<int64_t> input_ids;       // T
    std::span<int64_t> token_type_ids;  // T
    std::span<int64_t> position_ids;    // T
    std::span<int64_t> sequence_ids;    // T
    std::span<int32_t> cu_seqlens;      // B + 1
    std::span<int64_t> dropout_key;     // B
    std::span<int64_t> labels;          // B: the label of each pair
};

struct MaskedTokens {
    std::vector<int64_t> positions;
    std::vector<int64_t> labels;
};

// The number of tokens of a sample, including special tokens.
int64_t length_with_specials(const PlannedSample& sample);

// Return the number of tokens of these samples, including special tokens. Throws std::out_of_range on an index past the
// plan.
int64_t count_tokens(std::span<const PlannedSample> plan, std::span<const int64_t> indices);

// Write the samples `indices` of the plan; `domain` is that of the plan, `dropout` that of the dropout keys: another
// epoch where an epoch repeats the samples of an earlier one. A pure function of its arguments, sample by sample. Throws std::invalid_argument if the corpus holds an id outside the vocabulary.
MaskedTokens collate(const TokenCorpus& corpus, std::span<const PlannedSample> plan, std::span<const int64_t> indices,
                     const CollateRecipe& recipe, const RandomDomain& domain, const RandomDomain& dropout,
                     const BatchView& batch);

}  // namespace fastbert
