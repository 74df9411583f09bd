// Splits paragraphs into sentences by the rules of fastbert/data/sentences.py, which is the reference and holds the word
// lists. The properties of characters come from Python too, so both agree on every Unicode version.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace fastbert::corpus {

// Properties of a code point: those of Python's str methods and regular expressions, and membership in the character
// sets of sentences.py and corpus.py.
enum Property : std::uint16_t {
    kSpace = 1 << 0,
    kLower = 1 << 1,
    kUpper = 1 << 2,
    kAlpha = 1 << 3,
    kDigit = 1 << 4,
    kLetter = 1 << 5,      // [^\W\d_]
    kStop = 1 << 6,        // ends a sentence before white space
    kCjkStop = 1 << 7,     // ends a sentence before anything but
    kContinuing = 1 << 8,  // CJK stops and commas
    kCloser = 1 << 9,
    kOpener = 1 << 10,     // and dashes: skipped before the first word of a sentence
    kWordBreak = 1 << 11,  // begins the word before a stop
    kWordEnd = 1 << 12,    // is stripped from the first word of a sentence
    kCjk = 1 << 13,        // wrapped lines are joined without a space
};

// Words in lower case, ASCII.
struct WordLists {
    using Words = std::unordered_set<std::string>;
    Words titles, before_number, ordinary, abbreviations, starters;  // `ordinary`: those before numbers that are words too
};

class SentenceRules {
public:
    // `properties`: of each code point. Throws std::invalid_argument unless there are 0x110000 of them.
    SentenceRules(std::vector<std::uint16_t> properties, WordLists lists);

    // Append the sentences of a paragraph of valid UTF-8, stripped, in order.
    void split(std::string_view paragraph, std::vector<std::string_view>& sentences) const;

    std::uint16_t properties_of(char32_t point) const { return properties_[point]; }
    // Return the text without white space at its ends.
    std::string_view stripped(std::string_view text) const;
    // Return whether two wrapped lines, both not empty, are joined without a space.
    bool joins_without_space(std::string_view line, std::string_view follower) const;

private:
    struct NextWord;

    NextWord next_word(const std::uint8_t* at, const std::uint8_t* end) const;
    bool stop_is_final(const std::uint8_t* sentence, const std::uint8_t* stop, const NextWord& next) const;
    const std::uint8_t* skip(const std::uint8_t* at, const std::uint8_t* end, unsigned properties) const;
    bool is_dotted(const std::uint8_t* at, const std::uint8_t* end) const;

    std::vector<std::uint16_t> properties_;
    std::uint8_t may_stop_[256] = {};  // whether a byte may begin a stop
    WordLists lists_;
};

}  // namespace fastbert::corpus
