#include "bpe/merges.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

namespace fastbert::bpe {
namespace {

constexpr std::uint32_t kNowhere = ~0u;

}  // namespace

Merges::Merges(const std::vector<std::array<std::int32_t, 3>>& merges, const std::array<std::int32_t, 256>& byte_ids)
    : byte_ids_(byte_ids) {
    const std::size_t capacity = std::bit_ceil(std::max<std::size_t>(merges.size() * 2, 16));
    entries_.assign(capacity, kFree);
    mask_ = capacity - 1;
    shift_ = static_cast<unsigned>(64 - std::countr_zero(capacity));
    for (std::size_t rank = 0; rank < merges.size(); ++rank) {
        const std::uint64_t key = key_of(merges[rank][0], merges[rank][1]);
        std::size_t slot = slot_of(key);
        while (entries_[slot] != kFree && entries_[slot] >> kRankBits != key) slot = (slot + 1) & mask_;
        entries_[slot] = key << kRankBits | rank;
        merged_.push_back(merges[rank][2]);
    }
    byte_pairs_.assign(1 << 16, kNone);
    for (unsigned pair = 0; pair < byte_pairs_.size(); ++pair) {
        const std::int32_t left = byte_ids_[pair >> 8], right = byte_ids_[pair & 0xFF];
        if (left >= 0 && right >= 0) byte_pairs_[pair] = find(left, right);
    }
}

// Tokens stay at the place of their first byte. The key of a pair is its rank and its place, so that the least key is
// that of the leftmost pair of the lowest rank.
void Merger::Block::merge(const Merges& merges, const std::uint8_t* word, std::size_t bytes) {
    constexpr unsigned kPlaceBits = 7;
    constexpr std::int32_t kNoKey = std::numeric_limits<std::int32_t>::max();
    static_assert(kBlock < 1 << kPlaceBits && Merges::kMost < std::size_t{1} << (31 - kPlaceBits));
    alignas(64) std::array<std::int32_t, kBlock> keys;
    std::array<std::uint8_t, kBlock + 1> next, before;
    size = bytes;
    const auto set_key = [&](std::size_t left, std::uint32_t rank) {
        keys[left] = rank == Merges::kNone ? kNoKey : static_cast<std::int32_t>(rank << kPlaceBits | left);
    };
    for (std::size_t i = 0; i < bytes; ++i) {
        ids[i] = merges.byte_id(word[i]);
        next[i] = static_cast<std::uint8_t>(i + 1);
        before[i] = static_cast<std::uint8_t>(i - 1);
    }
    for (std::size_t i = 0; i + 1 < bytes; ++i) set_key(i, merges.find_bytes(word[i], word[i + 1]));
    // Whole vectors.
    const std::size_t padded = (bytes + kKeyLanes - 1) / kKeyLanes * kKeyLanes;
    for (std::size_t i = bytes == 0 ? 0 : bytes - 1; i < padded; ++i) keys[i] = kNoKey;
    static_assert(kBlock % kKeyLanes == 0);
    while (padded > 0) {
        const std::int32_t least = merges.least_key(keys.data(), padded);
        if (least == kNoKey) break;
        const auto left = static_cast<std::size_t>(least & ((1 << kPlaceBits) - 1));
        const std::size_t gone = next[left], behind = next[gone];
        ids[left] = merges.merged(static_cast<std::uint32_t>(least) >> kPlaceBits);
        keys[gone] = kNoKey;
        next[left] = static_cast<std::uint8_t>(behind);
        if (behind < bytes) {
            before[behind] = static_cast<std::uint8_t>(left);
            set_key(left, merges.find(ids[left], ids[behind]));
        } else {
            keys[left] = kNoKey;
        }
        if (left > 0) set_key(before[left], merges.find(ids[before[left]], ids[left]));
    }
    count = 0;
    for (std::size_t i = 0; i < bytes; i = next[i]) {
        ids[count] = ids[i];
        begins[count++] = static_cast<std::uint8_t>(i);
    }
    begins[count] = static_cast<std::uint8_t>(bytes);
}

std::size_t Merger::certain_tokens(const std::uint8_t* word, std::size_t size) {
    // The tokens near the end of the block may become others with what follows.
    for (std::size_t kept = block_.count; kept-- > 1;) {
        const std::size_t begin = block_.begins[kept];
        if (begin + kOverlap > kBlock) continue;
        next_block_.merge(merges_, word + begin, std::min(kBlock, size - begin));
        if (next_block_.ids[0] == block_.ids[kept]) return kept;
    }
    return 0;
}

void Merger::mark(std::uint32_t rank) {
    for (auto& level : occupied_) {
        level[rank / 64] |= std::uint64_t{1} << rank % 64;
        rank /= 64;
    }
}

// kNone if all queues are empty.
std::uint32_t Merger::lowest_rank() const {
    const auto& top = occupied_[2];
    std::size_t index = 0;
    while (index < top.size() && top[index] == 0) ++index;
    if (index == top.size()) return Merges::kNone;
    index = index * 64 + static_cast<std::size_t>(std::countr_zero(top[index]));
    index = index * 64 + static_cast<std::size_t>(std::countr_zero(occupied_[1][index]));
    return static_cast<std::uint32_t>(index * 64 + static_cast<std::size_t>(std::countr_zero(occupied_[0][index])));
}

// Put the pair of a token and the next into the queue of its rank, if they merge.
void Merger::enqueue(std::uint32_t at) {
    const std::uint32_t next = ends_[at];
    ranks_[at] = next < ids_.size() ? merges_.find(ids_[at], ids_[next]) : Merges::kNone;
    if (ranks_[at] != Merges::kNone) push(at, ranks_[at]);
}

void Merger::push(std::uint32_t at, std::uint32_t rank) {
    if (heads_[rank] == kNowhere) mark(rank);
    if (free_node_ == kNowhere) {
        nodes_.push_back({at, heads_[rank]});
        heads_[rank] = static_cast<std::uint32_t>(nodes_.size() - 1);
    } else {
        Node& node = nodes_[free_node_];
        const std::uint32_t next_free = node.next;
        node = {at, heads_[rank]};
        heads_[rank] = std::exchange(free_node_, next_free);
    }
}

void Merger::merge_long(const std::uint8_t* word, std::size_t size) {
    heads_.resize(merges_.count(), kNowhere);
    std::size_t words = heads_.size();
    for (auto& level : occupied_) {
        words = (words + 63) / 64;
        level.resize(words);
    }
    ids_.resize(size);
    ends_.resize(size);
    befores_.resize(size);
    nodes_.clear();
    free_node_ = kNowhere;
    ranks_.resize(size);
    for (std::uint32_t i = 0; i < size; ++i) {
        ids_[i] = merges_.byte_id(word[i]);
        ends_[i] = i + 1;
        befores_[i] = i == 0 ? kNowhere : i - 1;
    }
    // From the right, so that each queue begins with the leftmost pair.
    for (auto i = static_cast<std::uint32_t>(size); i-- > 0;) enqueue(i);
    for (std::uint32_t rank = lowest_rank(); rank != Merges::kNone; rank = lowest_rank()) {
        batch_.clear();
        for (std::uint32_t node = std::exchange(heads_[rank], kNowhere); node != kNowhere;) {
            batch_.push_back(nodes_[node].at);
            const std::uint32_t next = std::exchange(nodes_[node].next, free_node_);
            free_node_ = std::exchange(node, next);
        }
        std::size_t index = rank;
        for (auto& level : occupied_) {
            std::uint64_t& bits = level[index / 64];
            bits &= ~(std::uint64_t{1} << index % 64);
            if (bits != 0) break;
            index /= 64;
        }
        if (!std::is_sorted(batch_.begin(), batch_.end())) std::sort(batch_.begin(), batch_.end());
        batch_.erase(std::unique(batch_.begin(), batch_.end()), batch_.end());
        for (std::size_t i = 0; i < batch_.size(); ++i) {
            const std::uint32_t at = batch_[i];
            // A pair whose token has gone, or merges otherwise now.
            if (ids_[at] < 0 || ranks_[at] != rank) continue;
            const std::uint32_t gone = ends_[at], behind = ends_[gone];
            ids_[at] = merges_.merged(rank);
            ends_[at] = behind;
            ids_[gone] = -1;
            if (behind < size) befores_[behind] = at;
            const std::uint32_t before = befores_[at];
            enqueue(at);
            if (before != kNowhere) enqueue(before);
            const bool lower = ranks_[at] < rank || (before != kNowhere && ranks_[before] < rank);
            if (!lower) continue;
            // A merge has made a pair of lower rank, which comes first; the rest of the queue waits again.
            for (std::size_t rest = batch_.size(); --rest > i;) {
                const std::uint32_t waiting = batch_[rest];
                if (ids_[waiting] < 0 || ranks_[waiting] != rank) continue;
                push(waiting, rank);
            }
            break;
        }
    }
}

// Memory of a very long word is not kept.
void Merger::trim() {
    constexpr std::size_t kKept = 1 << 16;
    if (ids_.capacity() <= kKept) return;
    ids_ = {};
    ends_ = befores_ = ranks_ = batch_ = {};
    nodes_ = {};
}

}  // namespace fastbert::bpe
