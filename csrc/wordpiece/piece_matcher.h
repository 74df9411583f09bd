// Greedy longest-match-first WordPiece splitting in time linear in the word's length.
//
// LinMaxMatch (Song et al., "Fast WordPiece Tokenization", EMNLP 2021): a trie whose nodes store, for a byte without a
// child, the pieces already determined by the path (pops) and the node of the remaining suffix (failure link), so that
// no byte is read twice.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/trie.h"

namespace fastbert::wordpiece {

using tokenizer::Trie;

class PieceMatcher {
public:
    // `tokens`: the vocabulary, by id. Tokens that begin with "##" continue a word.
    explicit PieceMatcher(const std::vector<std::string>& tokens);

    // Call piece(id) for each piece in order. Return false if the word has no such split; the pieces reported so far
    // are then void.
    template <class Piece>
    bool match(std::string_view word, Piece piece) const {
        std::uint32_t node = initial_;
        for (const char byte : word) {
            std::uint32_t next;
            while ((next = trie_.child(node, static_cast<std::uint8_t>(byte))) == Trie::kNoNode) {
                if (!follow(node, piece)) return false;
            }
            node = next;
        }
        while (node != continuing_) {
            if (!follow(node, piece)) return false;
        }
        return true;
    }

private:
    struct Failure {
        std::uint32_t node = Trie::kNoNode;
        std::uint32_t pops_begin = 0;
        std::uint32_t pops_count = 0;
    };

    // Follow a node's failure link; false if there is none.
    template <class Piece>
    bool follow(std::uint32_t& node, Piece& piece) const {
        const Failure& failure = failures_[node];
        if (failure.node == Trie::kNoNode) return false;
        for (std::uint32_t i = 0; i < failure.pops_count; ++i) piece(pops_[failure.pops_begin + i]);
        node = failure.node;
        return true;
    }

    void link(std::uint32_t parent, std::uint8_t byte, std::uint32_t node);

    Trie trie_;
    std::uint32_t initial_;     // where a word begins
    std::uint32_t continuing_;  // where the rest of a word begins, and where a word may end
    std::vector<Failure> failures_;
    std::vector<std::int32_t> pops_;
};

}  // namespace fastbert::wordpiece
