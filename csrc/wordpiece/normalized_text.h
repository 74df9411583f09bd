// The normalised text as a whole, for added tokens searched in it: step by step like the reference, slowly.
// WordSplitter yields the same words in one pass, without the text between them.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "unicode/normalization_forms.h"
#include "wordpiece/word_splitter.h"

namespace fastbert::wordpiece {

using unicode::NormalizedCharacter;

class NormalizedText {
public:
    NormalizedText(std::string_view raw, const NormalizerOptions& options);

    // UTF-8.
    const std::string& bytes() const { return bytes_; }
    // Return the characters of a range of bytes().
    std::span<const NormalizedCharacter> characters(std::size_t begin, std::size_t end) const;

private:
    std::vector<NormalizedCharacter> characters_;
    std::string bytes_;
    std::vector<std::size_t> offsets_;  // where each character begins in bytes_
};

}  // namespace fastbert::wordpiece
