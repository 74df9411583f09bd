// The precompiled character map of sentencepiece: byte strings and what replaces them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fastbert::normalizer {

class Charsmap {
public:
    // The format: the size of a double-array trie in bytes (32 bits), the trie, and the replacements, each ended by a
    // zero byte. Throws std::invalid_argument, with the reason, for data that is cut off or damaged.
    explicit Charsmap(std::string_view data);

    // Return the replacement of the shortest key at the start of a text.
    std::optional<std::string_view> find(std::string_view text) const;

    // Call key(bytes) for every key.
    void for_each_key(const std::function<void(std::string_view)>& key) const;

private:
    static bool has_leaf(std::uint32_t unit) { return unit >> 8 & 1; }
    static std::uint32_t label(std::uint32_t unit) { return unit & (1U << 31 | 0xFF); }
    static std::uint32_t offset(std::uint32_t unit) { return unit >> 10 << ((unit & 1U << 9) >> 6); }

    using Found = std::function<void(std::string_view key, std::size_t value)>;
    void visit(std::size_t node, std::string& key, std::size_t& steps, const Found& found) const;

    std::vector<std::uint32_t> units_;
    std::string replacements_;
};

}  // namespace fastbert::normalizer
