// RoBERTa's offsets: white space at the ends of a token does not count as text of the token.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace fastbert::tokenizer {

struct TrimOptions {
    bool enabled = false;
    bool expects_prefix = false;  // a single space at the start of a text counts as added, and is not left out
};

// The characters of white space at the ends of a token.
struct Spaces {
    std::size_t leading = 0, trailing = 0;

    bool any() const { return leading > 0 || trailing > 0; }
};

// Return those of a token as spelled. As in the reference, "Ġ" counts, which stands for a space in byte-level vocabularies.
Spaces spaces_of(std::string_view token);

// Those of a vocabulary, by id.
class TokenSpaces {
public:
    TokenSpaces() = default;
    explicit TokenSpaces(const std::vector<Spaces>& spaces);

    // No token has any.
    bool empty() const { return spaces_.empty(); }
    Spaces operator[](std::int32_t id) const {
        const auto& [leading, trailing] = spaces_[static_cast<std::size_t>(id)];
        return {leading, trailing};
    }

private:
    static constexpr std::size_t kMost = 255;  // more than any token has
    struct Counts {
        std::uint8_t leading, trailing;
    };

    std::vector<Counts> spaces_;
};

// Takes the white space of tokens out of their offsets, as the reference does once a row is complete. For readers, which
// pass on their note_match() and finish_row().
class OffsetTrimmer {
public:
    OffsetTrimmer(const TrimOptions& options, const TokenSpaces& spaces) : options_(options), spaces_(spaces) {}

    // An added token, whose white space is that of its spelling in the text.
    void note_match(std::size_t index, std::string_view spelling) {
        if (!options_.enabled) return;
        const Spaces spaces = spaces_of(spelling);
        if (spaces.any() || !spaces_.empty()) matches_.push_back({index, spaces});
    }

    // The tokens `first` to `end` are a row.
    void finish_row(TokenColumns& tokens, std::size_t first, std::size_t end) {
        if (matches_.empty() && spaces_.empty()) return;
        trim(tokens, first, end);
        matches_.clear();
    }

private:
    struct Match {
        std::size_t index;
        Spaces spaces;
    };

    void trim(TokenColumns& tokens, std::size_t first, std::size_t end) const;

    const TrimOptions& options_;
    const TokenSpaces& spaces_;
    std::vector<Match> matches_;
};

}  // namespace fastbert::tokenizer
