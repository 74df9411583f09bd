#include "bpe/merges.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace fastbert::bpe {
namespace {

constexpr std::uint32_t kNowhere = ~0u;

}  // namespace

Merges::Merges(const std::vector<std::array<std::int32_t, 3>>& merges) : count_(merges.size()) {
    const std::size_t capacity = std::bit_ceil(std::max<std::size_t>(merges.size() * 2, 16));
    entries_.resize(capacity);
    mask_ = capacity - 1;
    shift_ = static_cast<unsigned>(64 - std::countr_zero(capacity));
    for (std::size_t rank = 0; rank < merges.size(); ++rank) {
        const std::uint64_t key = key_of(merges[rank][0], merges[rank][1]);
        std::size_t slot = slot_of(key);
        while (entries_[slot].key != key && entries_[slot].key != kFree) slot = (slot + 1) & mask_;
        entries_[slot] = {key, {static_cast<std::uint32_t>(rank), merges[rank][2]}};
    }
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
    Merge& merge = merges_of_[at];
    merge = next < ids_.size() ? merges_.find(ids_[at], ids_[next]) : Merge{Merges::kNone, 0};
    if (merge.rank != Merges::kNone) push(at, merge.rank);
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
    merges_of_.resize(size);
    for (std::uint32_t i = 0; i < size; ++i) {
        ids_[i] = byte_ids_[word[i]];
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
            if (ids_[at] < 0 || merges_of_[at].rank != rank) continue;
            const std::uint32_t gone = ends_[at], behind = ends_[gone];
            ids_[at] = merges_of_[at].id;
            ends_[at] = behind;
            ids_[gone] = -1;
            if (behind < size) befores_[behind] = at;
            const std::uint32_t before = befores_[at];
            enqueue(at);
            if (before != kNowhere) enqueue(before);
            const bool lower = merges_of_[at].rank < rank || (before != kNowhere && merges_of_[before].rank < rank);
            if (!lower) continue;
            // A merge has made a pair of lower rank, which comes first; the rest of the queue waits again.
            for (std::size_t rest = batch_.size(); --rest > i;) {
                const std::uint32_t waiting = batch_[rest];
                if (ids_[waiting] < 0 || merges_of_[waiting].rank != rank) continue;
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
    ends_ = befores_ = batch_ = {};
    merges_of_ = {};
    nodes_ = {};
}

}  // namespace fastbert::bpe
