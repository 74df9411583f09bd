// A double-array trie for finding all pieces at a place of a text: a node and its piece in 8 bytes, and the nodes of a
// path beside each other where it does not branch, since what the search waits for is memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fastbert::unigram {

class PieceTrie {
public:
    static constexpr std::int32_t kNone = -1;
    static constexpr std::uint32_t kRoot = 0;
    static constexpr std::uint32_t kNoNode = ~0U;
    static constexpr std::size_t kMostPieces = (std::size_t{1} << 24) - 1;

    // `pieces` by id: distinct, not empty, at most kMostPieces.
    explicit PieceTrie(const std::vector<std::string>& pieces);

    std::uint32_t child(std::uint32_t node, std::uint8_t byte) const {
        const std::uint32_t child = step(node, byte);
        return is_child(child, byte) ? child : kNoNode;
    }
    // child() in two steps, between which the node can be fetched.
    std::uint32_t step(std::uint32_t node, std::uint8_t byte) const { return nodes_[node].base + byte; }
    bool is_child(std::uint32_t node, std::uint8_t byte) const {
        return (nodes_[node].tag & 0xFF) == byte && nodes_[node].tag != kFree;
    }
    void prefetch(std::uint32_t node) const { __builtin_prefetch(&nodes_[node]); }

    // The node of a character below U+10000; kNoNode if no piece begins with it.
    std::uint32_t first(char32_t point) const { return first_[point]; }

    // The most pieces that one text begins with.
    std::size_t longest_chain() const { return longest_chain_; }

    std::int32_t id(std::uint32_t node) const { return static_cast<std::int32_t>(nodes_[node].tag >> 8) - 1; }

private:
    static constexpr std::size_t kAlphabet = 256;
    // No node: what every byte differs from is not possible, so byte 0 is told apart by this.
    static constexpr std::uint32_t kFree = 0;

    struct Node {
        std::uint32_t base = 0;
        // The byte that leads here, and from bit 8 the id of the piece that ends here plus one. Bases are unique, so
        // the byte tells whether a node is a child.
        std::uint32_t tag = kFree;
    };

    std::uint32_t find_base(const std::vector<std::uint8_t>& bytes);

    std::vector<Node> nodes_;
    std::vector<bool> is_base_;
    std::size_t first_free_ = kAlphabet + 1;
    std::size_t longest_chain_ = 1;
    std::vector<std::uint32_t> first_;
};

}  // namespace fastbert::unigram
