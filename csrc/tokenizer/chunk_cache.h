// A cache of the tokens of chunks. A chunk's tokens depend on its bytes alone (see scanner.h), which are the key: a
// cache line holds two chunks of at most 15 bytes with up to three tokens each; two lines hold a chunk of at most 63
// bytes with up to ten. The tokens' offsets within the chunk are stored with them.
//
// The tables have a fixed size, and a lookup reads at most two entries of each, so no text makes them slow.
#pragma once
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>

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

// Up to ten tokens of a chunk of at most 63 bytes.
struct LongPieces {
    static constexpr std::size_t kMax = 10;
    static constexpr std::uint8_t kNewWord = 64;  // beside the begin of a token that does not go on with a word

    std::array<std::int32_t, kMax> ids;
    std::array<std::uint8_t, kMax> begins;
    std::array<std::uint8_t, kMax> ends;
    std::uint8_t number;
    std::uint8_t pinned;  // never evicted
    std::uint16_t unused;

    std::size_t count() const { return number; }
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
    static constexpr std::size_t kLongBytes = 63;

    ChunkCache();

    // The line of a chunk of at most kShortBytes, and its prefetch.
    std::size_t short_slot(const std::uint8_t* chunk, std::size_t size) const {
        return slot_of(short_key(chunk, size));
    }
    void prefetch(std::size_t short_slot) const { __builtin_prefetch(&short_lines_[short_slot]); }

    // Return the tokens of a chunk, or null. As many bytes as the longest chunk of the kind, plus one, must be
    // readable.
    const ShortPieces* find_short(const std::uint8_t* chunk, std::size_t size, std::size_t slot) const {
        const ShortKey key = short_key(chunk, size);
        // Both entries of a line are compared branch-free, since the matching one is unpredictable.
        const auto look_in = [&key](const ShortLine& line) -> const ShortPieces* {
            const bool first = line.keys[0] == key, second = line.keys[1] == key;
            return (first | second) ? &line.pieces[second] : nullptr;
        };
        if (const ShortPieces* pieces = look_in(short_lines_[slot])) [[likely]] return pieces;
        return look_in(short_lines_[slot ^ 1]);
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
    struct ShortKey {
        std::uint64_t low, high;  // the bytes; the size in the topmost one, so that an empty slot equals no chunk
        bool operator==(const ShortKey& other) const { return ((low ^ other.low) | (high ^ other.high)) == 0; }
    };
    struct LongKey {
        std::array<std::uint64_t, 8> words;
        bool operator==(const LongKey& other) const {
            std::uint64_t difference = 0;
            for (std::size_t i = 0; i < words.size(); ++i) difference |= words[i] ^ other.words[i];
            return difference == 0;
        }
    };
    struct alignas(64) ShortLine {
        std::array<ShortKey, 2> keys;
        std::array<ShortPieces, 2> pieces;
    };
    struct alignas(64) LongEntry {
        LongKey key;
        LongPieces pieces;
    };
    static_assert(sizeof(ShortLine) == 64 && sizeof(LongEntry) == 128);

    static constexpr unsigned kShortBits = 17, kLongBits = 15;  // of 8 and 4 MB

    // 2^bits entries on huge pages, initially zero.
    template <class Entry>
    struct Table {
        explicit Table(unsigned bits);
        Table(const Table&) = delete;
        Table& operator=(const Table&) = delete;
        ~Table();
        Entry& operator[](std::size_t i) { return entries[i]; }
        const Entry& operator[](std::size_t i) const { return entries[i]; }

        static constexpr std::size_t kAlignment = std::size_t{1} << 21;  // of a huge page
        Entry* entries;
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
    // The masks of both words for the chunk's size, and the size in its position.
    struct ShortMask {
        std::uint64_t low, high, size;
    };
    static constexpr std::array<ShortMask, 16> kShortMasks = [] {
        std::array<ShortMask, 16> masks{};
        for (std::size_t size = 0; size < 16; ++size) {
            masks[size] = {kFirstBytes[size < 8 ? size : 8], kFirstBytes[size < 8 ? 0 : size - 8],
                           static_cast<std::uint64_t>(size) << 56};
        }
        return masks;
    }();

    static ShortKey short_key(const std::uint8_t* chunk, std::size_t size) {
        const ShortMask& mask = kShortMasks[size];
        return {load(chunk) & mask.low, (load(chunk + 8) & mask.high) | mask.size};
    }
    static LongKey long_key(const std::uint8_t* chunk, std::size_t size);

    std::size_t slot_of(const ShortKey& key) const {
        return (key.low * 0x9E3779B97F4A7C15U + key.high * 0xC2B2AE3D27D4EB4FU) >> (64 - kShortBits);
    }
    std::size_t slot_of(const LongKey& key) const;

    void insert_short(const ShortKey& key, const ShortPieces& value);
    void insert_long(const std::uint8_t* chunk, std::size_t size, std::span<const Piece> pieces, bool keep);
    std::uint32_t next_random();

    Table<ShortLine> short_lines_;
    Table<LongEntry> long_entries_;
    std::uint32_t random_ = 1;
};

}  // namespace fastbert::tokenizer
