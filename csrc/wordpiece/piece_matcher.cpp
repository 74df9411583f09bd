#include "wordpiece/piece_matcher.h"

#include <utility>

#include "unicode/utf8.h"
#include "wordpiece/word_splitter.h"

namespace fastbert::wordpiece {
namespace {

constexpr std::string_view kContinuation = "##";
// Both kinds of tokens share a trie; these bytes, invalid in UTF-8, are prepended to them.
constexpr char kInitialMark = '\xFE', kContinuingMark = '\xFF';

// The tokens with their prefix bytes. A token longer than any looked-up word cannot match.
std::vector<std::string> marked(const std::vector<std::string>& tokens) {
    std::vector<std::string> keys(tokens.size());
    for (std::size_t id = 0; id < tokens.size(); ++id) {
        std::string_view token = tokens[id];
        const bool continuing = token.starts_with(kContinuation);
        if (continuing) token.remove_prefix(kContinuation.size());
        if (token.empty() || unicode::count_characters(token) > kMaxWordChars) continue;
        keys[id].reserve(token.size() + 1);
        keys[id] += continuing ? kContinuingMark : kInitialMark;
        keys[id] += token;
    }
    return keys;
}

Trie build_trie(const std::vector<std::string>& keys) {
    std::vector<std::pair<std::string_view, std::int32_t>> entries;
    for (std::size_t id = 0; id < keys.size(); ++id) {
        if (!keys[id].empty()) entries.emplace_back(keys[id], static_cast<std::int32_t>(id));
    }
    // Both roots always exist: each has a key that no word can reach.
    static constexpr std::string_view kAnchors[] = {"\xFE\xFF", "\xFF\xFF"};
    for (const std::string_view anchor : kAnchors) entries.emplace_back(anchor, 0);
    return Trie(std::move(entries));
}

}  // namespace

PieceMatcher::PieceMatcher(const std::vector<std::string>& tokens)
    : trie_(build_trie(marked(tokens))),
      initial_(trie_.child(Trie::kRoot, static_cast<std::uint8_t>(kInitialMark))),
      continuing_(trie_.child(Trie::kRoot, static_cast<std::uint8_t>(kContinuingMark))),
      failures_(trie_.size()) {
    // Breadth first, since a node's failure link depends on those of shorter paths. The trie's nodes store their
    // parents, so one pass groups them by parent, and a second one walks down from the roots.
    const auto size = static_cast<std::uint32_t>(trie_.size());
    std::vector<std::uint32_t> first_child(size, Trie::kNoNode), sibling(size, Trie::kNoNode);
    for (std::uint32_t node = size; node-- > 1;) {
        const std::uint32_t parent = trie_.parent(node);
        if (parent >= size) continue;
        sibling[node] = first_child[parent];
        first_child[parent] = node;
    }
    std::vector<std::uint32_t> queue{initial_, continuing_};
    for (std::size_t next = 0; next < queue.size(); ++next) {
        const std::uint32_t parent = queue[next];
        for (std::uint32_t node = first_child[parent]; node != Trie::kNoNode; node = sibling[node]) {
            link(parent, trie_.byte_of(node), node);
            queue.push_back(node);
        }
    }
}

void PieceMatcher::link(std::uint32_t parent, std::uint8_t byte, std::uint32_t node) {
    Failure& failure = failures_[node];
    failure.pops_begin = static_cast<std::uint32_t>(pops_.size());
    if (trie_.id(node) != Trie::kNone) {
        pops_.push_back(trie_.id(node));
        failure.node = continuing_;
        failure.pops_count = 1;
        return;
    }
    // The parent's pops, then follow the links until one of them has a child by this byte.
    for (std::uint32_t at = parent; failures_[at].node != Trie::kNoNode;) {
        const Failure through = failures_[at];
        for (std::uint32_t i = 0; i < through.pops_count; ++i) pops_.push_back(pops_[through.pops_begin + i]);
        at = through.node;
        if (const std::uint32_t next = trie_.child(at, byte); next != Trie::kNoNode) {
            failure.node = next;
            failure.pops_count = static_cast<std::uint32_t>(pops_.size()) - failure.pops_begin;
            return;
        }
    }
    pops_.resize(failure.pops_begin);
}

}  // namespace fastbert::wordpiece
