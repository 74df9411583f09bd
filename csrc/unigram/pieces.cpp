#include "unigram/pieces.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "unicode/utf8.h"

namespace fastbert::unigram {
namespace {

std::size_t character_size(std::uint8_t lead) { return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }

}  // namespace

Pieces::Pieces(const std::vector<std::string>& tokens, std::vector<double> scores, std::int32_t unknown_id,
               std::vector<std::int32_t> byte_ids)
    : trie_(tokens), most_(trie_.longest_chain()), scores_(std::move(scores)), unknown_id_(unknown_id), byte_ids_(std::move(byte_ids)) {
    constexpr double kPenalty = 10.0;  // of sentencepiece
    std::size_t longest = unicode::kMaxUtf8Bytes;
    for (const std::string& token : tokens) longest = std::max(longest, token.size());
    ring_ = std::bit_ceil(longest + 1);
    const auto is_short = [](double score) { return static_cast<double>(static_cast<float>(score)) == score; };
    if (std::all_of(scores_.begin(), scores_.end(), is_short)) short_scores_.assign(scores_.begin(), scores_.end());
    unknown_score_ = *std::min_element(scores_.begin(), scores_.end()) - kPenalty;
}

std::int32_t Pieces::find(std::string_view text) const {
    std::uint32_t node = PieceTrie::kRoot;
    for (const char byte : text) {
        node = trie_.child(node, static_cast<std::uint8_t>(byte));
        if (node == PieceTrie::kNoNode) return PieceTrie::kNone;
    }
    return trie_.id(node);
}

// Find all pieces that begin at lattice.begins. Several places are searched in turns, since each step waits for memory.
void Pieces::find_pieces(std::string_view word, Lattice& lattice) const {
    constexpr std::size_t kLanes = 8;
    struct Walk {
        std::uint32_t next, at;  // the node to look at, which the byte before `at` leads to
        std::uint32_t place;
    };
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(word.data());
    const auto size = static_cast<std::uint32_t>(word.size());
    const std::size_t places = lattice.begins.size();
    lattice.found.resize(std::max(lattice.found.size(), places * most_));
    lattice.counts.assign(places, 0);
    std::array<Walk, kLanes> walks;
    std::size_t next_place = 0, active = 0;
    // Begin at the next place where a piece begins with the character; return false if there is none.
    const auto begin = [&](Walk& walk) {
        while (next_place < places) {
            const std::uint32_t from = lattice.begins[next_place];
            const std::uint8_t* at = bytes + from;
            std::uint32_t next;
            if (*at < 0xF0) {
                next = trie_.first(unicode::decode(at));
            } else {
                next = trie_.step(PieceTrie::kRoot, *at++);
            }
            const auto place = static_cast<std::uint32_t>(next_place++);
            if (next == PieceTrie::kNoNode) continue;
            walk = {next, static_cast<std::uint32_t>(at - bytes), place};
            trie_.prefetch(next);
            return true;
        }
        return false;
    };
    while (active < kLanes && begin(walks[active])) ++active;
    while (active > 0) {
        for (std::size_t i = 0; i < active;) {
            Walk& walk = walks[i];
            bool goes_on = trie_.is_child(walk.next, bytes[walk.at - 1]);
            if (goes_on) {
                const std::int32_t id = trie_.id(walk.next);
                if (id != PieceTrie::kNone) {
                    lattice.found[walk.place * most_ + lattice.counts[walk.place]++] = {0, walk.at, id};
                }
                goes_on = walk.at < size;
            }
            if (goes_on) {
                walk.next = trie_.step(walk.next, bytes[walk.at++]);
                trie_.prefetch(walk.next);
                ++i;
            } else if (begin(walk)) {
                ++i;
            } else {
                walk = walks[--active];
            }
        }
    }
}

// Viterbi's algorithm. Of equal paths the one found first stays, as in the reference: the longer last piece.
void Pieces::find_path(std::string_view word, Lattice& lattice) const {
    constexpr std::size_t kPlaces = 64;
    const std::size_t size = word.size();
    auto& links = lattice.links;
    links.resize(size + 1);
    std::fill(links.begin(), links.end(), Lattice::Link{-1, 0});
    // A piece that begins here ends before the score of this place is overwritten.
    const std::size_t mask = ring_ - 1;
    lattice.scores.resize(ring_);
    double* const scores = lattice.scores.data();
    scores[0] = 0.0;
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(word.data());
    for (std::size_t at = 0; at < size;) {
        lattice.begins.clear();
        while (at < size && lattice.begins.size() < kPlaces) {
            lattice.begins.push_back(static_cast<std::uint32_t>(at));
            at += character_size(bytes[at]);
        }
        at = std::min(at, size);
        find_pieces(word, lattice);
        for (std::size_t place = 0; place < lattice.begins.size(); ++place) {
            const std::uint32_t begin = lattice.begins[place];
            const double before = scores[begin & mask];
            const std::size_t behind = place + 1 < lattice.begins.size() ? lattice.begins[place + 1] : at;
            bool has_single = false;
            const auto reach = [&](std::size_t end, double reached, std::int32_t id) {
                Lattice::Link& link = links[end];
                if (link.other >= 0 && !(reached > scores[end & mask])) return;
                link = {static_cast<std::int32_t>(begin), id};
                scores[end & mask] = reached;
            };
            const Lattice::Piece* const found = lattice.found.data() + place * most_;
            for (std::size_t i = 0; i < lattice.counts[place]; ++i) {
                reach(found[i].end, score(found[i].id) + before, found[i].id);
                has_single = has_single || found[i].end == behind;
            }
            if (!has_single) reach(behind, unknown_score_ + before, unknown_id_);
        }
    }
    // Turn the links of the path round.
    Lattice::Link link = links[size];
    for (std::size_t end = size; end > 0;) {
        const auto begin = static_cast<std::size_t>(link.other);
        const Lattice::Link before = links[begin];
        links[begin] = {static_cast<std::int32_t>(end), link.id};
        link = before;
        end = begin;
    }
}

}  // namespace fastbert::unigram
