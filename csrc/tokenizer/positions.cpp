#include "tokenizer/positions.h"

#include <bit>

#include "common/cpu_features.h"

namespace fastbert::tokenizer {

void positions::portable(const std::uint64_t* starts, std::size_t size, Window& window) {
    std::uint16_t* to = window.starts.data();
    for (std::size_t i = 0; i < block_count(size); ++i) {
        window.chunks_before[i] = static_cast<std::uint16_t>(to - window.starts.data());
        window.first_bytes[i] = starts[i];
        for (std::uint64_t mask = starts[i]; mask != 0; mask &= mask - 1) {
            *to++ = static_cast<std::uint16_t>(i * kBlock + static_cast<std::size_t>(std::countr_zero(mask)));
        }
    }
    finish(to, size, window);
}

SetChunks fastest_set_chunks() {
    const CpuFeatures& has = cpu_features();
    const bool usable = positions::avx512 != nullptr && has.avx512bw && has.avx512vl && has.avx512_vbmi2;
    return usable ? positions::avx512 : positions::portable;
}

}  // namespace fastbert::tokenizer
