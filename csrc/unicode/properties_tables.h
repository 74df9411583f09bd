// Tables measured on the reference tokenizer by generate_properties.py, for properties.h and normalization_forms.cpp.
#pragma once
#include <cstdint>
#include <span>

#include "unicode/tables.h"

namespace fastbert::unicode {

// A code point's properties: bits 0-1 SplitClass, 4-7 GraphemeClass, 8-11 changed by a Form, and these.
enum Property : std::uint16_t {
    kSplitClassMask = 3,
    kCombiningMark = 1 << 2,
    kNumeric = 1 << 3,
    kGraphemeClassMask = 15 << 4,
    kChangesInForm = 1 << 8,  // << Form: it is a mark, decomposes, or may compose with the character before it
    kComposesWithPrevious = 1 << 12,
    kDecomposesCompatibly = 1 << 13,  // otherwise than canonically
};
inline constexpr unsigned kGraphemeClassShift = 4;

struct Composition {
    char32_t second, first, composed;
};

extern const char* const kPropertiesFingerprint;
// Two stages with blocks of 1 << kBlockBits code points.
extern const std::uint16_t kPropertyBlocks[];
extern const std::uint16_t kPropertiesOfBlock[];
// Offsets in kCompatibilitySequences, where a length and that many code points are stored; 0 if none.
extern const std::uint16_t kCompatibilityBlocks[];
extern const std::uint16_t kCompatibilityOfBlock[];
extern const char32_t kCompatibilitySequences[];
// Canonical compositions but for Hangul, ordered by the second character, then by the first.
extern const std::span<const Composition> kCompositions;

inline unsigned properties_of(char32_t point) {
    const unsigned block = kPropertyBlocks[point >> kBlockBits];
    return kPropertiesOfBlock[(block << kBlockBits) | (point & ((1u << kBlockBits) - 1))];
}

}  // namespace fastbert::unicode
