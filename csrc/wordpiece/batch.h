// Many texts at once, on several threads.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "common/buffer.h"
#include "wordpiece/tokenizer.h"

namespace fastbert::wordpiece {

// The tokens of texts: text i has those from offsets[i] to offsets[i + 1]. Without places, only ids.
struct Sequences {
    TokenColumns tokens;
    Buffer<std::int64_t> offsets;

    std::size_t count() const { return offsets.size() - 1; }
    std::int64_t length(std::size_t i) const { return offsets[i + 1] - offsets[i]; }
};

// Encodes each text, at most `limit` tokens of it; with places if `aligned`. The result does not depend on `threads`.
Sequences encode_batch(const Tokenizer& tokenizer, std::span<const std::string_view> texts, std::size_t limit,
                       bool aligned, unsigned threads);

// The ids of each text between two others; these count towards the limit.
Sequences encode_batch_wrapped(const Tokenizer& tokenizer, std::span<const std::string_view> texts, std::size_t limit,
                               std::int32_t begin_id, std::int32_t end_id, unsigned threads);

// From words that were encoded one by one to the texts that they make up: text i has the words from bounds[i] to
// bounds[i + 1]. Places stay those in the word, and its number in the text is the index of the word.
void join_words(Sequences& words, std::span<const std::int64_t> bounds);

}  // namespace fastbert::wordpiece
