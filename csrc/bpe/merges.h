// Byte-pair encoding: the pairs of tokens that merge, and the merging of a word.
//
// A word begins as its bytes; of all neighbours that merge, those of the lowest rank do, the leftmost first, until none
// do. A short word looks for the lowest rank among all neighbours.
//
// A long word is merged block by block. No merge crosses the ends of the tokens that result, so what two neighbouring
// tokens become together depends on them alone, and a row of tokens is the result for its word if, and only if, each two
// neighbours are the result for theirs. A block therefore begins at the end of a token of the block before it, some way
// from that block's end: if its first token is the one that followed there, the two blocks fit together. Where blocks do
// not, the rest of the word is merged as a whole: every pair waits in the queue of its rank, so that the time is linear.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bpe/least_key.h"

namespace fastbert::bpe {

class Merges {
public:
    // By rank: the ids of two tokens and that of the token that they make. Of equal pairs the last one counts.
    // `byte_ids`: the token of each byte, negative if there is none.
    Merges(const std::vector<std::array<std::int32_t, 3>>& merges, const std::array<std::int32_t, 256>& byte_ids);

    static constexpr std::uint32_t kNone = ~0u;
    // The most tokens, and the most merges.
    static constexpr std::size_t kMostTokens = std::size_t{1} << 20, kMost = (std::size_t{1} << 24) - 1;

    // The rank of the merge of two tokens; kNone if they do not merge.
    std::uint32_t find(std::int32_t left, std::int32_t right) const {
        const std::uint64_t key = key_of(left, right);
        for (std::size_t slot = slot_of(key);; slot = (slot + 1) & mask_) {
            const std::uint64_t entry = entries_[slot];
            if (entry >> kRankBits == key) return static_cast<std::uint32_t>(entry & kRankMask);
            if (entry == kFree) return kNone;
        }
    }
    // The same for two bytes.
    std::uint32_t find_bytes(std::uint8_t left, std::uint8_t right) const { return byte_pairs_[left << 8 | right]; }

    const LeastKey least_key = fastest_least_key();

    std::int32_t byte_id(std::uint8_t byte) const { return byte_ids_[byte]; }
    // The token that a merge makes.
    std::int32_t merged(std::uint32_t rank) const { return merged_[rank]; }
    std::size_t count() const { return merged_.size(); }

private:
    static constexpr unsigned kIdBits = 20, kRankBits = 24;
    static constexpr std::uint64_t kRankMask = (std::uint64_t{1} << kRankBits) - 1;
    static constexpr std::uint64_t kFree = ~std::uint64_t{0};  // its rank is no rank

    static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
        return std::uint64_t{static_cast<std::uint32_t>(left)} << kIdBits | static_cast<std::uint32_t>(right);
    }
    std::size_t slot_of(std::uint64_t key) const { return (key * 0x9E3779B97F4A7C15U) >> shift_; }

    // A pair of ids and the rank of its merge in 8 bytes each, since looking them up waits for memory.
    std::vector<std::uint64_t> entries_;
    std::size_t mask_;
    unsigned shift_;
    std::vector<std::int32_t> merged_;
    std::vector<std::uint32_t> byte_pairs_;
    std::array<std::int32_t, 256> byte_ids_;
};

// Merges words; keeps its memory between them.
class Merger {
public:
    explicit Merger(const Merges& merges) : merges_(merges) {}

    // Call token(id, begin, end) with the byte range of each token of a word.
    template <class Token>
    void merge(const std::uint8_t* word, std::size_t size, Token token) {
        std::size_t at = 0;
        const auto emit = [&](std::size_t count) {
            for (std::size_t i = 0; i < count; ++i) token(block_.ids[i], at + block_.begins[i], at + block_.begins[i + 1]);
            at += block_.begins[count];
        };
        block_.merge(merges_, word, std::min(size, kBlock));
        while (block_.size < size - at) {
            const std::size_t certain = certain_tokens(word + at, size - at);
            if (certain == 0) break;
            emit(certain);
            std::swap(block_, next_block_);
        }
        if (block_.size == size - at) {
            emit(block_.count);
        } else {
            merge_long(word + at, size - at);
            for (std::uint32_t i = 0; i < size - at; i = ends_[i]) token(ids_[i], at + i, at + ends_[i]);
            trim();
        }
    }

private:
    static constexpr std::size_t kBlock = 96, kOverlap = 28;

    // The tokens of a short word.
    struct Block {
        std::array<std::int32_t, kBlock + 1> ids;
        std::array<std::uint8_t, kBlock + 2> begins;  // and the end of the last one
        std::size_t count = 0, size = 0;

        void merge(const Merges& merges, const std::uint8_t* word, std::size_t bytes);
    };

    // Find how many tokens of block_, the front of a long word, are certain, 0 if none is. The block at their end is
    // next_block_ then.
    std::size_t certain_tokens(const std::uint8_t* word, std::size_t size);
    void merge_long(const std::uint8_t* word, std::size_t size);
    void enqueue(std::uint32_t at);
    void push(std::uint32_t at, std::uint32_t rank);
    void mark(std::uint32_t rank);
    std::uint32_t lowest_rank() const;
    void trim();

    Block block_, next_block_;
    const Merges& merges_;
    // By first byte of a token: its id, the end of its bytes, the first byte of the token before, and the rank of its
    // merge with the next.
    std::vector<std::int32_t> ids_;
    std::vector<std::uint32_t> ends_, befores_, ranks_;
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
