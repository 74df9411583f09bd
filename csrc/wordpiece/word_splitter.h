// From raw text to words: clean-up, Chinese characters, accents, lower case, white space and punctuation, in one pass.
//
// Text is split at ASCII white space and punctuation by a table, one byte at a time. The first deleted or non-ASCII
// character of a word switches to the general path, until the next ASCII boundary.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "unicode/canonical.h"
#include "unicode/tables.h"
#include "unicode/utf8.h"

namespace fastbert::wordpiece {

struct NormalizerOptions {
    bool lower_case = true;
    bool strip_accents = true;
    bool chinese_chars = true;
};

// A longer word is unknown as a whole, so no more characters than these are stored.
inline constexpr std::size_t kMaxWordChars = 100;

// One normalised word.
struct Word {
    std::array<std::uint8_t, kMaxWordChars * unicode::kMaxUtf8Bytes> bytes;  // not initialised
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

// A word with alignment: for each of its characters the index of its source character (code point) in the text. The
// rules are the reference's: what a decomposition or a change of case adds to the first character has the same source;
// deleted characters leave no trace; reordered marks keep the sequence of source positions.
struct AlignedWord : Word {
    std::array<std::uint32_t, kMaxWordChars> sources;  // not initialised
    std::uint32_t last_source = 0;  // of the last character seen, stored or not

    void add_ascii(std::uint8_t byte, std::uint32_t source) {
        note(source);
        Word::add_ascii(byte);
    }
    void add(char32_t point, std::uint32_t source) {
        note(source);
        Word::add(point);
    }

private:
    void note(std::uint32_t source) {
        if (chars < kMaxWordChars) sources[chars] = source;
        last_source = source;
    }
};

// The options and their effect on each byte, computed once per tokenizer.
struct NormalizerTables {
    enum class Kind : std::uint8_t { kLetter, kSpace, kPunctuation, kDeleted, kBeyondAscii };

    explicit NormalizerTables(const NormalizerOptions& options) : options(options) {
        for (unsigned byte = 0; byte < 256; ++byte) {
            kinds[byte] = byte < 128 ? ascii_kind(byte) : Kind::kBeyondAscii;
            const bool lowered = options.lower_case && byte >= 'A' && byte <= 'Z';
            folded[byte] = static_cast<std::uint8_t>(kinds[byte] == Kind::kLetter ? byte + (lowered ? 32 : 0) : 0);
        }
    }

    // True only if the splitter yields `text` unchanged, as a single word.
    bool keeps_as_word(std::string_view text) const {
        unsigned changing = unicode::kDeleted | unicode::kCleanedToSpace | unicode::kWhitespace | unicode::kPunctuation;
        if (options.chinese_chars) changing |= unicode::kChinese;
        if (options.strip_accents) changing |= unicode::kStripped | unicode::kDecomposes;
        if (options.lower_case) changing |= unicode::kLowers;
        const auto* at = reinterpret_cast<const std::uint8_t*>(text.data());
        const auto* const end = at + text.size();
        std::size_t characters = 0;
        while (at < end) {
            const unicode::Record& record = unicode::record_of(unicode::decode(at));
            const bool waits_for_order = options.strip_accents && record.rank != 0;
            if ((record.flags & changing) != 0 || waits_for_order || ++characters > kMaxWordChars) return false;
        }
        return characters > 0;
    }

    // ASCII white space or punctuation.
    bool is_boundary(std::uint8_t byte) const {
        return kinds[byte] == Kind::kSpace || kinds[byte] == Kind::kPunctuation;
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

// Calls sink.word(const Word&) for each word in order; a true sink.full() ends the text early. With kAligned the words
// are AlignedWords. A splitter is not thread-safe; it keeps no state between calls.
template <class Sink, bool kAligned = false>
class WordSplitter {
public:
    WordSplitter(const NormalizerTables& tables, Sink& sink) : tables_(tables), sink_(sink) {}

    void split(std::string_view text) {
        const auto* at = reinterpret_cast<const std::uint8_t*>(text.data());
        const auto* const end = at + text.size();
        source_ = 0;
        while (at < end && !sink_.full()) {
            if constexpr (!kAligned) {
                at = read_ascii_letters(at, end);
                if (at == end) break;
                switch (tables_.kinds[*at]) {
                    case Kind::kSpace: finish_word(); ++at; continue;
                    case Kind::kPunctuation: finish_word(); isolate(*at++); continue;
                    default: break;
                }
            }
            at = split_general(at, end);
        }
        if (!sink_.full()) finish_word();
        word_.clear();
    }

private:
    using Kind = NormalizerTables::Kind;

    // A non-starter awaiting canonical reordering.
    struct Mark {
        std::uint8_t rank;
        bool stripped;
        bool inserted;  // by a decomposition, behind its first character
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
        while (at < end && tables_.folded[*at] != 0) append_ascii(tables_.folded[*at++]);
        return at;
    }

    // Process text up to and including the next ASCII white space or punctuation. `source_` counts the characters.
    const std::uint8_t* split_general(const std::uint8_t* at, const std::uint8_t* end) {
        for (; at < end; ++source_) {
            const std::uint8_t byte = *at;
            switch (tables_.kinds[byte]) {
                case Kind::kLetter:
                    start_character();
                    append_ascii(tables_.folded[byte]);
                    ++at;
                    break;
                case Kind::kDeleted: ++at; break;
                case Kind::kSpace: start_character(); finish_word(); ++source_; return at + 1;
                case Kind::kPunctuation:
                    start_character();
                    finish_word();
                    isolate(byte);
                    ++source_;
                    return at + 1;
                case Kind::kBeyondAscii:
                    clean(unicode::decode(at));
                    if (sink_.full()) return clear_marks(), end;
            }
        }
        order_marks();
        return end;
    }

    // Delete control characters, turn white space into boundaries and isolate Chinese characters.
    void clean(char32_t point) {
        const unicode::Record& record = unicode::record_of(point);
        if (record.flags & unicode::kDeleted) return;
        if (record.flags & unicode::kCleanedToSpace) {
            start_character();
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
        if (!tables_.options.strip_accents) return add(point, record, source_);
        if (!(record.flags & unicode::kDecomposes)) return strip(point, record, false);
        if (record.decomposition != 0) {
            bool inserted = false;
            for (const char32_t part : unicode::sequence_at(record.decomposition)) {
                strip(part, unicode::record_of(part), inserted);
                inserted = true;
            }
        } else {
            unicode::hangul::decompose(
                point, [this](char32_t part) { strip(part, unicode::record_of(part), true); });
        }
    }

    // Remaining marks are put in canonical order, of which every starter, stripped or not, is a barrier. The order is
    // stable, so stripped marks need not take part in it, unless alignment is requested.
    void strip(char32_t point, const unicode::Record& record, bool inserted) {
        const bool stripped = record.flags & unicode::kStripped;
        if (record.rank == 0) {
            start_character();
            if (!stripped) add(point, record, source_);
        } else if (kAligned || !stripped) {
            marks_.push_back({record.rank, stripped, inserted, point});
            if (kAligned && !inserted) mark_sources_.push_back(source_);
        }
    }

    // A starter ends the marks before it, and is the source of marks inserted after it.
    void start_character() {
        order_marks();
        if constexpr (kAligned) starter_source_ = source_;
    }

    void order_marks() {
        if (marks_.empty()) return;
        unicode::order_marks(marks_.begin(), marks_.end());
        std::uint32_t source = starter_source_;
        std::size_t next_source = 0;
        for (const Mark& mark : marks_) {
            if (kAligned && !mark.inserted) source = mark_sources_[next_source++];
            if (!mark.stripped) add(mark.point, unicode::record_of(mark.point), source);
        }
        clear_marks();
    }

    void clear_marks() {
        marks_.clear();
        mark_sources_.clear();
    }

    // Lower-casing never changes the class of a character (checked by generate.py).
    void add(char32_t point, const unicode::Record& record, std::uint32_t source) {
        const bool punctuation = record.flags & unicode::kPunctuation;
        if (punctuation || (record.flags & unicode::kWhitespace)) finish_word();
        if (record.flags & unicode::kWhitespace) return;
        if (tables_.options.lower_case && (record.flags & unicode::kLowers)) {
            for (const char32_t part : unicode::sequence_at(record.lower)) append(part, source);
        } else {
            append(point, source);
        }
        if (punctuation) finish_word();
    }

    void append(char32_t point, [[maybe_unused]] std::uint32_t source) {
        if constexpr (kAligned) {
            word_.add(point, source);
        } else {
            word_.add(point);
        }
    }

    void append_ascii(std::uint8_t byte) {
        if constexpr (kAligned) {
            word_.add_ascii(byte, source_);
        } else {
            word_.add_ascii(byte);
        }
    }

    void isolate(std::uint8_t byte) {
        append_ascii(byte);
        finish_word();
    }

    void finish_word() {
        if (word_.chars == 0) return;
        if (!sink_.full()) sink_.word(std::as_const(word_));
        word_.clear();
    }

    const NormalizerTables& tables_;
    Sink& sink_;
    std::conditional_t<kAligned, AlignedWord, Word> word_;
    std::vector<Mark> marks_;
    std::uint32_t source_ = 0;          // the character being read
    std::uint32_t starter_source_ = 0;  // the last starter
    std::vector<std::uint32_t> mark_sources_;  // of marks_ that were not inserted, in the order of the text
};

}  // namespace fastbert::wordpiece
