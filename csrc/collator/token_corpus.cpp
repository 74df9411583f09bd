#include "collator/token_corpus.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace fastbert {
namespace {

template <typename Token>
uint32_t widen(const Token* tokens, int64_t length, int64_t* out) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < length; ++i) {
        out[i] = tokens[i];
        largest = std::max<uint32_t>(largest, tokens[i]);
    }
    return largest;
}

template <typename Token>
int64_t find_at_least(const Token* tokens, int64_t size, uint32_t bound) {
    constexpr int64_t BLOCK = 4096;  // the maximum of a block vectorises, a search with an early exit does not
    for (int64_t begin = 0; begin < size; begin += BLOCK) {
        const int64_t end = std::min(size, begin + BLOCK);
        uint32_t largest = 0;
        for (int64_t i = begin; i < end; ++i) largest = std::max<uint32_t>(largest, tokens[i]);
        if (largest < bound) continue;
        return std::find_if(tokens + begin, tokens + end, [bound](Token token) { return token >= bound; }) - tokens;
    }
    return -1;
}

}  // namespace

int64_t find_bad_offset(std::span<const int64_t> offsets, int64_t total) {
    if (offsets.empty() || offsets.front() != 0) return 0;
    for (size_t i = 1; i < offsets.size(); ++i) {
        if (offsets[i] <= offsets[i - 1] || offsets[i] > total) return static_cast<int64_t>(i);
    }
    return offsets.back() == total ? -1 : static_cast<int64_t>(offsets.size()) - 1;
}

int64_t find_bad_token(const TokenView& tokens, uint32_t vocab_size) {
    return tokens.wide ? find_at_least(static_cast<const uint32_t*>(tokens.data), tokens.size, vocab_size)
                       : find_at_least(static_cast<const uint16_t*>(tokens.data), tokens.size, vocab_size);
}

TokenCorpus::TokenCorpus(std::vector<TokenShard> shards)
    : shards_(std::move(shards)), token_base_{0}, sentence_base_{0} {
    if (shards_.empty()) throw std::invalid_argument("a corpus needs at least one shard");
    for (size_t i = 0; i < shards_.size(); ++i) {
        const TokenShard& shard = shards_[i];
        const int64_t bad = find_bad_offset(shard.sentence_offsets, shard.tokens.size);
        if (bad >= 0) {
            throw std::invalid_argument("sentence offset " + std::to_string(bad) + " of shard " + std::to_string(i) +
                                        " does not rise from 0 to the number of tokens");
        }
        const auto bits = static_cast<int64_t>(shard.continuation_bits.size());
        if (shard.tokens.data == nullptr && bits == 0) {  // nothing would tell where words begin
            throw std::invalid_argument("shard " + std::to_string(i) + " has neither tokens nor continuation bits");
        }
        if (bits != (shards_[0].continuation_bits.empty() ? 0 : (shard.tokens.size + 7) / 8)) {
            throw std::invalid_argument("shard " + std::to_string(i) + " has " + std::to_string(bits) +
                                        " bytes of continuation bits for " + std::to_string(shard.tokens.size) + " tokens");
        }
        token_base_.push_back(token_base_.back() + shard.tokens.size);
        sentence_base_.push_back(sentence_base_.back() + static_cast<int64_t>(shard.sentence_offsets.size()) - 1);
    }
}

TokenCorpus::TokenCorpus(std::span<const TokenRun> runs) : sentence_base_{0} {
    int64_t end = 0;
    for (const TokenRun& run : runs) {
        if (run.begin < end) throw std::invalid_argument("runs of tokens must be in order and disjoint");
        end = run.begin + run.tokens.size;
        shards_.push_back({run.tokens, {}});
        token_base_.push_back(run.begin);
    }
    if (runs.empty()) throw std::invalid_argument("a corpus needs at least one run of tokens");
    token_base_.push_back(end);
    sentence_base_.resize(token_base_.size());
}

void TokenCorpus::check(const DocumentRange& document) const {
    const auto [first, last] = document;
    if (first < 0 || first >= last || last > num_sentences() ||
        shard_of(sentence_base_, first) != shard_of(sentence_base_, last - 1)) {
        throw std::invalid_argument("sentences [" + std::to_string(first) + ", " + std::to_string(last) +
                                    ") are not a document within one shard of the corpus of " +
                                    std::to_string(num_sentences()) + " sentences");
    }
}

uint32_t TokenCorpus::copy(int64_t begin, int64_t length, int64_t* out) const {
    const size_t shard = shard_of(token_base_, begin);
    const TokenView& tokens = shards_[shard].tokens;
    const int64_t local = begin - token_base_[shard];
    if (local < 0 || local + length > tokens.size || tokens.data == nullptr) {  // the plan was made for another corpus
        throw std::invalid_argument("tokens [" + std::to_string(begin) + ", " + std::to_string(begin + length) +
                                    ") are not in one shard of the corpus of " + std::to_string(num_tokens()) + " tokens");
    }
    return tokens.wide ? widen(static_cast<const uint32_t*>(tokens.data) + local, length, out)
                       : widen(static_cast<const uint16_t*>(tokens.data) + local, length, out);
}

void TokenCorpus::count(std::span<const DocumentRange> documents, std::span<int64_t> counts) const {
    for (const DocumentRange& document : documents) {
        check(document);
        const size_t shard = shard_of(sentence_base_, document.first_sentence);
        const TokenShard& source = shards_[shard];
        if (source.tokens.data == nullptr) throw std::invalid_argument("the corpus has no tokens to count");
        const int64_t begin = source.sentence_offsets[document.first_sentence - sentence_base_[shard]];
        const int64_t end = source.sentence_offsets[document.last_sentence - sentence_base_[shard]];
        for (int64_t i = begin; i < end; ++i) {
            const uint32_t token = source.tokens[i];
            if (token >= counts.size()) {
                throw std::invalid_argument("token " + std::to_string(token) + " is outside the vocabulary of " +
                                            std::to_string(counts.size()));
            }
            ++counts[token];
        }
    }
}

}  // namespace fastbert
