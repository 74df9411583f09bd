#include "wordpiece/special_tokens.h"

#include <algorithm>

namespace fastbert::wordpiece {

SpecialTokens::SpecialTokens(const std::vector<std::pair<std::string, std::int32_t>>& tokens)
    : trie_(std::vector<std::pair<std::string_view, std::int32_t>>(tokens.begin(), tokens.end())) {
    for (const auto& [token, id] : tokens) begins_[static_cast<std::uint8_t>(token[0])] = true;
    if (std::count(begins_.begin(), begins_.end(), true) == 1) {
        only_first_byte_ = static_cast<int>(std::find(begins_.begin(), begins_.end(), true) - begins_.begin());
    }
}

SpecialTokens::Match SpecialTokens::find(std::string_view text, std::size_t from) const {
    for (std::size_t at = next_candidate(text, from); at < text.size(); at = next_candidate(text, at + 1)) {
        const Trie::Match match = trie_.longest_prefix(text.substr(at));
        if (match.id != Trie::kNone) return {at, at + match.size, match.id};
    }
    return {text.size(), text.size(), Trie::kNone};
}

std::size_t SpecialTokens::next_candidate(std::string_view text, std::size_t from) const {
    // Nearly always all of them begin with "[", and searching for one byte is far faster than a look at each.
    if (only_first_byte_ >= 0) return std::min(text.find(static_cast<char>(only_first_byte_), from), text.size());
    while (from < text.size() && !begins_[static_cast<std::uint8_t>(text[from])]) ++from;
    return from;
}

}  // namespace fastbert::wordpiece
