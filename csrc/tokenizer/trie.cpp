#include "tokenizer/trie.h"

#include <algorithm>
#include <utility>

#include "tokenizer/trie_keys.h"

namespace fastbert::tokenizer {

namespace {

// Move the keys' bytes into one block, in read order.
std::vector<char> gather_bytes(std::vector<TrieKey>& keys) {
    std::size_t size = 0;
    for (const TrieKey& key : keys) size += key.text.size();
    std::vector<char> bytes(size);
    char* to = bytes.data();
    for (TrieKey& key : keys) {
        char* const from = std::exchange(to, std::copy(key.text.begin(), key.text.end(), to));
        key.text = {from, key.text.size()};
    }
    return bytes;
}

}  // namespace

Trie::Trie(const std::vector<std::pair<std::string_view, std::int32_t>>& entries) {
    std::vector<TrieKey> keys;
    keys.reserve(entries.size());
    for (const auto& [text, id] : entries) keys.emplace_back(text, static_cast<std::uint32_t>(id));
    sort_keys(keys);
    const std::vector<char> bytes_of_keys = gather_bytes(keys);
    nodes_.resize(4 * kAlphabet);
    nodes_[0].parent = kFree - 1;  // taken, and the child of no node
    std::vector<Range> queue{{0, 0, keys.size(), 0}};
    Branches branches;
    // Breadth first: the wide nodes near the root are placed while the array is still empty.
    for (std::size_t next = 0; next < queue.size(); ++next) {
        Range range = queue[next];
        if (range.begin < range.end && keys[range.begin].text.size() == range.depth) {
            nodes_[range.node].id = static_cast<std::int32_t>(keys[range.begin].id);
            ++range.begin;
        }
        branches.set(keys, range.begin, range.end, range.depth);
        const auto& [bytes, starts] = branches;
        if (bytes.empty()) continue;
        const std::uint32_t base = find_base(bytes);
        nodes_[range.node].base = base;
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
