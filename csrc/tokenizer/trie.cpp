#include "tokenizer/trie.h"

#include <algorithm>
#include <utility>

namespace fastbert::tokenizer {

namespace {

using Key = std::pair<std::string_view, std::int32_t>;

// The first eight bytes as an integer with the same order.
std::uint64_t prefix_of(std::string_view text) {
    std::uint64_t prefix = 0;
    for (std::size_t i = 0; i < 8; ++i) prefix = prefix << 8 | (i < text.size() ? static_cast<std::uint8_t>(text[i]) : 0);
    return prefix;
}

// Ordered by bytes. Most comparisons do not dereference the strings.
void sort_keys(std::vector<Key>& keys) {
    std::vector<std::pair<std::uint64_t, Key>> prefixed;
    prefixed.reserve(keys.size());
    for (const Key& key : keys) prefixed.emplace_back(prefix_of(key.first), key);
    std::sort(prefixed.begin(), prefixed.end());
    std::transform(prefixed.begin(), prefixed.end(), keys.begin(), [](const auto& item) { return item.second; });
}

// Move the keys' bytes into one block, in read order.
std::vector<char> gather_bytes(std::vector<Key>& keys) {
    std::size_t size = 0;
    for (const Key& key : keys) size += key.first.size();
    std::vector<char> bytes(size);
    char* to = bytes.data();
    for (auto& [text, id] : keys) {
        char* const from = std::exchange(to, std::copy(text.begin(), text.end(), to));
        text = {from, text.size()};
    }
    return bytes;
}

}  // namespace

Trie::Trie(std::vector<std::pair<std::string_view, std::int32_t>> keys) {
    sort_keys(keys);
    const std::vector<char> bytes_of_keys = gather_bytes(keys);
    nodes_.resize(4 * kAlphabet);
    nodes_[0].parent = kFree - 1;  // taken, and the child of no node
    std::vector<Range> queue{{0, 0, keys.size(), 0}};
    std::vector<std::uint8_t> bytes;
    std::vector<std::size_t> starts;
    // Breadth first: the wide nodes near the root are placed while the array is still empty.
    for (std::size_t next = 0; next < queue.size(); ++next) {
        Range range = queue[next];
        if (range.begin < range.end && keys[range.begin].first.size() == range.depth) {
            nodes_[range.node].id = keys[range.begin].second;
            ++range.begin;
        }
        bytes.clear();
        starts.clear();
        for (std::size_t i = range.begin; i < range.end; ++i) {
            const auto byte = static_cast<std::uint8_t>(keys[i].first[range.depth]);
            if (bytes.empty() || bytes.back() != byte) {
                bytes.push_back(byte);
                starts.push_back(i);
            }
        }
        if (bytes.empty()) continue;
        const std::uint32_t base = find_base(bytes);
        nodes_[range.node].base = base;
        starts.push_back(range.end);
        for (std::size_t i = 0; i < bytes.size(); ++i) {
            const std::uint32_t child = base + bytes[i];
            nodes_[child].parent = range.node;
            queue.push_back({child, starts[i], starts[i + 1], range.depth + 1});
        }
    }
}

// Find a base at which all of the node's children fall on free slots. A single child takes the first free slot. For
// several children, the search moves on once it becomes long, or building would be quadratic; single children fill the
// gaps.
std::uint32_t Trie::find_base(std::span<const std::uint8_t> bytes) {
    constexpr std::size_t kLong = 64;
    std::size_t& from = bytes.size() == 1 ? first_free_ : first_try_;
    for (std::size_t slot = from;; ++slot) {
        const std::size_t base = slot - bytes[0];
        if (base + 2 * kAlphabet > nodes_.size()) nodes_.resize(nodes_.size() * 2);
        const auto is_free = [&](std::uint8_t byte) { return nodes_[base + byte].parent == kFree; };
        if (!std::all_of(bytes.begin(), bytes.end(), is_free)) continue;
        if (bytes.size() == 1 || slot - from > kLong) from = slot;
        return static_cast<std::uint32_t>(base);
    }
}

}  // namespace fastbert::tokenizer
