#include "unigram/pieces.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace fastbert::unigram {
namespace {

using tokenizer::Trie;

std::vector<std::pair<std::string_view, std::int32_t>> keys_of(const std::vector<std::string>& tokens) {
    std::vector<std::pair<std::string_view, std::int32_t>> keys;
    keys.reserve(tokens.size());
    for (const std::string& token : tokens) keys.emplace_back(token, static_cast<std::int32_t>(keys.size()));
    return keys;
}

std::size_t character_size(std::uint8_t lead) { return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }

}  // namespace

Pieces::Pieces(const std::vector<std::string>& tokens, std::vector<double> scores, std::int32_t unknown_id,
               std::vector<std::int32_t> byte_ids)
    : trie_(keys_of(tokens)), scores_(std::move(scores)), unknown_id_(unknown_id), byte_ids_(std::move(byte_ids)) {
    constexpr double kPenalty = 10.0;  // of sentencepiece
    unknown_score_ = *std::min_element(scores_.begin(), scores_.end()) - kPenalty;
}

// Viterbi's algorithm. Of equal paths the one found first stays, as in the reference: the shorter last piece.
void Pieces::find_path(std::string_view word, Lattice& lattice) const {
    const std::size_t size = word.size();
    auto& nodes = lattice.nodes;
    nodes.resize(size + 1);
    std::fill(nodes.begin(), nodes.end(), Lattice::Node{0.0, -1, 0});
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(word.data());
    for (std::size_t at = 0; at < size;) {
        const double score = nodes[at].score;
        const std::size_t character = std::min(character_size(bytes[at]), size - at);
        bool has_single = false;
        const auto reach = [&](std::size_t end, double reached, std::int32_t id) {
            Lattice::Node& node = nodes[end];
            if (node.begin < 0 || reached > node.score) node = {reached, static_cast<std::int32_t>(at), id};
        };
        std::uint32_t trie_node = Trie::kRoot;
        for (std::size_t end = at; end < size;) {
            trie_node = trie_.child(trie_node, bytes[end]);
            if (trie_node == Trie::kNoNode) break;
            ++end;
            const std::int32_t id = trie_.id(trie_node);
            if (id == Trie::kNone) continue;
            reach(end, scores_[static_cast<std::size_t>(id)] + score, id);
            has_single = has_single || end - at == character;
        }
        if (!has_single) reach(at + character, unknown_score_ + score, unknown_id_);
        at += character;
    }
    lattice.pieces.clear();
    for (std::size_t end = size; end > 0;) {
        const Lattice::Node& node = nodes[end];
        lattice.pieces.push_back({static_cast<std::uint32_t>(node.begin), static_cast<std::uint32_t>(end), node.id});
        end = static_cast<std::size_t>(node.begin);
    }
}

}  // namespace fastbert::unigram
