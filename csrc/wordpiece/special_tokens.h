// Special tokens that stand in raw text, such as "[MASK]": found before any normalisation, leftmost and then longest.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wordpiece/trie.h"

namespace fastbert::wordpiece {

class SpecialTokens {
public:
    struct Match {
        std::size_t begin, end;
        std::int32_t id;  // Trie::kNone: no special token up to the end of the text
    };

    explicit SpecialTokens(const std::vector<std::pair<std::string, std::int32_t>>& tokens);

    // The first special token that begins at `from` or later.
    Match find(std::string_view text, std::size_t from) const;

private:
    std::size_t next_candidate(std::string_view text, std::size_t from) const;

    Trie trie_;
    std::array<bool, 256> begins_{};
    int only_first_byte_ = -1;  // the byte with which all tokens begin, if there is one
};

}  // namespace fastbert::wordpiece
