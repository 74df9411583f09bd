// Character classes of the pre-tokenizers and normalizers of byte-level BPE and Unigram, and grapheme clusters, as the
// reference tokenizer has them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "unicode/properties_tables.h"
#include "unicode/tables.h"

namespace fastbert::unicode {

// The classes \p{L}, \p{N} and \s of the expression that splits words in byte-level BPE.
enum class SplitClass : std::uint8_t { kLetter, kNumber, kSpace, kOther };

inline SplitClass split_class_of(char32_t point) {
    return static_cast<SplitClass>(properties_of(point) & kSplitClassMask);
}

// White space, without the separators U+001C to U+001F.
inline bool is_whitespace(char32_t point) { return record_of(point).flags & kWhitespace; }
inline bool is_punctuation(char32_t point) { return record_of(point).flags & kPunctuation; }
// Return true for a character that pre_tokenizers.Digits splits off: a digit or another number.
inline bool is_numeric(char32_t point) { return properties_of(point) & kNumeric; }
// Return true for a mark that normalizers.StripAccents removes, spacing marks included.
inline bool is_combining_mark(char32_t point) { return properties_of(point) & kCombiningMark; }

// The classes of Unicode Standard Annex 29, without regional indicators: they take 4 bytes, so that a cluster of two of
// them has more bytes than matter (see grapheme_size). The order is that of generate_properties.py.
enum class GraphemeClass : std::uint8_t {
    kOther,
    kControl,
    kPrepended,
    kLeading,
    kVowel,
    kTrailing,
    kOpenSyllable,
    kClosedSyllable,
    kPictographic,
    kConsonant,
    kSpacingMark,  // from here on, classes that join the character before them
    kExtender,
    kConjunctExtender,
    kLinker,
    kJoiner,
};

inline GraphemeClass grapheme_class_of(char32_t point) {
    return static_cast<GraphemeClass>((properties_of(point) & kGraphemeClassMask) >> kGraphemeClassShift);
}

// Return true if no cluster boundary lies before the character, unless it follows a control character.
inline bool joins_previous(char32_t point) { return grapheme_class_of(point) >= GraphemeClass::kSpacingMark; }
inline bool is_grapheme_control(char32_t point) { return grapheme_class_of(point) == GraphemeClass::kControl; }
inline bool is_prepended(char32_t point) { return grapheme_class_of(point) == GraphemeClass::kPrepended; }

// Return the bytes of the grapheme cluster at `at`, before `end`. This is all that normalizers.Precompiled depends on:
// it replaces a cluster of fewer than 6 bytes as a whole, and otherwise each character. The boundary between two
// regional indicators, of 4 bytes each, is one where there is none.
std::size_t grapheme_size(const std::uint8_t* at, const std::uint8_t* end);

}  // namespace fastbert::unicode
