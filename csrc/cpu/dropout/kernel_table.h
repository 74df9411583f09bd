// Dispatch table of the mask generators, one per CPU capability. All return the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/dropout/dropout.h"

namespace fastbert {

// A row of draws for a token: Philox blocks with counters (i, position, 0, site) under `key`.
struct TokenRow {
    std::uint32_t position = 0, site = 0;
    std::uint64_t key = 0;
    std::uint32_t threshold = 0;  // below 65536
};

struct DropoutKernels {
    // Write `keep` for draws that reach the threshold, else 0, to `count` elements.
    void (*fill16)(const TokenRow& row, std::size_t count, std::uint16_t keep, std::uint16_t* out);
    void (*fill32)(const TokenRow& row, std::size_t count, std::uint32_t keep, std::uint32_t* out);
    decltype(&attention_row_bits) row_bits;
    decltype(&attention_column_bits) column_bits;
};

inline constexpr int kDropoutRounds = 7;  // the fewest that pass the BigCrush tests (Salmon et al. 2011, table 2)
inline constexpr std::uint32_t kPhiloxMultipliers[2] = {0xD2511F53U, 0xCD9E8D57U};
inline constexpr std::uint32_t kPhiloxSteps[2] = {0x9E3779B9U, 0xBB67AE85U};  // of the key, per round

const DropoutKernels& dropout_kernels_portable();
const DropoutKernels& dropout_kernels_avx2();
const DropoutKernels& dropout_kernels_avx512();

}  // namespace fastbert
