// The steps that change a text before it is split: those of the reference that the tokenizers of encoders use.
//
// A text is a list of characters, each with the index of its source character in the raw text, so that tokens can be
// traced back: what a step adds has the source of a neighbour, and what it deletes leaves no trace.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "normalizer/charsmap.h"
#include "tokenizer/added_tokens.h"
#include "unicode/normalization_forms.h"

namespace fastbert::normalizer {

using unicode::NormalizedCharacter;
using Characters = std::vector<NormalizedCharacter>;

// Canonical or compatibility forms.
struct FormStep {
    unicode::Form form;
};
struct LowercaseStep {};
struct StripAccentsStep {};
// Remove the white space at the ends.
struct StripStep {
    bool left, right;
};
// Put characters before a text, unless it is empty.
struct PrependStep {
    std::u32string text;
};
struct ReplaceStep {
    std::u32string pattern, content;
};
// Replace runs of some characters: of `least` or more of them, by the alternative that matches first.
struct ReplaceRunsStep {
    struct Run {
        std::u32string characters;
        bool white_space;  // all white space, too
        std::uint32_t least;
        bool single;  // no more than `least`
    };
    std::vector<Run> alternatives;
    std::u32string content;
};
struct CharsmapStep {
    std::shared_ptr<const Charsmap> map;
};
using Step = std::variant<FormStep, LowercaseStep, StripAccentsStep, StripStep, PrependStep, ReplaceStep,
                          ReplaceRunsStep, CharsmapStep>;

class Normalizer {
public:
    explicit Normalizer(std::vector<Step> steps);

    bool empty() const { return steps_.empty(); }
    const std::vector<Step>& steps() const { return steps_; }

    void apply(Characters& text) const;
    // The normalised text, each character with the index of its source in the raw one.
    Characters normalize(std::string_view text) const;

    // Return true only if apply() changes nothing in a text, or in one of several with a byte 0xFF between them;
    // conservative, at nearly the speed of memory for ASCII that no step changes.
    bool is_inert(std::string_view text) const;
    // Return true if every step is a form (NFC, ...).
    bool has_only_forms() const { return has_only_forms_; }
    // Return true if a key of a character map begins with the character.
    bool is_key_start(char32_t point) const { return changes(point) || (!steps_.empty() && begins_keys(point)); }
    // Return true if the normalizer changes a character whatever stands beside it, or may do so.
    bool changes(char32_t point) const { return !steps_.empty() && (changing_[point / 64] >> point % 64 & 1) != 0; }

private:
    void classify();
    void apply_from(std::size_t step, Characters& text) const;
    Characters map_characters(const Charsmap& map, std::string_view text) const;
    bool begins_keys(char32_t point) const { return (beginning_[point / 64] >> point % 64 & 1) != 0; }
    bool begins_key(std::string_view text) const;

    std::vector<Step> steps_;
    // By code point: one bit for what a step changes, or may change in company; one for what begins a key of several
    // characters of a character map.
    std::vector<std::uint64_t> changing_, beginning_;
    std::array<bool, 128> ascii_changes_{};
    bool keeps_ascii_ = true, has_only_forms_ = false;
};

// The added tokens that are searched in raw text, or with a normalizer those searched in normalised text, with normalised
// contents.
std::vector<tokenizer::AddedToken> searched(const std::vector<tokenizer::AddedToken>& tokens,
                                            const Normalizer* normalizer);

// A text as characters, and characters as bytes.
Characters characters_of(std::string_view text);
std::string bytes_of(const Characters& text);

}  // namespace fastbert::normalizer
