// A map from byte strings to ids that finds the longest key at the start of a text: a trie in double-array form.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace fastbert::tokenizer {

class Trie {
public:
    static constexpr std::int32_t kNone = -1;

    struct Match {
        std::size_t size = 0;  // bytes
        std::int32_t id = kNone;
    };

    // Keys must be distinct and not empty; ids must not be negative.
    explicit Trie(const std::vector<std::pair<std::string_view, std::int32_t>>& entries);

    Match longest_prefix(std::string_view text) const {
        Match match;
        std::uint32_t node = 0;
        for (std::size_t i = 0; i < text.size(); ++i) {
            const std::uint32_t child = nodes_[node].base + static_cast<std::uint8_t>(text[i]);
            if (nodes_[child].parent != node) break;
            node = child;
            if (nodes_[node].id != kNone) match = {i + 1, nodes_[node].id};
        }
        return match;
    }

    // Single steps through the trie, for external matchers. Nodes are numbers below size(); kNoNode is not a node.
    static constexpr std::uint32_t kRoot = 0;
    static constexpr std::uint32_t kNoNode = ~0u;

    std::uint32_t child(std::uint32_t node, std::uint8_t byte) const {
        const std::uint32_t child = nodes_[node].base + byte;
        return nodes_[child].parent == node ? child : kNoNode;
    }
    std::int32_t id(std::uint32_t node) const { return nodes_[node].id; }
    std::size_t size() const { return nodes_.size(); }
    // Return the parent of a node other than the root, and the byte that leads there; kNoNode for an unused number.
    std::uint32_t parent(std::uint32_t node) const { return nodes_[node].parent; }
    std::uint8_t byte_of(std::uint32_t node) const {
        return static_cast<std::uint8_t>(node - nodes_[nodes_[node].parent].base);
    }

private:
    static constexpr std::uint32_t kFree = kNoNode;
    static constexpr std::size_t kAlphabet = 256;

    // The child of a node by byte b is nodes_[base + b] if its parent is the node. There are always kAlphabet nodes
    // after the largest base, so a step needs no bounds check.
    struct Node {
        std::uint32_t base = 0;
        std::uint32_t parent = kFree;
        std::int32_t id = kNone;
    };

    // Keys that share the path to a node, of `depth` bytes.
    struct Range {
        std::uint32_t node;
        std::size_t begin, end, depth;
    };

    std::uint32_t find_base(std::span<const std::uint8_t> bytes);

    std::vector<Node> nodes_;
    // The start of the search for free slots, for one child and for several, high enough that no base is 0.
    std::size_t first_free_ = kAlphabet + 1;
    std::size_t first_try_ = kAlphabet + 1;
};

}  // namespace fastbert::tokenizer
