// Added tokens, recognised literally before text is split into words: "[MASK]", or those added by a user.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/byte_search.h"
#include "tokenizer/trie.h"

namespace fastbert::tokenizer {

struct AddedToken {
    std::string content;
    std::int32_t id = 0;
    bool special = false;
    bool lstrip = false, rstrip = false;  // white space before or behind belongs to the token
    bool single_word = false;             // not beside a letter, a digit or the like
    bool normalized = false;              // searched in normalised text, not in raw text
};

// Search a text from left to right for the leftmost longest token. The rules are those of the reference.
class AddedTokens {
public:
    struct Match {
        std::size_t begin, end;  // with the white space that belongs to it
        std::size_t next;        // where the search goes on: white space behind a match can begin another one
        std::int32_t id;         // Trie::kNone: no token up to the end of the text
    };

    // If contents are equal, the first token counts. With `split_special`, special tokens are treated as text.
    AddedTokens(std::vector<AddedToken> tokens, bool split_special);

    bool empty() const { return tokens_.empty(); }

    // Return true if the text contains any token; false means that find() finds none in any part of it.
    bool occurs_in(std::string_view text) const { return next_content(text, 0).id != Trie::kNone; }

    // Find the first token that begins at `from` or later, not counting white space before it. Bytes before `last_end`,
    // the end of the previous match, are not consumed again.
    Match find(std::string_view text, std::size_t from, std::size_t last_end) const;

private:
    struct Content {
        std::size_t begin, end;
        std::int32_t id;  // index of the token
    };

    Content next_content(std::string_view text, std::size_t from) const;
    std::size_t next_candidate(std::string_view text, std::size_t from) const;

    std::vector<AddedToken> tokens_;
    bool split_special_;
    Trie trie_;
    // The first bytes of tokens, those behind them, and the pairs of both. A token of one byte has all of them behind it.
    std::array<bool, 256> begins_{};
    ByteSet first_, second_;
    std::vector<std::uint64_t> pairs_;
    FindPair find_pair_ = fastest_find_pair();
    int only_first_byte_ = -1;  // the byte with which all tokens begin, if there is one
};

}  // namespace fastbert::tokenizer
