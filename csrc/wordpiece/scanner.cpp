#include "wordpiece/scanner.h"

#include <algorithm>
#include <bit>

#include "common/cpu_features.h"
#include "wordpiece/scan_blocks.h"

namespace fastbert::wordpiece {
namespace scans {
namespace {

struct ByteClass {
    bool inside, punctuation;
};

constexpr std::array<ByteClass, 256> kByteClasses = [] {
    std::array<ByteClass, 256> classes{};
    for (unsigned byte = 0; byte < 256; ++byte) {
        const unsigned bits = byte < 128 ? kLowHalf[byte & 15] & kHighHalf[byte >> 4] : 0;
        classes[byte] = {bits == 0, (bits & kPunctuationBits) != 0};
    }
    return classes;
}();

}  // namespace

void collect_chunks(Window& window, std::size_t count) {
    const auto append = [](std::uint64_t mask, std::size_t base, std::uint16_t* to) {
        for (; mask != 0; mask &= mask - 1) *to++ = static_cast<std::uint16_t>(base + std::countr_zero(mask));
        return to;
    };
    collect_chunks(window, count, append);
}

void portable(const std::uint8_t* text, std::size_t size, bool lower_case, Window& window) {
    const std::size_t count = block_count(size);
    std::uint8_t padded[kBlock];
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint8_t* const from = block_at(text, size, i, padded);
        std::uint8_t* const to = window.bytes.data() + i * kBlock;
        BlockMasks masks{};
        for (std::size_t j = 0; j < kBlock; ++j) {
            const std::uint8_t byte = from[j];
            const bool capital = lower_case && static_cast<std::uint8_t>(byte - 'A') < 26;
            to[j] = static_cast<std::uint8_t>(byte + (capital ? 32 : 0));
            masks.inside |= std::uint64_t{kByteClasses[byte].inside} << j;
            masks.punctuation |= std::uint64_t{kByteClasses[byte].punctuation} << j;
            masks.continuation |= std::uint64_t{(byte & 0xC0) == 0x80} << j;
        }
        window.masks[i] = masks;
    }
    collect_chunks(window, count);
}

}  // namespace scans

const std::array<ScanVersion, 4>& scan_versions() {
    static const std::array<ScanVersion, 4> versions = [] {
        const CpuFeatures& has = cpu_features();
        return std::array<ScanVersion, 4>{{
            {"avx512", scans::avx512, scans::avx512 && has.avx512bw && has.avx512vl && has.avx512_vbmi2},
            {"avx2", scans::avx2, scans::avx2 && has.avx2},
            {"neon", scans::neon, scans::neon != nullptr},
            {"portable", scans::portable, true},
        }};
    }();
    return versions;
}

Scan fastest_scan() {
    const auto& versions = scan_versions();
    return std::find_if(versions.begin(), versions.end(), [](const ScanVersion& v) { return v.usable; })->scan;
}

}  // namespace fastbert::wordpiece
