// Whole words that are one token: a hash table over words of at most 15 bytes. Most words of running text end here.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace fastbert::wordpiece {

class WordTable {
public:
    static constexpr std::size_t kMaxBytes = 15;
    static constexpr std::int32_t kNone = -1;

    explicit WordTable(std::size_t capacity = 0) : slots_(std::bit_ceil(2 * capacity + 2)) {}

    // The word must be new and of 1 to kMaxBytes bytes; at most `capacity` words fit.
    void insert(std::string_view word, std::int32_t id) {
        std::uint8_t padded[16] = {};
        std::memcpy(padded, word.data(), word.size());
        const Key key = key_of(padded, word.size());
        std::size_t at = place(key);
        while (slots_[at].id != kNone) at = (at + 1) & (slots_.size() - 1);
        slots_[at] = {key, id};
    }

    // Sixteen bytes from `word` must be readable.
    std::int32_t find(const std::uint8_t* word, std::size_t size) const {
        const Key key = key_of(word, size);
        for (std::size_t at = place(key);; at = (at + 1) & (slots_.size() - 1)) {
            const Slot& slot = slots_[at];
            if (slot.id == kNone || slot.key == key) return slot.id;
        }
    }

private:
    // The bytes, and the size in the topmost byte.
    struct Key {
        std::uint64_t low = 0, high = 0;
        bool operator==(const Key&) const = default;
    };
    struct Slot {
        Key key;
        std::int32_t id = kNone;
    };

    static Key key_of(const std::uint8_t* word, std::size_t size) {
        Key key;
        std::memcpy(&key.low, word, 8);
        std::memcpy(&key.high, word + 8, 8);
        if constexpr (std::endian::native == std::endian::big) {
            key = {__builtin_bswap64(key.low), __builtin_bswap64(key.high)};
        }
        const auto mask = [](std::size_t bytes) { return (std::uint64_t{1} << 8 * bytes) - 1; };
        if (size < 8) {
            key = {key.low & mask(size), 0};
        } else {
            key.high &= mask(size - 8);
        }
        key.high |= static_cast<std::uint64_t>(size) << 56;
        return key;
    }

    std::size_t place(const Key& key) const {
        std::uint64_t hash = (key.low * 0x9E3779B97F4A7C15u) ^ (key.high * 0xC2B2AE3D27D4EB4Fu);
        hash = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93u;
        return (hash ^ hash >> 32) & (slots_.size() - 1);
    }

    std::vector<Slot> slots_;
};

}  // namespace fastbert::wordpiece
