#include "tokenizer/added_tokens.h"

#include <algorithm>
#include <set>
#include <utility>

#include "unicode/tables.h"
#include "unicode/utf8.h"

namespace fastbert::tokenizer {
namespace {

using unicode::bytes_of;

char32_t first_character(std::string_view text) {
    const std::uint8_t* at = bytes_of(text);
    return unicode::decode(at);
}

std::string_view last_character(std::string_view text) {
    std::size_t begin = text.size() - 1;
    while ((static_cast<std::uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
    return text.substr(begin);
}

bool is_space(char32_t point) { return unicode::record_of(point).flags & unicode::kWhitespace; }

bool begins_with_word(std::string_view text) { return !text.empty() && unicode::is_word(first_character(text)); }
bool ends_with_word(std::string_view text) { return !text.empty() && unicode::is_word(first_character(last_character(text))); }

std::size_t without_trailing_space(std::string_view text) {
    while (!text.empty()) {
        const std::string_view last = last_character(text);
        if (!is_space(first_character(last))) break;
        text.remove_suffix(last.size());
    }
    return text.size();
}

std::size_t leading_space(std::string_view text) {
    const std::uint8_t* at = bytes_of(text);
    const std::uint8_t* const end = at + text.size();
    const std::uint8_t* behind = at;
    while (at < end && is_space(unicode::decode(at))) behind = at;
    return static_cast<std::size_t>(behind - bytes_of(text));
}

std::vector<AddedToken> distinct(std::vector<AddedToken> tokens, bool split_special) {
    // Split special tokens still hide overlapping tokens, so they are kept if there are others.
    const auto special = [](const AddedToken& token) { return token.special; };
    if (split_special && std::all_of(tokens.begin(), tokens.end(), special)) return {};
    std::set<std::string> seen;
    std::erase_if(tokens, [&](const AddedToken& token) { return !seen.insert(token.content).second; });
    return tokens;
}

std::vector<std::pair<std::string_view, std::int32_t>> numbered(const std::vector<AddedToken>& tokens) {
    std::vector<std::pair<std::string_view, std::int32_t>> keys;
    for (const AddedToken& token : tokens) keys.emplace_back(token.content, static_cast<std::int32_t>(keys.size()));
    return keys;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, bool split_special)
    : tokens_(distinct(std::move(tokens), split_special)), split_special_(split_special), trie_(numbered(tokens_)) {
    pairs_.resize(tokens_.empty() ? 0 : (1 << 16) / 64);
    for (const AddedToken& token : tokens_) {
        const auto first = static_cast<std::uint8_t>(token.content[0]);
        begins_[first] = true;
        first_.insert(first);
        const unsigned only = token.content.size() == 1 ? 256 : static_cast<std::uint8_t>(token.content[1]);
        for (unsigned second = only == 256 ? 0 : only; second <= std::min(only, 255U); ++second) {
            const unsigned pair = first << 8 | second;
            pairs_[pair / 64] |= std::uint64_t{1} << pair % 64;
            second_.insert(static_cast<std::uint8_t>(second));
        }
    }
    if (std::count(begins_.begin(), begins_.end(), true) == 1) {
        only_first_byte_ = static_cast<int>(std::find(begins_.begin(), begins_.end(), true) - begins_.begin());
    }
}

AddedTokens::Match AddedTokens::find(std::string_view text, std::size_t from, std::size_t last_end) const {
    // A rejected match is skipped as a whole: a shorter token within it is not searched.
    for (Content content = next_content(text, from); content.id != Trie::kNone;
         content = next_content(text, content.end)) {
        const AddedToken& token = tokens_[static_cast<std::size_t>(content.id)];
        if (split_special_ && token.special) continue;
        const std::string_view before = text.substr(0, content.begin), behind = text.substr(content.end);
        if (token.single_word && (ends_with_word(before) || begins_with_word(behind))) continue;
        std::size_t begin = content.begin;
        if (token.lstrip) begin = last_end + without_trailing_space(before.substr(std::min(last_end, before.size())));
        const std::size_t end = content.end + (token.rstrip ? leading_space(behind) : 0);
        // White space already consumed by the previous match is not consumed again.
        if (begin < end) return {begin, end, content.end, token.id};
    }
    return {text.size(), text.size(), text.size(), Trie::kNone};
}

AddedTokens::Content AddedTokens::next_content(std::string_view text, std::size_t from) const {
    for (std::size_t at = next_candidate(text, from); at < text.size(); at = next_candidate(text, at + 1)) {
        const Trie::Match match = trie_.longest_prefix(text.substr(at));
        if (match.id != Trie::kNone) return {at, at + match.size, match.id};
    }
    return {text.size(), text.size(), Trie::kNone};
}

std::size_t AddedTokens::next_candidate(std::string_view text, std::size_t from) const {
    if (tokens_.empty()) return text.size();
    // Nearly always, all tokens begin with "[": searching for one byte is far faster than trying every position.
    if (only_first_byte_ >= 0) return std::min(text.find(static_cast<char>(only_first_byte_), from), text.size());
    for (;; ++from) {
        from = find_pair_(bytes_of(text), from, text.size(), first_, second_);
        if (from + 1 >= text.size()) return from;
        const unsigned pair = static_cast<std::uint8_t>(text[from]) << 8 | static_cast<std::uint8_t>(text[from + 1]);
        if ((pairs_[pair / 64] >> pair % 64 & 1) != 0) return from;
    }
}

}  // namespace fastbert::tokenizer
