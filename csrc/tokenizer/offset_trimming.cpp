#include "tokenizer/offset_trimming.h"

#include <algorithm>

#include "unicode/properties.h"
#include "unicode/utf8.h"

namespace fastbert::tokenizer {
namespace {

bool is_space(char32_t point) { return unicode::is_whitespace(point) || point == U'\u0120'; }

}  // namespace

Spaces spaces_of(std::string_view token) {
    const std::uint8_t* at = unicode::bytes_of(token);
    const std::uint8_t* const end = at + token.size();
    Spaces spaces;
    for (bool is_leading = true; at < end;) {
        const bool space = is_space(unicode::decode(at));
        is_leading = is_leading && space;
        spaces.leading += is_leading;
        spaces.trailing = space ? spaces.trailing + 1 : 0;
    }
    return spaces;
}

TokenSpaces::TokenSpaces(const std::vector<Spaces>& spaces) {
    if (std::none_of(spaces.begin(), spaces.end(), [](const Spaces& of) { return of.any(); })) return;
    for (const Spaces& of : spaces) {
        spaces_.push_back({static_cast<std::uint8_t>(std::min(of.leading, kMost)),
                           static_cast<std::uint8_t>(std::min(of.trailing, kMost))});
    }
}

void OffsetTrimmer::trim(TokenColumns& tokens, std::size_t first, std::size_t end) const {
    auto match = matches_.begin();
    for (std::size_t i = first; i < end; ++i) {
        while (match != matches_.end() && match->index < i) ++match;
        const bool is_match = match != matches_.end() && match->index == i;
        if (!is_match && spaces_.empty()) continue;
        const Spaces spaces = is_match ? match->spaces : spaces_[tokens.ids[i]];
        std::int32_t& from = tokens.begins[i];
        std::int32_t& to = tokens.ends[i];
        const auto leading = static_cast<std::int32_t>(spaces.leading);
        const auto trailing = static_cast<std::int32_t>(spaces.trailing);
        if (leading > 0) {
            // A single space counts as added by the prefix; several do not.
            const bool is_prefix = (i == first || from == 0) && options_.expects_prefix && leading == 1;
            if (!is_prefix) from = std::min(from + leading, to);
        }
        if (trailing > 0 && to >= trailing) to = std::max(to - trailing, from);
    }
}

}  // namespace fastbert::tokenizer
