// The masked-language-model corruption of one sequence (BERT paper, section 3.1, task 1, and appendix A.1).
//
// Maskable tokens are determined by position: all but the [CLS] and [SEP] that the collator inserts,
// including a "[SEP]" spelled in the text. Of the chosen tokens, 80 % become [MASK], 10 % a random token and 10 %
// are unchanged by default, drawn independently, or for spans once per span.
//
// Spans are those of SpanBERT (Joshi et al. 2020, section 3.1) and its released code: a length in whole words from a
// geometric distribution (p = 0.2) limited to 10, 3.8 on average, and a first word drawn uniformly from those that are
// not yet chosen, until the count is reached; the last span is cut there, if need be inside a word. A span ends with its
// segment. Spans that overlap or touch are one span, whose tokens all become [MASK], all become random tokens, or all
// stay.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "collator/random_stream.h"

namespace fastbert {

// The probabilities with which a chosen token becomes [MASK], becomes a random token, or stays; their sum is 1.
struct Replacement {
    double mask = 0.8;
    double random = 0.1;
    double unchanged = 0.1;
};

// What is chosen as a whole: tokens, all pieces of a word, or spans of words.
enum class MaskUnit { token, word, span };

struct MaskRecipe {
    double probability = 0.15;
    // True: exactly max(1, round(probability * n)) of n tokens, as the released recipe does (nothing with probability
    // 0). False: each token, or word, by its own draw, so that a sequence may have none.
    bool exact_count = true;
    // Words, with exact_count, are taken in random order, and one that would exceed the count is passed over, as in the
    // released recipe; but at least one word is always chosen. Spans have an exact count only.
    MaskUnit unit = MaskUnit::token;
    Replacement replacement;
    int64_t mask_id = 0;
    std::span<const int64_t> replacements;     // ids of random tokens: neither special nor unused
    std::span<const uint8_t> is_continuation;  // by token id
};

// Reused between sequences, so that masking does not allocate.
class Masker {
   public:
    explicit Masker(const MaskRecipe& recipe) : recipe_(recipe) {}

    // Corrupt `tokens`, the sequence with its special tokens. `segments` hold the positions that may be chosen, as
    // (begin, end) pairs in ascending order; words do not cross them. Append `offset` plus each chosen position in
    // ascending order to `positions`, and the original tokens to `labels`.
    void mask(std::span<int64_t> tokens, std::span<const std::pair<int32_t, int32_t>> segments,
              const RandomDomain& domain, uint64_t sample, int64_t offset, std::vector<int64_t>& positions,
              std::vector<int64_t>& labels);

   private:
    struct Word {
        int32_t begin;
        int32_t end;
    };

    void find_words(std::span<const int64_t> tokens, std::span<const std::pair<int32_t, int32_t>> segments);
    int32_t target(int32_t num_tokens) const;
    void choose_exactly(int32_t num_tokens, RandomStream& random);
    void choose_independently(RandomStream& random);
    void choose_spans(int32_t num_tokens, RandomStream& random);
    void corrupt(Word span, std::span<int64_t> tokens, RandomStream& random) const;

    const MaskRecipe& recipe_;
    std::vector<Word> words_;
    std::vector<Word> chosen_;
    std::vector<int32_t> free_;       // span masking: the words that are not yet chosen,
    std::vector<int32_t> free_slot_;  // and by word its index there, -1 once it is chosen
};

}  // namespace fastbert
