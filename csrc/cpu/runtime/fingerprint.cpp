#include "cpu/runtime/fingerprint.h"

#include <algorithm>
#include <array>
#include <bit>

#include "cpu/runtime/parallel.h"

namespace fastbert {
namespace {

// Bytes hashed per task; the split is the same for any number of threads.
constexpr std::size_t kChunk = 256 << 10;
// Below this number of chunks, waking a thread takes longer than its work.
constexpr std::size_t kGrain = 4;
constexpr std::size_t kLanes = 8, kLine = kLanes * sizeof(std::uint64_t);

// One multiplication per word, in lanes whose latencies overlap. Each step is a bijection of the lane for any word and
// of the word for any lane, so a single changed word always shows; the rotation carries upper bits (signs) down.
struct Lanes {
    std::array<std::uint64_t, kLanes> lane{1, 2, 3, 4, 5, 6, 7, 8};

    void add(const std::byte* line) {
        std::array<std::uint64_t, kLanes> words;
        std::memcpy(words.data(), line, kLine);
        for (std::size_t i = 0; i < kLanes; ++i)
            lane[i] = std::rotl(lane[i] ^ words[i], 29) * 0x9E3779B97F4A7C15ULL;
    }
};

std::uint64_t mix(std::uint64_t mixed, std::uint64_t word) {
    mixed = (mixed ^ word) * 0xD6E8FEB86659FD93ULL;
    return mixed ^ mixed >> 32;
}

std::uint64_t hash(const MemorySpan& chunk) {
    Lanes lanes;
    std::size_t at = 0;
    for (; at + kLine <= chunk.bytes; at += kLine) lanes.add(chunk.memory + at);
    if (at < chunk.bytes) {
        std::array<std::byte, kLine> last{};
        std::memcpy(last.data(), chunk.memory + at, chunk.bytes - at);
        lanes.add(last.data());
    }
    std::uint64_t mixed = chunk.bytes;
    for (std::uint64_t lane : lanes.lane) mixed = mix(mixed, lane);
    return mixed;
}

}  // namespace

std::uint64_t full_fingerprint(const std::vector<MemorySpan>& spans) {
    std::vector<MemorySpan> chunks;
    for (const MemorySpan& span : spans) {
        for (std::size_t at = 0; at < span.bytes; at += kChunk)
            chunks.push_back({span.memory + at, std::min(kChunk, span.bytes - at)});
    }
    std::vector<std::uint64_t> hashes(chunks.size());
    parallel_ranges(chunks.size(), kGrain, [&](std::size_t first, std::size_t last) {
        for (std::size_t i = first; i < last; ++i) hashes[i] = hash(chunks[i]);
    });
    std::uint64_t mixed = 0;
    for (std::uint64_t chunk_hash : hashes) mixed = mix(mixed, chunk_hash);
    return mixed;
}

}  // namespace fastbert
