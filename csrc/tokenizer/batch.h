// Batch encoding on several threads.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "common/buffer.h"
#include "tokenizer/tokenizer.h"

namespace fastbert::tokenizer {

// The tokens of texts: those of text i are offsets[i] to offsets[i + 1]. Without alignment, only ids.
struct Sequences {
    TokenColumns tokens;
    Buffer<std::int64_t> offsets;

    std::size_t count() const { return offsets.size() - 1; }
    std::int64_t length(std::size_t i) const { return offsets[i + 1] - offsets[i]; }
};

// Encode the ids of each text, at most `limit` of it; wrapped in others, which count towards the limit. The result does
// not depend on `threads`.
Sequences encode_batch(const Tokenizer& tokenizer, std::span<const std::string_view> texts, std::size_t limit,
                       const Wrapping& wrapping, unsigned threads);

// Encode each text with alignment.
Sequences encode_batch_aligned(const Tokenizer& tokenizer, std::span<const std::string_view> texts, std::size_t limit,
                               unsigned threads);

// Group words that were encoded separately into texts: text i consists of words bounds[i] to bounds[i + 1]. Character
// offsets stay relative to the word; word indices become those within the text.
void join_words(Sequences& words, std::span<const std::int64_t> bounds);

}  // namespace fastbert::tokenizer
