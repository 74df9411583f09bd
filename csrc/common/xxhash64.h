// XXH64, the 64-bit hash of xxHash (Yann Collet): fast, well distributed, the same on every machine; not for untrusted
// keys.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fastbert {

namespace xxhash {

inline constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87, kPrime2 = 0xC2B2AE3D27D4EB4F, kPrime3 = 0x165667B19E3779F9,
                               kPrime4 = 0x85EBCA77C2B2AE63, kPrime5 = 0x27D4EB2F165667C5;

template <class Word>
Word read(const std::uint8_t* at) {
    Word word;
    std::memcpy(&word, at, sizeof(word));
    if constexpr (std::endian::native == std::endian::big) {
        Word swapped = 0;
        for (std::size_t i = 0; i < sizeof(word); ++i) swapped = static_cast<Word>(swapped << 8 | at[sizeof(word) - 1 - i]);
        return swapped;
    }
    return word;
}

inline std::uint64_t round(std::uint64_t sum, std::uint64_t word) {
    return std::rotl(sum + word * kPrime2, 31) * kPrime1;
}

inline std::uint64_t merge(std::uint64_t hash, std::uint64_t sum) {
    return (hash ^ round(0, sum)) * kPrime1 + kPrime4;
}

}  // namespace xxhash

inline std::uint64_t xxhash64(const void* data, std::size_t size, std::uint64_t seed = 0) {
    using namespace xxhash;
    const auto* at = static_cast<const std::uint8_t*>(data);
    std::size_t left = size;
    std::uint64_t hash = seed + kPrime5;
    if (size >= 32) {
        std::uint64_t sums[4] = {seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1};
        for (; left >= 32; left -= 32) {
            for (std::uint64_t& sum : sums) {
                sum = round(sum, read<std::uint64_t>(at));
                at += 8;
            }
        }
        hash = std::rotl(sums[0], 1) + std::rotl(sums[1], 7) + std::rotl(sums[2], 12) + std::rotl(sums[3], 18);
        for (const std::uint64_t sum : sums) hash = merge(hash, sum);
    }
    hash += size;
    for (; left >= 8; left -= 8, at += 8) {
        hash = std::rotl(hash ^ round(0, read<std::uint64_t>(at)), 27) * kPrime1 + kPrime4;
    }
    if (left >= 4) {
        hash = std::rotl(hash ^ read<std::uint32_t>(at) * kPrime1, 23) * kPrime2 + kPrime3;
        at += 4;
        left -= 4;
    }
    for (; left > 0; --left, ++at) hash = std::rotl(hash ^ *at * kPrime5, 11) * kPrime1;
    hash = (hash ^ hash >> 33) * kPrime2;
    hash = (hash ^ hash >> 29) * kPrime3;
    return hash ^ hash >> 32;
}

}  // namespace fastbert
