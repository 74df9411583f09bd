#include "wordpiece/token_needles.h"

#include <algorithm>

#include "unicode/tables.h"
#include "unicode/utf8.h"
#include "wordpiece/normalized_text.h"

namespace fastbert::wordpiece {
namespace {

// Many characters become letters; marks such as "<" are made of few.
bool is_mark(char character) {
    const auto byte = static_cast<unsigned char>(character);
    const bool is_letter = (byte | 0x20) >= 'a' && (byte | 0x20) <= 'z';
    return byte > ' ' && byte < 0x7F && !is_letter && !(byte >= '0' && byte <= '9');
}

}  // namespace

TokenNeedles::TokenNeedles(const std::vector<tokenizer::AddedToken>& tokens, const NormalizerOptions& options) {
    std::string marks;  // one of each token
    for (const tokenizer::AddedToken& token : tokens) {
        const auto mark = std::find_if(token.content.begin(), token.content.end(), is_mark);
        if (mark == token.content.end()) {
            in_any_text_ = true;
            return;
        }
        if (marks.find(*mark) == std::string::npos) marks.push_back(*mark);
    }
    if (marks.empty()) return;
    for (const char mark : marks) needles_.push_back(std::string(1, mark));
    // Characters are normalised one by one, but for the order of marks.
    std::uint8_t encoded[unicode::kMaxUtf8Bytes];
    for (char32_t point = 0x80; point < 0x110000; ++point) {
        if ((unicode::record_of(point).flags & (unicode::kDecomposes | unicode::kLowers)) == 0) continue;
        const std::string_view character(unicode::chars(encoded), unicode::encode(point, encoded));
        const NormalizedText normal(character, options);
        if (normal.bytes().find_first_of(marks) != std::string::npos) needles_.emplace_back(character);
    }
}

}  // namespace fastbert::wordpiece
