// Batch encoding on several threads.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "common/buffer.h"
#include "wordpiece/tokenizer.h"

namespace fastbert::wordpiece {

// The tokens of texts: those of text i are offsets[i] to offsets[i + 1]. Without alignment, only ids.
struct Sequences {
    TokenColumns tokens;
    Buffer<std::int64_t> offsets;

    std::size_t count() const { return offsets.size() - 1; }
    std::int64_t length(std::size_t i) const { return offsets[i + 1] - offsets[i]; }
};

// Encode each text, at most `limit` tokens of it; with alignment if `aligned`. The result does not depend on `threads`.
Sequences encode_batch(const Tokenizer& tokenizer, std::span<const std::string_view> texts, std::size_t limit,
                       bool aligned, unsigned threads);

// Encode the ids of each text between two others; these count towards the limit.
Sequences encode_batch_with_special_tokens(const Tokenizer& tokenizer, std::span<const std::string_view> texts,
                                           std::size_t limit, std::int32_t begin_id, std::int32_t end_id,
                                           unsigned threads);

// Group words that were encoded separately into texts: text i consists of words bounds[i] to bounds[i + 1]. Character
// offsets stay relative to the word; word indices become those within the text.
void join_words(Sequences& words, std::span<const std::int64_t> bounds);

}  // namespace fastbert::wordpiece
