// A cache of the tokens of chunks. A chunk's tokens depend on its bytes alone (see window.h), which are the key: a cache
// line holds two chunks of at most 15 bytes with up to three tokens each, or one of at most 31 bytes with up to five; two
// lines hold a chunk of at most 63 bytes with up to ten. The tokens' offsets within the chunk are stored with them.
//
// The tables have a fixed size, and a lookup reads few entries of each, so no text makes them slow.
#pragma once
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace fastbert::tokenizer {

// One token of a chunk: its id, its character range within the chunk, and the index of its word in the chunk.
struct Piece {
    std::int32_t id;
    std::uint32_t begin, end;
    std::uint32_t word;
};

// Up to three tokens of a chunk of at most 15 bytes.
struct ShortPieces {
    static constexpr std::size_t kMax = 3;
    static constexpr std::size_t kCopied = 16;  // bytes, from the ids on, so that one instruction copies them

    std::array<std::int32_t, kMax> ids;
    // From bit 0: four bits begin and four bits end of each token; from bit 24: the words of the second and third
    // tokens, one bit and two bits; bit 27: pinned; from bit 28: the number of tokens, or kElsewhere.
    std::uint32_t alignment;

    // A chunk seen once, or one with more tokens, which is stored as a long entry once it is seen twice.
    static constexpr std::uint32_t kElsewhere = 4;

    bool elsewhere() const { return alignment >> 28 == kElsewhere; }

    std::size_t count() const { return alignment >> 28; }
    bool pinned() const { return alignment >> 27 & 1; }
    std::uint32_t begin(std::size_t i) const { return alignment >> 8 * i & 15; }
    std::uint32_t end(std::size_t i) const { return alignment >> (8 * i + 4) & 15; }
    std::uint32_t word(std::size_t i) const { return i == 0 ? 0 : i == 1 ? alignment >> 24 & 1 : alignment >> 25 & 3; }
};

// Up to five tokens of a chunk of at most 31 bytes.
struct MiddlePieces {
    static constexpr std::size_t kMax = 5;
    static constexpr std::size_t kCopied = 4 * kMax;

    std::array<std::int32_t, kMax> ids;
    // From bit 0: the number of tokens; bit 3: pinned; from bit 4: one bit for each token that begins a new word.
    std::uint32_t flags;
    std::uint64_t places;  // five bits begin and five bits end of each token

    std::size_t count() const { return flags & 7; }
    bool pinned() const { return flags >> 3 & 1; }
    std::uint32_t begin(std::size_t i) const { return static_cast<std::uint32_t>(places >> 10 * i) & 31; }
    std::uint32_t end(std::size_t i) const { return static_cast<std::uint32_t>(places >> (10 * i + 5)) & 31; }
    std::uint32_t word(std::size_t i) const {
        std::uint32_t words = 0;
        for (std::size_t j = 1; j <= i; ++j) words += flags >> (4 + j) & 1;
        return words;
    }
};

// Up to ten tokens of a chunk of at most 63 bytes.
struct LongPieces {
    static constexpr std::size_t kMax = 10;
    static constexpr std::size_t kCopied = 4 * kMax;
    static constexpr std::uint8_t kNewWord = 64;  // beside the begin of a token that does not go on with a word

    std::array<std::int32_t, kMax> ids;
    std::array<std::uint8_t, kMax> begins;
    std::array<std::uint8_t, kMax> ends;
    std::uint8_t number;
    std::uint8_t is_pinned;  // never evicted
    std::uint16_t unused;

    std::size_t count() const { return number; }
    bool pinned() const { return is_pinned; }
    std::uint32_t begin(std::size_t i) const { return begins[i] & (kNewWord - 1U); }
    std::uint32_t end(std::size_t i) const { return ends[i]; }
    std::uint32_t word(std::size_t i) const {
        std::uint32_t words = 0;
        for (std::size_t j = 1; j <= i; ++j) words += begins[j] / kNewWord;
        return words;
    }
};

class ChunkCache {
public:
    static constexpr std::size_t kShortBytes = 15;
    static constexpr std::size_t kMiddleBytes = 31;
    static constexpr std::size_t kLongBytes = 63;

    static constexpr std::size_t kShortLines = 4;  // that may hold a chunk of at most kShortBytes

    ChunkCache();

    // The bytes of a chunk of at most kShortBytes, filled up with a byte that UTF-8 lacks. An empty slot, and
    // no_key(), equal no chunk: the last byte is always filled.
    struct alignas(16) ShortKey {
        std::uint64_t low, high;
        bool operator==(const ShortKey& other) const { return ((low ^ other.low) | (high ^ other.high)) == 0; }
    };
    static constexpr ShortKey no_key(std::size_t value) { return {value, 1}; }
    // kShortBytes + 1 bytes must be readable.
    static ShortKey short_key(const std::uint8_t* chunk, std::size_t size) {
        const ShortKey& fill = kFillings[size];
        return {load(chunk) | fill.low, load(chunk + 8) | fill.high};
    }

    // The line of a chunk of at most kShortBytes, and its prefetch.
    static std::size_t short_slot(const ShortKey& key) {
        return (key.low * 0x9E3779B97F4A7C15U + key.high * 0xC2B2AE3D27D4EB4FU) >> (64 - kShortBits);
    }
    void prefetch(std::size_t short_slot) const { __builtin_prefetch(&short_lines_[short_slot]); }
    // The same for one of at most kMiddleBytes.
    std::size_t middle_slot(const std::uint8_t* chunk, std::size_t size) const {
        return slot_of(middle_key(chunk, size));
    }
    static std::size_t middle_slot(const ShortKey& key) {
        return slot_of(MiddleKey{{key.low, key.high, ~std::uint64_t{0}, ~std::uint64_t{0}}});
    }
    void prefetch_middle(std::size_t slot) const { __builtin_prefetch(&middle_entries_[slot]); }

    // Return the tokens of a chunk, or null. As many bytes as the longest chunk of the kind, plus one, must be
    // readable. find_first() looks in the first line only, where most are.
    const ShortPieces* find_first(const ShortKey& key, std::size_t slot) const {
        // Both entries are compared branch-free, since the matching one is unpredictable.
        const ShortLine& line = short_lines_[slot];
#if defined(__SSE2__)
        const auto same = [k = _mm_load_si128(reinterpret_cast<const __m128i*>(&key))](const ShortKey& stored) {
            const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(&stored));
            return _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, k)) == 0xFFFF;
        };
        const bool first = same(line.keys[0]), second = same(line.keys[1]);
#else
        const bool first = line.keys[0] == key, second = line.keys[1] == key;
#endif
        return (first | second) ? &line.pieces[second] : nullptr;
    }
    const ShortPieces* find_short(const ShortKey& key, std::size_t slot) const {
        const ShortPieces* pieces = nullptr;
        for (std::size_t i = 0; pieces == nullptr && i < kShortLines; ++i) pieces = find_first(key, slot ^ i);
        return pieces;
    }
    const ShortPieces* find_short(const std::uint8_t* chunk, std::size_t size) const {
        const ShortKey key = short_key(chunk, size);
        return find_short(key, short_slot(key));
    }
    const MiddlePieces* find_middle(const std::uint8_t* chunk, std::size_t size, std::size_t slot) const {
        const MiddleKey key = middle_key(chunk, size);
        for (const std::size_t at : {slot, slot ^ 1}) {
            if (middle_entries_[at].key == key) return &middle_entries_[at].pieces;
        }
        return nullptr;
    }
    const LongPieces* find_long(const std::uint8_t* chunk, std::size_t size) const {
        const LongKey key = long_key(chunk, size);
        const std::size_t slot = slot_of(key);
        for (const std::size_t at : {slot, slot ^ 1}) {
            if (long_entries_[at].key == key) return &long_entries_[at].pieces;
        }
        return nullptr;
    }

    // Store the tokens of a new chunk if possible. `keep`: never evict the entry for chunks of later texts. note() only
    // records that a short chunk was seen.
    void note(const std::uint8_t* chunk, std::size_t size);
    void insert(const std::uint8_t* chunk, std::size_t size, std::span<const Piece> pieces, bool keep);

private:
    template <std::size_t kWords>
    struct Key {
        std::array<std::uint64_t, kWords> words;
        bool operator==(const Key& other) const {
            std::uint64_t difference = 0;
            for (std::size_t i = 0; i < kWords; ++i) difference |= words[i] ^ other.words[i];
            return difference == 0;
        }
    };
    using MiddleKey = Key<4>;
    using LongKey = Key<8>;
    struct alignas(64) ShortLine {
        std::array<ShortKey, 2> keys;
        std::array<ShortPieces, 2> pieces;
    };
    template <class KeyType, class Pieces>
    struct alignas(64) Entry {
        KeyType key;
        Pieces pieces;
    };
    using MiddleEntry = Entry<MiddleKey, MiddlePieces>;
    using LongEntry = Entry<LongKey, LongPieces>;
    static_assert(sizeof(ShortLine) == 64 && sizeof(MiddleEntry) == 64 && sizeof(LongEntry) == 128);

    static constexpr unsigned kShortBits = 17, kMiddleBits = 17, kLongBits = 14;  // of 8, 8 and 2 MB

    // 2^bits entries on huge pages, initially zero.
    template <class Item>
    struct Table {
        explicit Table(unsigned bits);
        Table(const Table&) = delete;
        Table& operator=(const Table&) = delete;
        ~Table();
        Item& operator[](std::size_t i) { return entries[i]; }
        const Item& operator[](std::size_t i) const { return entries[i]; }

        static constexpr std::size_t kAlignment = std::size_t{1} << 21;  // of a huge page
        Item* entries;
        void* memory;
        std::size_t bytes;
    };

    static std::uint64_t load(const std::uint8_t* from) {
        std::uint64_t word;
        std::memcpy(&word, from, 8);
        return word;
    }
    // The first bytes of a word in memory order.
    static_assert(std::endian::native == std::endian::little);
    static constexpr std::array<std::uint64_t, 9> kFirstBytes = [] {
        std::array<std::uint64_t, 9> masks{};
        for (unsigned i = 0; i < 8; ++i) masks[i] = (std::uint64_t{1} << 8 * i) - 1;
        masks[8] = ~std::uint64_t{0};
        return masks;
    }();
    // By the size of a chunk, what fills its key.
    static constexpr std::array<ShortKey, kShortBytes + 1> kFillings = [] {
        std::array<ShortKey, kShortBytes + 1> fillings{};
        for (std::size_t size = 0; size <= kShortBytes; ++size) {
            fillings[size] = {~kFirstBytes[size < 8 ? size : 8], ~kFirstBytes[size < 8 ? 0 : size - 8]};
        }
        return fillings;
    }();

    // The loop skips words that are filling as a whole.
    template <std::size_t kWords>
    static Key<kWords> key_of(const std::uint8_t* chunk, std::size_t size) {
        Key<kWords> key;
        key.words.fill(~std::uint64_t{0});
        for (std::size_t i = 0; 8 * i < size; ++i) {
            const std::size_t left = size - 8 * i;
            key.words[i] = load(chunk + 8 * i) | ~kFirstBytes[left < 8 ? left : 8];
        }
        return key;
    }
    static MiddleKey middle_key(const std::uint8_t* chunk, std::size_t size) { return key_of<4>(chunk, size); }
    static LongKey long_key(const std::uint8_t* chunk, std::size_t size) { return key_of<8>(chunk, size); }

    template <std::size_t kWords>
    static std::uint64_t hash_of(const Key<kWords>& key) {
        std::uint64_t hash = 0;
        for (const std::uint64_t word : key.words) hash = (std::rotl(hash, 29) ^ word) * 0x9E3779B97F4A7C15U;
        return hash;
    }

    static std::size_t slot_of(const MiddleKey& key) { return hash_of(key) >> (64 - kMiddleBits); }
    static std::size_t slot_of(const LongKey& key) { return hash_of(key) >> (64 - kLongBits); }

    void insert_short(const ShortKey& key, const ShortPieces& value);
    void insert_middle(const std::uint8_t* chunk, std::size_t size, std::span<const Piece> pieces, bool keep);
    void insert_long(const std::uint8_t* chunk, std::size_t size, std::span<const Piece> pieces, bool keep);
    template <class KeyType, class Pieces>
    void put(Table<Entry<KeyType, Pieces>>& table, const KeyType& key, const Pieces& value);
    std::uint32_t next_random();

    Table<ShortLine> short_lines_;
    Table<MiddleEntry> middle_entries_;
    Table<LongEntry> long_entries_;
    std::uint32_t random_ = 1;
};

}  // namespace fastbert::tokenizer
