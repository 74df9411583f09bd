// Sorted keys, of which tries are built node by node.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace fastbert::tokenizer {

struct TrieKey {
    std::uint64_t prefix;  // the first eight bytes, in the order of the texts
    std::string_view text;
    std::uint32_t id;

    TrieKey(std::string_view key, std::uint32_t number) : prefix(0), text(key), id(number) {
        for (std::size_t i = 0; i < 8; ++i) {
            prefix = prefix << 8 | (i < text.size() ? static_cast<std::uint8_t>(text[i]) : 0);
        }
    }
};

// By bytes. Most comparisons do not dereference the texts.
inline void sort_keys(std::vector<TrieKey>& keys) {
    std::sort(keys.begin(), keys.end(), [](const TrieKey& a, const TrieKey& b) {
        return a.prefix != b.prefix ? a.prefix < b.prefix : a.text < b.text;
    });
}

// The children of a node.
struct Branches {
    std::vector<std::uint8_t> bytes;
    std::vector<std::size_t> starts;  // the first key of each child, and the end of the last one's

    // Keys `begin` to `end`, which share the path to the node, of `depth` bytes, and are longer.
    void set(const std::vector<TrieKey>& keys, std::size_t begin, std::size_t end, std::size_t depth) {
        bytes.clear();
        starts.clear();
        for (std::size_t i = begin; i < end; ++i) {
            const auto byte = static_cast<std::uint8_t>(keys[i].text[depth]);
            if (bytes.empty() || bytes.back() != byte) {
                bytes.push_back(byte);
                starts.push_back(i);
            }
        }
        starts.push_back(end);
    }
};

}  // namespace fastbert::tokenizer
