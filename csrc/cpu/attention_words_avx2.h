// Words of attention_dropout.h in ymm registers. Included like it, behind it, inside a region for AVX2.
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
    static void select_quads(const std::uint32_t (&words)[4][16], std::uint32_t threshold, float keep,
                             float* const (&place)[4], std::size_t quads) {
        select_quads_of(words, threshold, keep, place, quads);
    }
};
