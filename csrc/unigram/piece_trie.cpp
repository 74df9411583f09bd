#include "unigram/piece_trie.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "unicode/utf8.h"

namespace fastbert::unigram {
namespace {

struct Key {
    std::uint64_t prefix;  // the first eight bytes, in the order of the texts
    std::string_view text;
    std::uint32_t id;
};

std::vector<Key> sorted_keys(const std::vector<std::string>& pieces) {
    std::vector<Key> keys;
    keys.reserve(pieces.size());
    for (const std::string& piece : pieces) {
        std::uint64_t prefix = 0;
        for (std::size_t i = 0; i < 8; ++i) {
            prefix = prefix << 8 | (i < piece.size() ? static_cast<std::uint8_t>(piece[i]) : 0);
        }
        keys.push_back({prefix, piece, static_cast<std::uint32_t>(keys.size())});
    }
    std::sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) {
        return a.prefix != b.prefix ? a.prefix < b.prefix : a.text < b.text;
    });
    return keys;
}

}  // namespace

PieceTrie::PieceTrie(const std::vector<std::string>& pieces) {
    const std::vector<Key> keys = sorted_keys(pieces);
    nodes_.resize(4 * kAlphabet);
    is_base_.resize(nodes_.size());
    // Keys that share the path to a node, of `depth` bytes. The deepest first, so that paths stay together.
    struct Range {
        std::uint32_t node;
        std::size_t begin, end, depth, chain;
    };
    std::vector<Range> stack{{kRoot, 0, keys.size(), 0, 0}};
    std::vector<std::uint8_t> bytes;
    std::vector<std::size_t> starts;
    while (!stack.empty()) {
        Range range = stack.back();
        stack.pop_back();
        if (range.begin < range.end && keys[range.begin].text.size() == range.depth) {
            nodes_[range.node].tag |= (keys[range.begin].id + 1) << 8;
            ++range.begin;
            longest_chain_ = std::max(longest_chain_, ++range.chain);
        }
        bytes.clear();
        starts.clear();
        for (std::size_t i = range.begin; i < range.end; ++i) {
            const auto byte = static_cast<std::uint8_t>(keys[i].text[range.depth]);
            if (bytes.empty() || bytes.back() != byte) {
                bytes.push_back(byte);
                starts.push_back(i);
            }
        }
        if (bytes.empty()) continue;
        const std::uint32_t base = find_base(bytes);
        nodes_[range.node].base = base;
        starts.push_back(range.end);
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
