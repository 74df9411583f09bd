// Philox-4x32-10: random numbers as a pure function of a counter and a key.
//
// The generator of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011): ten rounds
// of two 32 x 32 -> 64 bit products, whose high halves are mixed with the key and the other words. It has no state, so
// any random number of a run can be drawn again, in any order, on any thread.
#pragma once
#include <array>
#include <cstdint>

namespace fastbert {

inline constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
    constexpr uint32_t MULTIPLIER_0 = 0xD2511F53, MULTIPLIER_1 = 0xCD9E8D57;
    // The key's schedule: the fractional parts of the golden ratio and of sqrt(3) - 1.
    constexpr uint32_t WEYL_0 = 0x9E3779B9, WEYL_1 = 0xBB67AE85;
    for (int round = 0; round < 10; ++round) {
        const uint64_t product_0 = uint64_t{MULTIPLIER_0} * counter[0];
        const uint64_t product_1 = uint64_t{MULTIPLIER_1} * counter[2];
        counter = {static_cast<uint32_t>(product_1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product_1),
                   static_cast<uint32_t>(product_0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product_0)};
        key = {key[0] + WEYL_0, key[1] + WEYL_1};
    }
    return counter;
}

}  // namespace fastbert
