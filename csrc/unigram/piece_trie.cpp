#include "unigram/piece_trie.h"

#include <algorithm>

#include "tokenizer/trie_keys.h"
#include "unicode/utf8.h"

namespace fastbert::unigram {

PieceTrie::PieceTrie(const std::vector<std::string>& pieces) {
    std::vector<tokenizer::TrieKey> keys;
    keys.reserve(pieces.size());
    for (const std::string& piece : pieces) keys.emplace_back(piece, static_cast<std::uint32_t>(keys.size()));
    sort_keys(keys);
    nodes_.resize(4 * kAlphabet);
    is_base_.resize(nodes_.size());
    // Keys that share the path to a node, of `depth` bytes. The deepest first, so that paths stay together.
    struct Range {
        std::uint32_t node;
        std::size_t begin, end, depth, chain;
    };
    std::vector<Range> stack{{kRoot, 0, keys.size(), 0, 0}};
    tokenizer::Branches branches;
    while (!stack.empty()) {
        Range range = stack.back();
        stack.pop_back();
        if (range.begin < range.end && keys[range.begin].text.size() == range.depth) {
            nodes_[range.node].tag |= (keys[range.begin].id + 1) << 8;
            ++range.begin;
            longest_chain_ = std::max(longest_chain_, ++range.chain);
        }
        branches.set(keys, range.begin, range.end, range.depth);
        const auto& [bytes, starts] = branches;
        if (bytes.empty()) continue;
        const std::uint32_t base = find_base(bytes);
        nodes_[range.node].base = base;
        for (std::size_t i = bytes.size(); i-- > 0;) {
            nodes_[base + bytes[i]].tag = bytes[i];
            stack.push_back({base + bytes[i], starts[i], starts[i + 1], range.depth + 1, range.chain});
        }
    }
    first_.resize(1 << 16);
    for (char32_t point = 0; point < first_.size(); ++point) {
        std::uint8_t encoded[unicode::kMaxUtf8Bytes];
        const std::size_t size = unicode::encode(point, encoded);
        std::uint32_t node = kRoot;
        for (std::size_t i = 0; i < size && node != kNoNode; ++i) node = child(node, encoded[i]);
        first_[point] = node;
    }
}

// A base that is no other node's, at which all children fall on free slots. The search moves on once it becomes long, or
// building would be quadratic.
std::uint32_t PieceTrie::find_base(const std::vector<std::uint8_t>& bytes) {
    constexpr std::size_t kLong = 32;
    while (first_free_ < nodes_.size() && nodes_[first_free_].tag != kFree) ++first_free_;
    for (std::size_t slot = first_free_;; ++slot) {
        const std::size_t base = slot - bytes[0];
        if (base + 2 * kAlphabet > nodes_.size()) {
            nodes_.resize(nodes_.size() * 2);
            is_base_.resize(nodes_.size());
        }
        if (is_base_[base]) continue;
        const auto is_free = [&](std::uint8_t byte) { return nodes_[base + byte].tag == kFree; };
        if (!std::all_of(bytes.begin(), bytes.end(), is_free)) continue;
        if (slot - first_free_ > kLong) first_free_ += kLong / 2;
        is_base_[base] = true;
        return static_cast<std::uint32_t>(base);
    }
}

}  // namespace fastbert::unigram
