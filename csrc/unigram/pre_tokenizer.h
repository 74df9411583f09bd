// The steps that split a normalised text into words: those of the reference that the tokenizers of encoders use beside
// the byte-level expression.
#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "normalizer/normalizer.h"

namespace fastbert::unigram {

using normalizer::Characters;

// What becomes of the characters at which a text is split.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// At white space, which is removed.
struct WhitespaceSplitStep {};
// At spaces, which a visible character replaces; the character is also put before a text that begins without it.
struct MetaspaceStep {
    enum class Prepend { kAlways, kFirst, kNever };  // kFirst: only at the beginning of the raw text
    char32_t replacement;
    Prepend prepend;
    bool split;
};
struct DigitsStep {
    bool individual;
};
struct PunctuationStep {
    Behavior behavior;
};
// At a string.
struct SplitStep {
    std::u32string pattern;
    Behavior behavior;
    bool invert;
};
using SplittingStep = std::variant<WhitespaceSplitStep, MetaspaceStep, DigitsStep, PunctuationStep, SplitStep>;

// A part of a text; `at_start` if it begins where the raw text does.
struct Word {
    Characters text;
    bool at_start;
};

class PreTokenizer {
public:
    explicit PreTokenizer(std::vector<SplittingStep> steps) : steps_(std::move(steps)) {}

    const std::vector<SplittingStep>& steps() const { return steps_; }
    // Split each word, which become those of the last step; none is empty.
    void split(std::vector<Word>& words) const;

private:
    std::vector<SplittingStep> steps_;
};

}  // namespace fastbert::unigram
