// From raw text to words: clean-up, Chinese characters, accents, lower case, white space and punctuation, in one pass.
//
// Text is split at ASCII white space and punctuation by a table, a byte at a time. The first deleted or non-ASCII character
// of a word switches to the general path, which stays until the next ASCII boundary.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "unicode/tables.h"
#include "unicode/utf8.h"

namespace fastbert::wordpiece {

struct NormalizerOptions {
    bool lower_case = true;
    bool strip_accents = true;
    bool chinese_chars = true;
};

// A word of more characters is unknown as a whole, so no more than these are stored.
inline constexpr std::size_t kMaxWordChars = 100;

// One normalised word. Sixteen bytes from `bytes` can always be read.
struct Word {
    static constexpr std::size_t kCapacity = kMaxWordChars * unicode::kMaxUtf8Bytes;

    std::array<std::uint8_t, kCapacity + 16> bytes{};
    std::size_t size = 0;   // bytes stored
    std::size_t chars = 0;  // characters seen; those beyond kMaxWordChars are not stored

    bool too_long() const { return chars > kMaxWordChars; }
    void clear() { size = chars = 0; }
    void add_ascii(std::uint8_t byte) {
        if (++chars <= kMaxWordChars) bytes[size++] = byte;
    }
    void add(char32_t point) {
        if (++chars <= kMaxWordChars) size += unicode::encode(point, bytes.data() + size);
    }
    std::string_view view() const { return {reinterpret_cast<const char*>(bytes.data()), size}; }
};

// The options, and what they make of each byte: computed once per tokenizer.
struct NormalizerTables {
    enum class Kind : std::uint8_t { kLetter, kSpace, kPunctuation, kDeleted, kBeyondAscii };

    explicit NormalizerTables(const NormalizerOptions& options) : options(options) {
        for (unsigned byte = 0; byte < 256; ++byte) {
            kinds[byte] = byte < 128 ? ascii_kind(byte) : Kind::kBeyondAscii;
            const bool lowered = options.lower_case && byte >= 'A' && byte <= 'Z';
            folded[byte] = static_cast<std::uint8_t>(kinds[byte] == Kind::kLetter ? byte + (lowered ? 32 : 0) : 0);
        }
    }

    NormalizerOptions options;
    std::array<Kind, 256> kinds;
    std::array<std::uint8_t, 256> folded;  // a letter as it goes into a word, 0 for everything else

private:
    static Kind ascii_kind(unsigned byte) {
        const unsigned flags = unicode::record_of(byte).flags;
        if (flags & unicode::kDeleted) return Kind::kDeleted;
        if (flags & (unicode::kCleanedToSpace | unicode::kWhitespace)) return Kind::kSpace;
        return flags & unicode::kPunctuation ? Kind::kPunctuation : Kind::kLetter;
    }
};

// Calls sink.word(const Word&) for each word in order; sink.full() true ends the text early.
// One splitter serves one thread; it keeps no state between calls.
template <class Sink>
class WordSplitter {
public:
    WordSplitter(const NormalizerTables& tables, Sink& sink) : tables_(tables), sink_(sink) {}

    void split(std::string_view text) {
        const auto* at = reinterpret_cast<const std::uint8_t*>(text.data());
        const auto* const end = at + text.size();
        while (at < end && !sink_.full()) {
            at = read_ascii_letters(at, end);
            if (at == end) break;
            switch (tables_.kinds[*at]) {
                case Kind::kSpace: finish_word(); ++at; break;
                case Kind::kPunctuation: finish_word(); isolate(*at++); break;
                default: at = split_general(at, end);
            }
        }
        if (!sink_.full()) finish_word();
        word_.clear();
    }

private:
    using Kind = NormalizerTables::Kind;

    // A surviving non-starter that waits for canonical reordering.
    struct Mark {
        std::uint8_t rank;
        char32_t point;
    };

    const std::uint8_t* read_ascii_letters(const std::uint8_t* at, const std::uint8_t* end) {
        // Within the first kMaxWordChars characters no check of the capacity is needed.
        const auto* const safe_end = at + std::min<std::size_t>(static_cast<std::size_t>(end - at), kMaxWordChars);
        std::uint8_t* to = word_.bytes.data();
        if (word_.chars == 0) {
            const auto* const start = at;
            while (at < safe_end && tables_.folded[*at] != 0) *to++ = tables_.folded[*at++];
            word_.size = word_.chars = static_cast<std::size_t>(at - start);
        }
        while (at < end && tables_.folded[*at] != 0) word_.add_ascii(tables_.folded[*at++]);
        return at;
    }

    // Any text, up to and including the next ASCII white space or punctuation.
    const std::uint8_t* split_general(const std::uint8_t* at, const std::uint8_t* end) {
        while (at < end) {
            const std::uint8_t byte = *at;
            switch (tables_.kinds[byte]) {
                case Kind::kLetter:
                    order_marks();
                    word_.add_ascii(tables_.folded[byte]);
                    ++at;
                    break;
                case Kind::kDeleted: ++at; break;
                case Kind::kSpace: order_marks(); return finish_word(), at + 1;
                case Kind::kPunctuation: order_marks(); finish_word(); return isolate(byte), at + 1;
                case Kind::kBeyondAscii:
                    clean(unicode::decode(at));
                    if (sink_.full()) return marks_.clear(), end;
            }
        }
        order_marks();
        return end;
    }

    // Deletes control characters, turns white space into boundaries and isolates Chinese characters.
    void clean(char32_t point) {
        const unicode::Record& record = unicode::record_of(point);
        if (record.flags & unicode::kDeleted) return;
        if (record.flags & unicode::kCleanedToSpace) {
            order_marks();
            finish_word();
        } else if ((record.flags & unicode::kChinese) && tables_.options.chinese_chars) {
            order_marks();
            finish_word();
            decompose(point, record);
            order_marks();
            finish_word();
        } else {
            decompose(point, record);
        }
    }

    void decompose(char32_t point, const unicode::Record& record) {
        if (!tables_.options.strip_accents) return add(point, record);
        if (!(record.flags & unicode::kDecomposes)) return strip(point, record);
        if (record.decomposition != 0) {
            for (const char32_t part : unicode::sequence_at(record.decomposition)) strip(part, unicode::record_of(part));
        } else {
            decompose_hangul(point);
        }
    }

    // Unicode standard, section 3.12: a syllable is leading + vowel + optional trailing consonant.
    void decompose_hangul(char32_t syllable) {
        constexpr char32_t kSyllables = 0xAC00, kLeading = 0x1100, kVowels = 0x1161, kTrailing = 0x11A7;
        constexpr char32_t kTrailingCount = 28, kPerLeading = 21 * kTrailingCount;
        const char32_t index = syllable - kSyllables;
        const char32_t trailing = index % kTrailingCount;
        for (const char32_t part : {kLeading + index / kPerLeading, kVowels + index % kPerLeading / kTrailingCount,
                                    kTrailing + trailing}) {
            if (part != kTrailing) strip(part, unicode::record_of(part));
        }
    }

    // Marks that stay although accents are stripped are put in canonical order, in which every starter, stripped or not,
    // is a barrier. Stripped marks need no place in that order: it is stable.
    void strip(char32_t point, const unicode::Record& record) {
        const bool stripped = record.flags & unicode::kStripped;
        if (record.rank == 0) {
            order_marks();
            if (!stripped) add(point, record);
        } else if (!stripped) {
            marks_.push_back({record.rank, point});
        }
    }

    void order_marks() {
        if (marks_.empty()) return;
        std::stable_sort(marks_.begin(), marks_.end(), [](const Mark& a, const Mark& b) { return a.rank < b.rank; });
        for (const Mark& mark : marks_) add(mark.point, unicode::record_of(mark.point));
        marks_.clear();
    }

    // Lower case never changes what kind of character it is (checked by generate.py).
    void add(char32_t point, const unicode::Record& record) {
        const bool punctuation = record.flags & unicode::kPunctuation;
        if (punctuation || (record.flags & unicode::kWhitespace)) finish_word();
        if (record.flags & unicode::kWhitespace) return;
        if (tables_.options.lower_case && (record.flags & unicode::kLowers)) {
            for (const char32_t part : unicode::sequence_at(record.lower)) word_.add(part);
        } else {
            word_.add(point);
        }
        if (punctuation) finish_word();
    }

    void isolate(std::uint8_t byte) {
        word_.add_ascii(byte);
        finish_word();
    }

    void finish_word() {
        if (word_.chars == 0) return;
        if (!sink_.full()) sink_.word(static_cast<const Word&>(word_));
        word_.clear();
    }

    const NormalizerTables& tables_;
    Sink& sink_;
    Word word_;
    std::vector<Mark> marks_;
};

}  // namespace fastbert::wordpiece
