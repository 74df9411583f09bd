#include "wordpiece/trie.h"

#include <algorithm>

namespace fastbert::wordpiece {

Trie::Trie(std::vector<std::pair<std::string_view, std::int32_t>> keys) {
    std::sort(keys.begin(), keys.end());
    nodes_.resize(2 * kAlphabet);
    nodes_[0].parent = kFree - 1;  // taken, and the child of no node
    std::vector<Range> queue{{0, 0, keys.size(), 0}};
    std::vector<std::uint8_t> bytes;
    std::vector<std::size_t> starts;
    // Breadth first: the wide nodes near the root get their places while the array is still empty.
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

// The first base at which all of the node's children fall on free places.
std::uint32_t Trie::find_base(std::span<const std::uint8_t> bytes) {
    while (nodes_[first_free_].parent != kFree) {
        if (++first_free_ + kAlphabet > nodes_.size()) nodes_.resize(nodes_.size() * 2);
    }
    // A base is at least 1, so that no child falls on the root.
    std::size_t place = std::max<std::size_t>(first_free_, bytes[0] + 1u);
    std::size_t tried = 0, taken = 0;
    for (;; ++place) {
        const std::size_t base = place - bytes[0];
        if (base + 2 * kAlphabet > nodes_.size()) nodes_.resize(nodes_.size() * 2);
        ++tried;
        taken += nodes_[place].parent != kFree;
        const auto is_free = [&](std::uint8_t byte) { return nodes_[base + byte].parent == kFree; };
        if (!std::all_of(bytes.begin(), bytes.end(), is_free)) continue;
        // Where nearly all places are taken, searching again would make the build quadratic.
        if (tried > 64 && taken * 20 > tried * 19) first_free_ = place;
        return static_cast<std::uint32_t>(base);
    }
}

}  // namespace fastbert::wordpiece
