#include "tokenizer/chunk_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "common/buffer.h"

namespace fastbert::tokenizer {

// Mapped directly: its pages are zero, and untouched pages are free.
template <class Item>
ChunkCache::Table<Item>::Table(unsigned bits) : bytes((sizeof(Item) << bits) + kAlignment) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    entries = reinterpret_cast<Item*>((address + kAlignment - 1) & ~(kAlignment - 1));
    advise_huge_pages(entries, sizeof(Item) << bits);
}

template <class Item>
ChunkCache::Table<Item>::~Table() {
    munmap(memory, bytes);
}

template struct ChunkCache::Table<ChunkCache::ShortLine>;
template struct ChunkCache::Table<ChunkCache::MiddleEntry>;
template struct ChunkCache::Table<ChunkCache::LongEntry>;

ChunkCache::ChunkCache() : short_lines_(kShortBits), middle_entries_(kMiddleBits), long_entries_(kLongBits) {}

void ChunkCache::insert(const std::uint8_t* chunk, std::size_t size, std::span<const Piece> pieces, bool keep) {
    if (size > kLongBytes || pieces.size() > LongPieces::kMax) return;
    const auto insert_elsewhere = [&] {
        const bool is_middle = size <= kMiddleBytes && pieces.size() <= MiddlePieces::kMax;
        is_middle ? insert_middle(chunk, size, pieces, keep) : insert_long(chunk, size, pieces, keep);
    };
    if (size > kShortBytes) return insert_elsewhere();
    const bool few = pieces.size() <= ShortPieces::kMax;
    if (!few && find_short(chunk, size) != nullptr) {
        // Second occurrence: only now is it worth an entry of its own.
        return insert_elsewhere();
    }
    ShortPieces value{};
    value.alignment = (few ? static_cast<std::uint32_t>(pieces.size()) : ShortPieces::kElsewhere) << 28 |
                      static_cast<std::uint32_t>(keep) << 27;
    for (std::size_t i = 0; few && i < pieces.size(); ++i) {
        value.ids[i] = pieces[i].id;
        value.alignment |= (pieces[i].begin | pieces[i].end << 4) << 8 * i;
        if (i > 0) value.alignment |= pieces[i].word << (23 + i);
    }
    insert_short(short_key(chunk, size), value);
}

void ChunkCache::note(const std::uint8_t* chunk, std::size_t size) {
    ShortPieces value{};
    value.alignment = ShortPieces::kElsewhere << 28;
    insert_short(short_key(chunk, size), value);
}

void ChunkCache::insert_short(const ShortKey& key, const ShortPieces& value) {
    const std::size_t slot = short_slot(key);
    const std::uint32_t random = next_random();
    // Return its entry, else a free one, else an evictable one, else null. The first line is probed first, so frequent
    // chunks, which come early, should be stored there.
    const auto put = [&](std::uint32_t start, auto may_take) {
        for (std::uint32_t i = 0; i < 2 * kShortLines; ++i) {
            const std::uint32_t choice = i ^ start;
            ShortLine& line = short_lines_[slot ^ (choice >> 1)];
            const std::size_t entry = choice & 1;
            if (!may_take(line.keys[entry], line.pieces[entry])) continue;
            line.keys[entry] = key;
            line.pieces[entry] = value;
            return true;
        }
        return false;
    };
    put(0, [&](const ShortKey& stored, const ShortPieces&) { return stored == key; }) ||
        put(0, [](const ShortKey& stored, const ShortPieces&) { return stored.high == 0; }) ||
        put(random % (2 * kShortLines), [](const ShortKey&, const ShortPieces& pieces) { return !pieces.pinned(); });
}

void ChunkCache::insert_middle(const std::uint8_t* chunk, std::size_t size, std::span<const Piece> pieces, bool keep) {
    MiddlePieces value{};
    value.flags = static_cast<std::uint32_t>(pieces.size()) | static_cast<std::uint32_t>(keep) << 3;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        value.ids[i] = pieces[i].id;
        value.places |= static_cast<std::uint64_t>(pieces[i].begin | pieces[i].end << 5) << 10 * i;
        if (i > 0 && pieces[i].word != pieces[i - 1].word) value.flags |= 1U << (4 + i);
    }
    put(middle_entries_, middle_key(chunk, size), value);
}

void ChunkCache::insert_long(const std::uint8_t* chunk, std::size_t size, std::span<const Piece> pieces, bool keep) {
    LongPieces value{};
    value.number = static_cast<std::uint8_t>(pieces.size());
    value.is_pinned = keep;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        const bool new_word = i > 0 && pieces[i].word != pieces[i - 1].word;
        value.ids[i] = pieces[i].id;
        value.begins[i] = static_cast<std::uint8_t>(pieces[i].begin | (new_word ? LongPieces::kNewWord : 0));
        value.ends[i] = static_cast<std::uint8_t>(pieces[i].end);
    }
    put(long_entries_, long_key(chunk, size), value);
}

// Into a free place of two, else into either that may be evicted.
template <class KeyType, class Pieces>
void ChunkCache::put(Table<Entry<KeyType, Pieces>>& table, const KeyType& key, const Pieces& value) {
    const std::size_t slot = slot_of(key);
    const auto is_free = [&table](std::size_t at) { return table[at].key.words.back() == 0; };
    std::size_t at = is_free(slot) ? slot : is_free(slot ^ 1) ? slot ^ 1 : slot ^ (next_random() & 1);
    if (!is_free(at) && table[at].pieces.pinned()) at ^= 1;
    if (!is_free(at) && table[at].pieces.pinned()) return;
    table[at] = {key, value};
}

// xorshift: which chunk is evicted does not matter, as long as a text cannot predict it.
std::uint32_t ChunkCache::next_random() {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 17;
    random_ ^= random_ << 5;
    return random_;
}

}  // namespace fastbert::tokenizer
