// The masked-language-model corruption of one sequence (BERT paper, section 3.1, task 1, and appendix A.1).
//
// Maskable tokens are determined by position: all but the [CLS] and [SEP] that the collator inserts,
// including a "[SEP]" spelled in the text. Of the chosen tokens, 80 % become [MASK], 10 % a random token and 10 %
// are unchanged by default, drawn independently.
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

struct MaskRecipe {
    double probability = 0.15;
    // True: exactly max(1, round(probability * n)) of n tokens, as the released recipe does (nothing with probability
    // 0). False: each token, or word, by its own draw, so that a sequence may have none.
    bool exact_count = true;
    // True: all pieces of a word are chosen together. With exact_count, words are taken in random order and one that
    // would exceed the count is passed over, as in the released recipe; but at least one word is always chosen.
    bool whole_word = false;
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
    void choose_exactly(int32_t num_tokens, RandomStream& random);
    void choose_independently(RandomStream& random);

    const MaskRecipe& recipe_;
    std::vector<Word> words_;
    std::vector<Word> chosen_;
};

}  // namespace fastbert
