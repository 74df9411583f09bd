// Byte-pair encoding: the pairs of tokens that merge, and the merging of a word.
//
// A word begins as its bytes; of all neighbours that merge, those of the lowest rank do, the leftmost first, until none
// do. Short words look for the lowest rank among all neighbours. In long ones every pair waits in the queue of its rank,
// so that their time is linear: a merge adds at most two pairs.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace fastbert::bpe {

struct Merge {
    std::uint32_t rank;
    std::int32_t id;  // of the merged token
};

class Merges {
public:
    // By rank: the ids of two tokens and that of the token that they make. Of equal pairs the last one counts.
    explicit Merges(const std::vector<std::array<std::int32_t, 3>>& merges);

    static constexpr std::uint32_t kNone = ~0u;

    // The rank is kNone if the tokens do not merge.
    Merge find(std::int32_t left, std::int32_t right) const {
        const std::uint64_t key = key_of(left, right);
        for (std::size_t slot = slot_of(key);; slot = (slot + 1) & mask_) {
            const Entry& entry = entries_[slot];
            if (entry.key == key) return entry.merge;
            if (entry.key == kFree) return {kNone, 0};
        }
    }
    std::size_t count() const { return count_; }

private:
    static constexpr std::uint64_t kFree = ~std::uint64_t{0};
    struct Entry {
        std::uint64_t key = kFree;
        Merge merge{kNone, 0};
    };

    static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
        return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
    }
    std::size_t slot_of(std::uint64_t key) const { return (key * 0x9E3779B97F4A7C15U) >> shift_; }

    std::vector<Entry> entries_;
    std::size_t mask_, count_;
    unsigned shift_;
};

// Merges words; keeps its memory between them.
class Merger {
public:
    // `byte_ids`: the token of each byte.
    Merger(const Merges& merges, const std::array<std::int32_t, 256>& byte_ids) : merges_(merges), byte_ids_(byte_ids) {}

    // Call token(id, begin, end) with the byte range of each token of a word.
    template <class Token>
    void merge(const std::uint8_t* word, std::size_t size, Token token) {
        if (size <= kShort) {
            merge_short(word, size, token);
        } else {
            merge_long(word, size);
            for (std::uint32_t at = 0; at < size; at = ends_[at]) token(ids_[at], at, ends_[at]);
            trim();
        }
    }

private:
    static constexpr std::size_t kShort = 48;

    template <class Token>
    void merge_short(const std::uint8_t* word, std::size_t size, Token token) {
        std::array<std::int32_t, kShort> ids;
        std::array<std::uint8_t, kShort + 1> begins;
        std::array<Merge, kShort> merges;  // of each token with the next
        for (std::size_t i = 0; i < size; ++i) {
            ids[i] = byte_ids_[word[i]];
            begins[i] = static_cast<std::uint8_t>(i);
        }
        begins[size] = static_cast<std::uint8_t>(size);
        for (std::size_t i = 0; i + 1 < size; ++i) merges[i] = merges_.find(ids[i], ids[i + 1]);
        std::size_t count = size;
        while (count > 1) {
            std::size_t best = 0;
            for (std::size_t i = 1; i + 1 < count; ++i) {
                if (merges[i].rank < merges[best].rank) best = i;
            }
            if (merges[best].rank == Merges::kNone) break;
            ids[best] = merges[best].id;
            --count;
            for (std::size_t i = best + 1; i < count; ++i) {
                ids[i] = ids[i + 1];
                begins[i] = begins[i + 1];
                merges[i] = merges[i + 1];
            }
            begins[count] = static_cast<std::uint8_t>(size);
            merges[count - 1].rank = Merges::kNone;
            if (best + 1 < count) merges[best] = merges_.find(ids[best], ids[best + 1]);
            if (best > 0) merges[best - 1] = merges_.find(ids[best - 1], ids[best]);
        }
        for (std::size_t i = 0; i < count; ++i) token(ids[i], begins[i], begins[i + 1]);
    }

    void merge_long(const std::uint8_t* word, std::size_t size);
    void enqueue(std::uint32_t at);
    void push(std::uint32_t at, std::uint32_t rank);
    void mark(std::uint32_t rank);
    std::uint32_t lowest_rank() const;
    void trim();

    const Merges& merges_;
    const std::array<std::int32_t, 256>& byte_ids_;
    // By first byte of a token: its id, the end of its bytes, the first byte of the token before, and its merge with the
    // next.
    std::vector<std::int32_t> ids_;
    std::vector<std::uint32_t> ends_, befores_;
    std::vector<Merge> merges_of_;
    // Queues of pairs, by rank, as lists of nodes: the first byte of a pair, and the node behind.
    struct Node {
        std::uint32_t at, next;
    };
    std::vector<Node> nodes_;
    std::uint32_t free_node_ = 0;
    std::vector<std::uint32_t> heads_;
    std::array<std::vector<std::uint64_t>, 3> occupied_;   // which queues hold pairs, in three levels
    std::vector<std::uint32_t> batch_;                     // the queue at hand
};

}  // namespace fastbert::bpe
