// Fingerprints of memory that may have been modified: sampled or complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace fastbert {

// Return a fingerprint that changes, except with probability 2^-64, if any of 64 eight-byte words spread evenly over
// `bytes` bytes, or the last ones, change. Detects writes to a whole weight, not to single elements between the words.
inline std::uint64_t fingerprint(const std::byte* memory, std::size_t bytes, std::uint64_t seed) {
    constexpr std::size_t kWords = 64, kBytes = sizeof(std::uint64_t);
    std::uint64_t mixed = seed ^ bytes * 0x9E3779B97F4A7C15ULL;
    const auto add = [&](std::uint64_t word) {
        mixed = (mixed ^ word) * 0xD6E8FEB86659FD93ULL;
        mixed ^= mixed >> 32;
    };
    if (bytes <= kWords * kBytes) {
        for (std::size_t i = 0; i < bytes; ++i) add(static_cast<std::uint64_t>(memory[i]));
        return mixed;
    }
    // Load all words before mixing, to overlap their cache misses.
    std::uint64_t words[kWords + 1];
    const std::size_t stride = bytes / kWords;
    for (std::size_t i = 0; i < kWords; ++i) std::memcpy(&words[i], memory + i * stride, kBytes);
    std::memcpy(&words[kWords], memory + bytes - kBytes, kBytes);
    for (std::uint64_t word : words) add(word);
    return mixed;
}

struct MemorySpan {
    const std::byte* memory = nullptr;
    std::size_t bytes = 0;
};

// Return a fingerprint that changes, except with probability 2^-64, if any byte of the spans changes; independent of
// the number of threads. Runs at about memory bandwidth.
std::uint64_t full_fingerprint(const std::vector<MemorySpan>& spans);

}  // namespace fastbert
