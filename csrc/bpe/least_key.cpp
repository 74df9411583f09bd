#include "bpe/least_key.h"

#include <algorithm>

#include "common/cpu_features.h"

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// Registers that GCC's own header leaves undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#endif

namespace fastbert::bpe {
namespace {

std::int32_t portable(const std::int32_t* keys, std::size_t count) { return *std::min_element(keys, keys + count); }

#if defined(__x86_64__)
__attribute__((target("avx512f"))) std::int32_t avx512(const std::int32_t* keys, std::size_t count) {
    __m512i least = _mm512_load_si512(keys);
    for (std::size_t i = kKeyLanes; i < count; i += kKeyLanes) {
        least = _mm512_min_epi32(least, _mm512_load_si512(keys + i));
    }
    return _mm512_reduce_min_epi32(least);
}

__attribute__((target("avx2"))) std::int32_t avx2(const std::int32_t* keys, std::size_t count) {
    const auto* const vectors = reinterpret_cast<const __m256i*>(keys);
    __m256i least = _mm256_load_si256(vectors);
    for (std::size_t i = 1; i < count / 8; ++i) least = _mm256_min_epi32(least, _mm256_load_si256(vectors + i));
    alignas(32) std::int32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), least);
    return *std::min_element(lanes, lanes + 8);
}
#endif

}  // namespace

LeastKey fastest_least_key() {
#if defined(__x86_64__)
    const CpuFeatures& has = cpu_features();
    if (has.avx512bw) return avx512;
    if (has.avx2) return avx2;
#endif
    return portable;
}

}  // namespace fastbert::bpe
