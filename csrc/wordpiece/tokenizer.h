// BERT's tokenizer: raw text in, token ids out. Immutable after construction, so any number of threads can share one.
#pragma once
#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "wordpiece/special_tokens.h"
#include "wordpiece/trie.h"
#include "wordpiece/word_splitter.h"
#include "wordpiece/word_table.h"

namespace fastbert::wordpiece {

class Tokenizer {
public:
    static constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

    // `tokens`: the vocabulary, by id, without duplicates. `special_ids`: tokens recognised in raw text.
    Tokenizer(std::vector<std::string> tokens, const std::vector<std::int32_t>& special_ids, std::int32_t unknown_id,
              const NormalizerOptions& options);

    // Appends the ids of `text` (valid UTF-8), at most `limit` of them.
    void encode(std::string_view text, std::size_t limit, std::vector<std::int32_t>& ids) const;

    // The words of `text` as the vocabulary is looked up for them; special tokens are not recognised.
    template <class Sink>
    void split_words(std::string_view text, Sink& sink) const {
        WordSplitter<Sink>(tables_, sink).split(text);
    }

private:
    class Encoder;

    void encode_word(const Word& word, std::vector<std::int32_t>& ids) const;

    std::vector<std::string> tokens_;
    std::int32_t unknown_id_;
    NormalizerTables tables_;
    SpecialTokens specials_;
    WordTable whole_words_;
    Trie initial_;     // tokens that begin a word
    Trie continuing_;  // tokens that continue one, without their "##"
};

}  // namespace fastbert::wordpiece
