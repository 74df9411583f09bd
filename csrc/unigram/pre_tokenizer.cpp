#include "unigram/pre_tokenizer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "unicode/properties.h"

namespace fastbert::unigram {
namespace {

// A range of characters, and whether it is one to split at.
struct Range {
    std::size_t begin, end;
    bool matches;
};

// Each matching character by itself, and the text between them.
template <class Matches>
std::vector<Range> single_matches(const Characters& text, Matches matches) {
    std::vector<Range> ranges;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (matches(text[i].point)) {
            ranges.push_back({i, i + 1, true});
        } else if (ranges.empty() || ranges.back().matches) {
            ranges.push_back({i, i + 1, false});
        } else {
            ranges.back().end = i + 1;
        }
    }
    return ranges;
}

std::vector<Range> string_matches(const Characters& text, const std::u32string& pattern) {
    const auto is_same = [](const unicode::NormalizedCharacter& c, char32_t point) { return c.point == point; };
    std::vector<Range> ranges;
    for (auto at = text.begin(); at != text.end();) {
        const auto match = std::search(at, text.end(), pattern.begin(), pattern.end(), is_same);
        const auto offset = [&](auto position) { return static_cast<std::size_t>(position - text.begin()); };
        if (match != at) ranges.push_back({offset(at), offset(match), false});
        if (match == text.end()) break;
        at = match + static_cast<std::ptrdiff_t>(pattern.size());
        ranges.push_back({offset(match), offset(at), true});
    }
    return ranges;
}

std::vector<Range> arrange(std::vector<Range> ranges, Behavior behavior) {
    std::vector<Range> result;
    switch (behavior) {
        case Behavior::kIsolated: return ranges;
        case Behavior::kRemoved: std::erase_if(ranges, [](const Range& range) { return range.matches; }); return ranges;
        case Behavior::kContiguous:
            for (const Range& range : ranges) {
                if (!result.empty() && result.back().matches == range.matches) {
                    result.back().end = range.end;
                } else {
                    result.push_back(range);
                }
            }
            return result;
        case Behavior::kMergedWithPrevious: {
            bool after_match = false;
            for (const Range& range : ranges) {
                if (range.matches && !after_match && !result.empty()) {
                    result.back().end = range.end;
                } else {
                    result.push_back(range);
                }
                after_match = range.matches;
            }
            return result;
        }
        case Behavior::kMergedWithNext: {
            bool before_match = false;
            for (auto range = ranges.rbegin(); range != ranges.rend(); ++range) {
                if (range->matches && !before_match && !result.empty()) {
                    result.back().begin = range->begin;
                } else {
                    result.push_back(*range);
                }
                before_match = range->matches;
            }
            std::reverse(result.begin(), result.end());
            return result;
        }
    }
    return result;
}

void append_parts(const Word& word, const std::vector<Range>& ranges, std::vector<Word>& to) {
    for (const Range& range : ranges) {
        const auto at = [&](std::size_t i) { return word.text.begin() + static_cast<std::ptrdiff_t>(i); };
        Word part{{at(range.begin), at(range.end)}, false};
        if (part.text.empty()) continue;
        part.at_start = word.at_start && part.text.front().source == 0;
        to.push_back(std::move(part));
    }
}

struct Splitter {
    const Word& word;
    std::vector<Word>& to;

    void operator()(const WhitespaceSplitStep&) const {
        append_parts(word, arrange(single_matches(word.text, unicode::is_whitespace), Behavior::kRemoved), to);
    }
    void operator()(const MetaspaceStep& step) const {
        using Prepend = MetaspaceStep::Prepend;
        Word changed = word;
        for (auto& character : changed.text) {
            if (character.point == ' ') character.point = step.replacement;
        }
        const bool prepends = step.prepend == Prepend::kAlways || (step.prepend == Prepend::kFirst && word.at_start);
        if (prepends && changed.text.front().point != step.replacement) {
            changed.text.insert(changed.text.begin(), {step.replacement, changed.text.front().source});
        }
        if (!step.split) {
            to.push_back(std::move(changed));
            return;
        }
        const auto is_replacement = [&](char32_t point) { return point == step.replacement; };
        append_parts(changed, arrange(single_matches(changed.text, is_replacement), Behavior::kMergedWithNext), to);
    }
    void operator()(const DigitsStep& step) const {
        const Behavior behavior = step.individual ? Behavior::kIsolated : Behavior::kContiguous;
        append_parts(word, arrange(single_matches(word.text, unicode::is_numeric), behavior), to);
    }
    void operator()(const PunctuationStep& step) const {
        append_parts(word, arrange(single_matches(word.text, unicode::is_punctuation), step.behavior), to);
    }
    void operator()(const SplitStep& step) const {
        std::vector<Range> ranges = string_matches(word.text, step.pattern);
        if (step.invert) {
            for (Range& range : ranges) range.matches = !range.matches;
        }
        append_parts(word, arrange(std::move(ranges), step.behavior), to);
    }
};

}  // namespace

void PreTokenizer::split(std::vector<Word>& words) const {
    for (const SplittingStep& step : steps_) {
        std::vector<Word> parts;
        for (const Word& word : words) {
            if (!word.text.empty()) std::visit(Splitter{word, parts}, step);
        }
        words = std::move(parts);
    }
    std::erase_if(words, [](const Word& word) { return word.text.empty(); });
}

}  // namespace fastbert::unigram
