// Plans the samples of an epoch: next-sentence pairs, sentence-order pairs or single segments.
//
// Pairs follow the BERT paper (section 3.1, task 2) and its released data generation: whole sentences of a document are
// gathered until they reach the length budget (for a tenth of the samples a random shorter target), cut at a random
// sentence boundary into A and B, and for half of the samples B is replaced by text of another document, the unused
// sentences being put back. A pair that is too long loses tokens one by one, at random from the front or the back of
// the longer segment. Where the released code lets the label show, or loses text, we differ:
//
// - B of a negative begins at a sentence drawn uniformly from all sentences of all other documents (the paper's "random
//   sentence from the corpus"; the release draws a document first, which favours short ones), moved back in its
//   document only as far as needed for enough text to follow it.
// - A negative is as long as the positive it stands for: full where that is full, else as many sentences. (In the
//   release the left-over end of a document is short as a positive and full as a negative.)
// - A lone sentence is cut at a random word boundary, for positives and negatives alike, so that exactly half of the
//   samples are negatives. (In the release a lone sentence is always a negative.) One lone word is left out.
// - A sentence longer than the budget is taken in pieces that fit, so that its middle is not truncated away.
// - The short target is drawn for each sample, not for each document.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "collator/random_stream.h"
#include "collator/token_corpus.h"

namespace fastbert {

enum class Objective {
    mlm,                // one segment: contiguous text of one document, cut at the budget, continued by the next sample
    mlm_next_sentence,  // A and B; label 1: B is from another document
    mlm_sentence_order  // A and B are consecutive; label 1: they are swapped
};

struct PlanRecipe {
    Objective objective = Objective::mlm_next_sentence;
    int64_t budget = 0;  // tokens of a sample without its special tokens
    double short_probability = 0.1;
    std::span<const uint8_t> is_continuation;  // by token id: a piece that continues a word
    int64_t shuffle_window = 0;                // tokens among which samples are shuffled; 0: all
};

// Token ranges of one sample, after truncation; a single segment has b_length 0.
struct PlannedSample {
    int64_t a_begin = 0;
    int64_t b_begin = 0;
    uint32_t a_length = 0;
    uint32_t b_length : 31 = 0;
    uint32_t label : 1 = 0;

    int64_t length() const { return int64_t{a_length} + b_length; }
};

// The smallest budget that an objective can fill: one token, or one for each of two segments.
int64_t smallest_budget(Objective objective);

// The samples of one epoch in the order in which they are visited, a random permutation. Pure: the same arguments give
// the same plan. `documents` are checked; next-sentence pairs need at least two of them.
//
// With a window, runs of half a million tokens (a sixteenth of a small window) are permuted, and samples are shuffled
// among the runs that fill a window: few places of the corpus are visited at a time, and each of them once, but for the
// negatives of next-sentence pairs.
std::vector<PlannedSample> plan_epoch(const TokenCorpus& corpus, std::span<const DocumentRange> documents,
                                      const PlanRecipe& recipe, const RandomDomain& domain);

}  // namespace fastbert
