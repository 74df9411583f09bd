// Unicode's normalization forms, lower case and stripping of accents, with the source of each character, as the
// reference tokenizer has them.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace fastbert::unicode {

struct NormalizedCharacter {
    char32_t point;
    std::uint32_t source;  // index of the character (code point) of the raw text that it was made of
};

enum class Form : std::uint8_t { kNfc, kNfd, kNfkc, kNfkd };

// Normalize in place. A composed character has the source of the first of its characters, an inserted one that of the
// character before it, and reordered marks keep the sequence of source positions.
void normalize(Form form, std::vector<NormalizedCharacter>& text);

// Return true if normalize() certainly changes nothing; text in NFC without marks is inert in NFC. Takes valid UTF-8.
bool is_inert(Form form, std::string_view text);

// The lower case of each character by itself.
void lowercase(std::vector<NormalizedCharacter>& text);

// Remove combining marks, spacing ones included (BERT keeps those). Precomposed characters are kept as they are, so
// normalize to NFD or NFKD first.
void strip_accents(std::vector<NormalizedCharacter>& text);

}  // namespace fastbert::unicode
