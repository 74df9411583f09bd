// Canonical order of marks, and the arithmetic of Hangul (Unicode standard, sections 3.11 and 3.12).
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace fastbert::unicode {

// Order marks by `rank`. Stable. A letter rarely has more than two marks, and std::stable_sort allocates memory even
// for few.
template <class Iterator>
void order_marks(Iterator begin, Iterator end) {
    constexpr std::ptrdiff_t kFew = 16;
    const auto is_before = [](const auto& a, const auto& b) { return a.rank < b.rank; };
    if (end - begin > kFew) {
        std::stable_sort(begin, end, is_before);
        return;
    }
    for (auto next = begin; next != end; ++next) {
        std::rotate(std::upper_bound(begin, next, *next, is_before), next, std::next(next));
    }
}

namespace hangul {

inline constexpr char32_t kSyllables = 0xAC00, kLeading = 0x1100, kVowels = 0x1161, kTrailing = 0x11A7;
inline constexpr char32_t kLeadingCount = 19, kVowelCount = 21, kTrailingCount = 28;  // no consonant is the first
inline constexpr char32_t kPerLeading = kVowelCount * kTrailingCount, kSyllableCount = kLeadingCount * kPerLeading;

// Call add(consonant), add(vowel) and, if there is one, add(trailing consonant).
template <class Add>
void decompose(char32_t syllable, Add add) {
    const char32_t index = syllable - kSyllables, trailing = index % kTrailingCount;
    add(kLeading + index / kPerLeading);
    add(kVowels + index % kPerLeading / kTrailingCount);
    if (trailing != 0) add(kTrailing + trailing);
}

// Return 0 if the characters do not compose.
inline char32_t compose(char32_t first, char32_t second) {
    // Differences below zero wrap around to large numbers.
    const char32_t leading = first - kLeading, vowel = second - kVowels;
    if (leading < kLeadingCount && vowel < kVowelCount) {
        return kSyllables + leading * kPerLeading + vowel * kTrailingCount;
    }
    const char32_t syllable = first - kSyllables, trailing = second - kTrailing;
    const bool open = syllable < kSyllableCount && syllable % kTrailingCount == 0;
    return open && trailing > 0 && trailing < kTrailingCount ? first + trailing : 0;
}

}  // namespace hangul
}  // namespace fastbert::unicode
