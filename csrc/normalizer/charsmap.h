// The precompiled character map of sentencepiece: byte strings and what replaces them.
#pragma once
#include <cstddef>
#include <cstdint>
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

    // All keys.
    const std::vector<std::string>& keys() const { return keys_; }

private:
    static bool has_leaf(std::uint32_t unit) { return unit >> 8 & 1; }
    static std::uint32_t label(std::uint32_t unit) { return unit & (1U << 31 | 0xFF); }
    static std::uint32_t offset(std::uint32_t unit) { return unit >> 10 << ((unit & 1U << 9) >> 6); }

    class KeyFinder;

    std::vector<std::uint32_t> units_;
    std::string replacements_;
    std::vector<std::string> keys_;
};

}  // namespace fastbert::normalizer
