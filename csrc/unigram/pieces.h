// The pieces of a Unigram vocabulary, with their log probabilities, and the most probable pieces of a word.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "unigram/piece_trie.h"

namespace fastbert::unigram {

// Memory of a search, kept between words.
struct Lattice {
    // The last piece of the best path to a byte; a begin of -1: there is no path. Along the path that is chosen, the piece
    // that begins at a byte, and its end.
    struct Link {
        std::int32_t other, id;
    };
    struct Piece {
        std::uint32_t begin, end;
        std::int32_t id;
    };
    std::vector<Link> links;
    std::vector<double> scores;         // of the paths to the bytes that pieces reach from here, in a ring
    std::vector<std::uint32_t> begins;  // of some characters,
    std::vector<Piece> found;           // and the pieces found at each
    std::vector<std::uint32_t> counts;
};

class Pieces {
public:
    // `tokens` by id, distinct; `unknown_id` is that of characters in no piece. With `byte_ids`, 256 of them, the bytes
    // of such characters are tokens.
    Pieces(const std::vector<std::string>& tokens, std::vector<double> scores, std::int32_t unknown_id,
           std::vector<std::int32_t> byte_ids);

    // Call token(id, begin, end) with the byte range of each piece of a word of whole characters.
    template <class Token>
    void split(std::string_view word, Lattice& lattice, Token token) const {
        find_path(word, lattice);
        const auto piece_at = [&](std::size_t begin) {
            const Lattice::Link& link = lattice.links[begin];
            return Lattice::Piece{static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(link.other), link.id};
        };
        for (std::size_t at = 0; at < word.size();) {
            Lattice::Piece piece = piece_at(at);
            if (piece.id != unknown_id_) {
                token(piece.id, piece.begin, piece.end);
                at = piece.end;
                continue;
            }
            // Unknown characters side by side are one token.
            while (piece.end < word.size() && lattice.links[piece.end].id == unknown_id_)
                piece.end = piece_at(piece.end).end;
            at = piece.end;
            const std::string_view text = word.substr(piece.begin, piece.end - piece.begin);
            if (const std::int32_t id = find(text); id != PieceTrie::kNone) {
                token(id, piece.begin, piece.end);
            } else if (byte_ids_.empty()) {
                token(unknown_id_, piece.begin, piece.end);
            } else {
                for (const char byte : text) token(byte_ids_[static_cast<std::uint8_t>(byte)], piece.begin, piece.end);
            }
        }
    }

    // The id of a whole piece, or PieceTrie::kNone.
    std::int32_t find(std::string_view text) const;

private:
    void find_pieces(std::string_view word, Lattice& lattice) const;
    // Fill lattice.links from the first piece to the last one.
    void find_path(std::string_view word, Lattice& lattice) const;

    double score(std::int32_t id) const {
        const auto index = static_cast<std::size_t>(id);
        return short_scores_.empty() ? scores_[index] : static_cast<double>(short_scores_[index]);
    }

    PieceTrie trie_;
    std::size_t most_;  // pieces at one place of a text
    std::size_t ring_;  // a power of two above the bytes of any piece
    std::vector<double> scores_;
    std::vector<float> short_scores_;  // if they are the same: half the memory to look them up in
    double unknown_score_;
    std::int32_t unknown_id_;
    std::vector<std::int32_t> byte_ids_;
};

}  // namespace fastbert::unigram
