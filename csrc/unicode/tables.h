// The properties of each Unicode scalar value used by BERT's tokenizer. The tables are generated from the reference
// tokenizer, which mixes Unicode versions, by generate.py.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

namespace fastbert::unicode {

// Deleted and CleanedToSpace: the result of text clean-up. Whitespace and Punctuation: word boundaries.
// Stripped: a mark that accent stripping removes after decomposition.
enum Flag : std::uint8_t {
    kDeleted = 1,
    kCleanedToSpace = 2,
    kWhitespace = 4,
    kPunctuation = 8,
    kChinese = 16,
    kStripped = 32,
    kLowers = 64,
    kDecomposes = 128,
};

struct Record {
    std::uint8_t flags;
    std::uint8_t rank;  // order of the canonical combining class; 0 for starters
    std::uint16_t decomposition;  // offset in kSequences; 0 if none (Hangul syllables decompose by formula)
    std::uint16_t lower;          // offset in kSequences; 0 if none
};

inline constexpr unsigned kBlockBits = 6;

extern const char* const kFingerprint;
extern const Record kRecords[];
extern const char32_t kSequences[];  // at each offset: a length, then that many code points
extern const std::uint16_t kBlocks[];
extern const std::uint16_t kRecordOfBlock[];
// Ranges of characters that make words: first, last, first, last, ... in rising order.
extern const std::span<const char32_t> kWordRanges;

inline const Record& record_of(char32_t point) {
    const unsigned block = kBlocks[point >> kBlockBits];
    return kRecords[kRecordOfBlock[(block << kBlockBits) | (point & ((1u << kBlockBits) - 1))]];
}

inline std::span<const char32_t> sequence_at(std::uint16_t offset) {
    return {kSequences + offset + 1, kSequences[offset]};
}

// Return true for a letter, mark, digit or connector, which may not be adjacent to a single-word token.
inline bool is_word(char32_t point) {
    const auto next = std::upper_bound(kWordRanges.begin(), kWordRanges.end(), point);
    const auto index = next - kWordRanges.begin();
    return index % 2 != 0 || (index > 0 && *(next - 1) == point);
}

}  // namespace fastbert::unicode
