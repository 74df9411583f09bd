// Finds repeated lines and documents by their 64-bit hashes. Two of n different lines have the same hash with a
// probability of about n^2 / 2^65: 3 in 100 for a billion lines.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastbert::corpus {

// A set of hashes: 10 to 20 bytes per hash. It grows by 1/256 at a time, so that no moment needs two copies.
class HashSet {
public:
    HashSet() {
        for (Table& table : tables_) table.slots.resize(kSmallest);
    }

    // Return whether the hash is new.
    bool insert(std::uint64_t hash) {
        Table& table = tables_[hash >> 56];
        if (hash == 0) hash = 1;  // 0 marks a free slot
        if ((table.used + 1) * 5 > table.slots.size() * 4) grow(table);
        std::uint64_t& slot = find(table.slots, hash);
        if (slot == hash) return false;
        slot = hash;
        ++table.used;
        return true;
    }

    std::size_t bytes() const {
        std::size_t slots = 0;
        for (const Table& table : tables_) slots += table.slots.size();
        return slots * sizeof(std::uint64_t);
    }

private:
    static constexpr std::size_t kSmallest = 16;

    struct Table {
        std::vector<std::uint64_t> slots;
        std::size_t used = 0;
    };

    // Return the slot of a hash, or the free one where it belongs.
    static std::uint64_t& find(std::vector<std::uint64_t>& slots, std::uint64_t hash) {
        const std::size_t mask = slots.size() - 1;
        std::size_t i = hash & mask;
        while (slots[i] != 0 && slots[i] != hash) i = (i + 1) & mask;
        return slots[i];
    }

    static void grow(Table& table) {
        std::vector<std::uint64_t> larger(2 * table.slots.size());
        for (const std::uint64_t hash : table.slots) {
            if (hash != 0) find(larger, hash) = hash;
        }
        table.slots = std::move(larger);
    }

    std::array<Table, 256> tables_;
};

// The repeats of a corpus: which lines and documents were there before, and how many.
struct Repeats {
    bool of_lines = false, of_documents = false;
    HashSet seen_lines, seen_documents;
    std::int64_t lines = 0, documents = 0;  // that were read; lines only of documents that are not dropped
    std::int64_t dropped_lines = 0, dropped_documents = 0, dropped_line_bytes = 0, dropped_document_bytes = 0;
};

}  // namespace fastbert::corpus
