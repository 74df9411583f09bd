// A tokenized corpus as read-only views: shards of tokens, cut into sentences, cut into documents.
//
// Tokens and sentences are numbered through all shards. A document lies in one shard, so a run of its tokens is
// contiguous in memory.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace fastbert {

// Tokens as stored: 16 bits wide for vocabularies below 65,536, else 32.
struct TokenView {
    const void* data = nullptr;
    int64_t size = 0;
    bool wide = false;

    uint32_t operator[](int64_t index) const {
        return wide ? static_cast<const uint32_t*>(data)[index] : static_cast<const uint16_t*>(data)[index];
    }
};

struct TokenShard {
    TokenView tokens;                           // without data where the tokens are in another place
    std::span<const int64_t> sentence_offsets;  // in tokens: sentence s is [s], [s + 1]
    std::span<const uint8_t> continuation_bits = {};  // a bit per token, the lowest first: it continues a word
};

// Consecutive tokens of a corpus, by the number of the first.
struct TokenRun {
    int64_t begin = 0;
    TokenView tokens;
};

// A range of sentences, numbered through all shards, that is treated as one document.
struct DocumentRange {
    int64_t first_sentence = 0;
    int64_t last_sentence = 0;  // exclusive
};

class TokenCorpus {
   public:
    // Throws std::invalid_argument unless each shard's offsets rise strictly from 0 to its number of tokens.
    explicit TokenCorpus(std::vector<TokenShard> shards);

    // Some tokens of a corpus, for `copy` alone. Throws std::invalid_argument unless the runs are in order and disjoint.
    explicit TokenCorpus(std::span<const TokenRun> runs);

    int64_t num_tokens() const { return token_base_.back(); }
    int64_t num_sentences() const { return sentence_base_.back(); }

    // The first token of a sentence; of `num_sentences()`, the end of the corpus.
    int64_t sentence_begin(int64_t sentence) const {
        const size_t shard = shard_of(sentence_base_, sentence);
        return token_base_[shard] + shards_[shard].sentence_offsets[sentence - sentence_base_[shard]];
    }

    uint32_t token(int64_t position) const {
        const size_t shard = shard_of(token_base_, position);
        return shards_[shard].tokens[position - token_base_[shard]];
    }

    // Whether tokens have continuation bits, and that of one.
    bool has_continuation_bits() const { return !shards_.front().continuation_bits.empty(); }
    bool continues_word(int64_t position) const {
        const size_t shard = shard_of(token_base_, position);
        const int64_t local = position - token_base_[shard];
        return (shards_[shard].continuation_bits[local >> 3] >> (local & 7)) & 1;
    }

    // Throws std::invalid_argument unless the range holds a sentence and lies in one shard.
    void check(const DocumentRange& document) const;

    // Copy `length` tokens and return the largest; throws std::invalid_argument unless one shard holds them.
    uint32_t copy(int64_t begin, int64_t length, int64_t* out) const;

    // Add one to `counts[id]` for each token of the documents; ids beyond `counts` throw.
    void count(std::span<const DocumentRange> documents, std::span<int64_t> counts) const;

   private:
    // The last shard that begins at or before `index`; the end of the corpus belongs to the last shard.
    size_t shard_of(const std::vector<int64_t>& base, int64_t index) const {
        const auto next = std::upper_bound(base.begin() + 1, base.end() - 1, index);
        return static_cast<size_t>(next - base.begin()) - 1;
    }

    std::vector<TokenShard> shards_;
    std::vector<int64_t> token_base_;
    std::vector<int64_t> sentence_base_;
};

// The index of the first offset that breaks "rises strictly from 0 to `total`", or -1.
int64_t find_bad_offset(std::span<const int64_t> offsets, int64_t total);

// The index of the first token that is not below `vocab_size`, or -1.
int64_t find_bad_token(const TokenView& tokens, uint32_t vocab_size);

}  // namespace fastbert
