// The scan with NEON, which every 64-bit ARM processor has: a block is four registers.
#include "wordpiece/scan_blocks.h"

#if defined(__aarch64__)
#include <arm_neon.h>

namespace fastbert::wordpiece::scans {
namespace {

// The highest bits of 64 bytes that are all ones or all zeros each.
inline std::uint64_t mask_of(const uint8x16_t (&bytes)[4]) {
    alignas(16) static constexpr std::uint8_t kBits[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x16_t bits = vld1q_u8(kBits);
    const uint8x16_t low = vpaddq_u8(vandq_u8(bytes[0], bits), vandq_u8(bytes[1], bits));
    const uint8x16_t high = vpaddq_u8(vandq_u8(bytes[2], bits), vandq_u8(bytes[3], bits));
    const uint8x16_t sums = vpaddq_u8(low, high);
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(sums, sums)), 0);
}

BlockMasks classify(const std::uint8_t* from, bool lower_case, std::uint8_t* to) {
    const uint8x16_t low_half = vld1q_u8(kLowHalf.data()), high_half = vld1q_u8(kHighHalf.data());
    uint8x16_t inside[4], punctuation[4], continuation[4];
    for (int i = 0; i < 4; ++i) {
        uint8x16_t bytes = vld1q_u8(from + 16 * i);
        // The table's upper rows are zero, so bytes from 128 on belong to no class.
        const uint8x16_t bits = vandq_u8(vqtbl1q_u8(low_half, vandq_u8(bytes, vdupq_n_u8(0x0F))),
                                         vqtbl1q_u8(high_half, vshrq_n_u8(bytes, 4)));
        inside[i] = vceqzq_u8(bits);
        punctuation[i] = vtstq_u8(bits, vdupq_n_u8(kPunctuationBits));
        continuation[i] = vcltq_s8(vreinterpretq_s8_u8(bytes), vdupq_n_s8(static_cast<std::int8_t>(0xC0)));
        if (lower_case) {
            const uint8x16_t capital = vcltq_u8(vsubq_u8(bytes, vdupq_n_u8('A')), vdupq_n_u8(26));
            bytes = vaddq_u8(bytes, vandq_u8(capital, vdupq_n_u8(32)));
        }
        vst1q_u8(to + 16 * i, bytes);
    }
    return {mask_of(inside), mask_of(punctuation), mask_of(continuation)};
}

void scan(const std::uint8_t* text, std::size_t size, bool lower_case, Window& window) {
    const std::size_t count = block_count(size);
    std::uint8_t padded[kBlock];
    for (std::size_t i = 0; i < count; ++i) {
        window.masks[i] =
            classify(block_at(text, size, i, padded), lower_case, window.bytes.data() + i * kBlock);
    }
    collect_chunks(window, count);
}

}  // namespace

const Scan neon = scan;

}  // namespace fastbert::wordpiece::scans

#else
namespace fastbert::wordpiece::scans {
const Scan neon = nullptr;
}
#endif
