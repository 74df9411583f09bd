// Words of dropout_factors.h in ymm registers. Included after it, inside a target region for AVX2.
struct Avx2Words {
    static constexpr std::size_t kLanes = 4;
    using Word = __m256i;

    static FASTBERT_INLINE Word broadcast(std::uint32_t x) { return _mm256_set1_epi64x(static_cast<long long>(x)); }
    static FASTBERT_INLINE Word load(const std::uint32_t* p) {
        return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
    }
    static FASTBERT_INLINE void store(std::uint32_t* p, Word x) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(p), x);
    }
    static FASTBERT_INLINE Word mul(Word x, std::uint32_t by) { return _mm256_mul_epu32(x, broadcast(by)); }
    static FASTBERT_INLINE Word upper(Word x) { return _mm256_srli_epi64(x, 32); }
    static FASTBERT_INLINE Word exclusive_or(Word x, Word y, Word z) {
        return _mm256_xor_si256(_mm256_xor_si256(x, y), z);
    }
    static FASTBERT_INLINE Word join(Word even, Word odd) {
        return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
    }
    static FASTBERT_INLINE void select(__m256i draws, __m256i below, __m256 keep, float* out) {
        _mm256_storeu_ps(out, _mm256_and_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(draws, below)), keep));
    }
    static FASTBERT_INLINE void select_halves(const std::uint32_t (&word)[16], std::uint32_t threshold, float keep,
                                              float* lower, float* upper) {
        const __m256i below = _mm256_set1_epi32(static_cast<int>(threshold) - 1);
        const __m256 scale = _mm256_set1_ps(keep);
        for (std::size_t i = 0; i < 16; i += 8) {
            const __m256i x = load(word + i);
            select(_mm256_and_si256(x, _mm256_set1_epi32(0xFFFF)), below, scale, lower + i);
            select(_mm256_srli_epi32(x, 16), below, scale, upper + i);
        }
    }
    static void select_quads(const std::uint32_t (&words)[4][16], std::uint32_t threshold, float keep,
                             float* const (&row_ptr)[4], std::size_t quads) {
        const __m256i below = _mm256_set1_epi32(static_cast<int>(threshold) - 1);
        const __m256 scale = _mm256_set1_ps(keep);
        for (std::size_t quad = 0; quad < quads; ++quad) {
            for (std::size_t w = 0; w < 4; ++w) {
                const __m128i halves = _mm_load_si128(reinterpret_cast<const __m128i*>(words[w] + 4 * quad));
                select(_mm256_cvtepu16_epi32(halves), below, scale, row_ptr[quad] + 8 * w);
            }
        }
    }
};
