#include "corpus/sentence_rules.h"

#include <cstddef>
#include <optional>
#include <stdexcept>
#include <utility>

#include "unicode/utf8.h"

namespace fastbert::corpus {
namespace {

using unicode::bytes_of;
using unicode::decode;

constexpr std::size_t kCodePoints = 0x110000;
constexpr int kWordChars = 40;  // code points that are examined of a word
constexpr std::size_t kLongestListed = 16;  // bytes; a longer word is in no list
constexpr char32_t kKelvin = 0x212A;  // the only character outside ASCII whose lower case is inside

const std::uint8_t* previous(const std::uint8_t* at) {
    do --at;
    while ((*at & 0xC0) == 0x80);
    return at;
}

char32_t point_at(const std::uint8_t* at) { return decode(at); }

// Return the lower case of an ASCII word, or nothing for one that no list can hold.
std::optional<std::string> folded(const std::uint8_t* at, const std::uint8_t* end) {
    if (end - at > static_cast<std::ptrdiff_t>(3 * kLongestListed)) return std::nullopt;
    std::string word;
    while (at < end) {
        const char32_t point = decode(at);
        if (point < 0x80) {
            word.push_back(static_cast<char>(point >= 'A' && point <= 'Z' ? point + 32 : point));
        } else if (point == kKelvin) {
            word.push_back('k');
        } else {
            return std::nullopt;
        }
    }
    return word;
}

bool holds(const WordLists::Words& words, const std::optional<std::string>& word) { return word && words.contains(*word); }

std::string_view view(const std::uint8_t* begin, const std::uint8_t* end) {
    return {unicode::chars(begin), static_cast<std::size_t>(end - begin)};
}

}  // namespace

// The word that a sentence would begin with.
struct SentenceRules::NextWord {
    bool exists = false;      // and a sentence can begin with it
    bool is_starter = false;  // with a capital, it begins a sentence rather than continue a name
    bool is_digit = false;    // its first character
};

SentenceRules::SentenceRules(std::vector<std::uint16_t> properties, WordLists lists)
    : properties_(std::move(properties)), lists_(std::move(lists)) {
    if (properties_.size() != kCodePoints) throw std::invalid_argument("properties must have a value per code point");
    for (char32_t point = 0; point < kCodePoints; ++point) {
        if (!(properties_[point] & (kStop | kCjkStop))) continue;
        std::uint8_t encoded[unicode::kMaxUtf8Bytes];
        unicode::encode(point, encoded);
        may_stop_[encoded[0]] = 1;
    }
}

std::string_view SentenceRules::stripped(std::string_view text) const {
    const std::uint8_t* at = bytes_of(text);
    const std::uint8_t* end = at + text.size();
    at = skip(at, end, kSpace);
    while (end > at) {
        const std::uint8_t* const last = previous(end);
        if (!(properties_[point_at(last)] & kSpace)) break;
        end = last;
    }
    return view(at, end);
}

bool SentenceRules::joins_without_space(std::string_view line, std::string_view follower) const {
    const std::uint8_t* const last = previous(bytes_of(line) + line.size());
    return (properties_[point_at(last)] & kCjk) && (properties_[point_at(bytes_of(follower))] & kCjk);
}

const std::uint8_t* SentenceRules::skip(const std::uint8_t* at, const std::uint8_t* end, unsigned properties) const {
    while (at < end) {
        const std::uint8_t* next = at;
        if (!(properties_[decode(next)] & properties)) break;
        at = next;
    }
    return at;
}

SentenceRules::NextWord SentenceRules::next_word(const std::uint8_t* at, const std::uint8_t* end) const {
    at = skip(at, end, kOpener | kSpace);
    if (at == end) return {};
    const unsigned first = properties_[point_at(at)];
    if (first & kLower) return {};
    const std::uint8_t* stop = at;
    const std::uint8_t* kept = at;  // the end of the word without punctuation behind it
    for (int chars = 0; chars < kWordChars && stop < end; ++chars) {
        const std::uint8_t* next = stop;
        const unsigned properties = properties_[decode(next)];
        if (properties & kSpace) break;
        stop = next;
        if (!(properties & kWordEnd)) kept = stop;
    }
    return {true, holds(lists_.starters, folded(at, kept)), (first & kDigit) != 0};
}

bool SentenceRules::is_dotted(const std::uint8_t* at, const std::uint8_t* end) const {
    bool dotted = false;
    while (true) {
        const std::uint8_t* letters = at;
        int count = 0;
        while (letters < end && count < 3) {
            const std::uint8_t* next = letters;
            if (!(properties_[decode(next)] & kLetter)) break;
            letters = next;
            ++count;
        }
        if (count < 1 || count > 2) return false;
        if (letters == end) return dotted;
        if (*letters != '.') return false;
        dotted = true;
        at = letters + 1;
    }
}

bool SentenceRules::stop_is_final(const std::uint8_t* sentence, const std::uint8_t* stop, const NextWord& next) const {
    const std::uint8_t* const end = stop > sentence && stop[-1] == '\n' ? stop - 1 : stop;  // as $ of the reference
    const std::uint8_t* word = end;
    bool is_number = true, is_alpha = false, is_upper = false;
    int chars = 0;
    for (int left = kWordChars - static_cast<int>(stop - end); word > sentence && left > 0; --left) {
        const std::uint8_t* const before = previous(word);
        const unsigned properties = properties_[point_at(before)];
        if (properties & kWordBreak) break;
        word = before;
        ++chars;
        is_number = is_number && (properties & kDigit);
        is_alpha = properties & kAlpha;
        is_upper = properties & kUpper;
    }
    if (chars == 0) return true;
    const bool is_letter = chars == 1 && is_alpha;
    if (word == sentence && (is_number || is_letter)) return false;  // the number or letter of a list item
    const std::uint8_t* undotted = end;
    while (undotted > word && undotted[-1] == '.') --undotted;
    const std::optional<std::string> lower = folded(word, undotted);
    if (holds(lists_.before_number, lower)) {
        return !(next.is_digit || (!holds(lists_.ordinary, lower) && !next.is_starter));
    }
    if (holds(lists_.titles, lower)) return false;
    if (holds(lists_.abbreviations, lower) || is_dotted(word, end)) return next.is_starter;
    if (is_letter && (is_upper || next.is_digit)) return next.is_starter;
    return true;
}

void SentenceRules::split(std::string_view paragraph, std::vector<std::string_view>& sentences) const {
    const std::uint8_t* const begin = bytes_of(paragraph);
    const std::uint8_t* const end = begin + paragraph.size();
    const auto is_preceded = [&](const std::uint8_t* at, unsigned properties) {
        return at > begin && (properties_[point_at(previous(at))] & properties);
    };
    const std::uint8_t* sentence = begin;
    const std::uint8_t* at = begin;
    while (true) {
        while (at < end && !may_stop_[*at]) ++at;
        if (at == end) break;
        const std::uint8_t* const stop = at;
        const unsigned first = properties_[decode(at)];
        const std::uint8_t* close = nullptr;  // the end of stops and closers, if they can end a sentence
        const std::uint8_t* stops = nullptr;
        if ((first & kStop) && !is_preceded(stop, kStop)) {
            stops = skip(at, end, kStop);
            close = skip(stops, end, kCloser);
            if (close == end || !(properties_[point_at(close)] & kSpace)) close = nullptr;
        }
        if (close == nullptr && (first & kCjkStop) && !is_preceded(stop, kCjkStop)) {
            stops = skip(at, end, kCjkStop);
            close = skip(stops, end, kCloser);
            if (close == end || (properties_[point_at(close)] & kContinuing)) close = nullptr;
        }
        if (close == nullptr) continue;
        at = close;
        if (!(first & kCjkStop)) {
            const NextWord next = next_word(close, end);
            if (!next.exists) continue;
            if (*stop == '.' && stops == stop + 1 && !stop_is_final(sentence, stop, next)) continue;
        }
        sentences.push_back(stripped(view(sentence, close)));
        sentence = skip(close, end, kSpace);
    }
    const std::string_view rest = stripped(view(sentence, end));
    if (!rest.empty()) sentences.push_back(rest);
}

}  // namespace fastbert::corpus
