// Words of dropout_factors.h in zmm registers. Included after it, inside a target region for AVX-512.
struct Avx512Words {
    static constexpr std::size_t kLanes = 8;
    using Word = __m512i;

    static FASTBERT_INLINE Word broadcast(std::uint32_t x) { return _mm512_set1_epi64(static_cast<long long>(x)); }
    static FASTBERT_INLINE Word load(const std::uint32_t* p) { return _mm512_load_si512(p); }
    static FASTBERT_INLINE void store(std::uint32_t* p, Word x) { _mm512_store_si512(p, x); }
    static FASTBERT_INLINE Word mul(Word x, std::uint32_t by) { return _mm512_mul_epu32(x, broadcast(by)); }
    static FASTBERT_INLINE Word upper(Word x) { return _mm512_srli_epi64(x, 32); }
    static FASTBERT_INLINE Word exclusive_or(Word x, Word y, Word z) {
        return _mm512_ternarylogic_epi64(x, y, z, 0x96);
    }
    static FASTBERT_INLINE Word join(Word even, Word odd) {
        return _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
    }
    static FASTBERT_INLINE void select_halves(const std::uint32_t (&word)[16], std::uint32_t threshold, float keep,
                                              float* lower, float* upper) {
        const __m512i x = load(word), least = _mm512_set1_epi32(static_cast<int>(threshold << 16));
        const __m512 scale = _mm512_set1_ps(keep);
        const __mmask16 kept_lower = _mm512_cmpge_epu32_mask(_mm512_slli_epi32(x, 16), least);
        _mm512_storeu_ps(lower, _mm512_maskz_mov_ps(kept_lower, scale));
        _mm512_storeu_ps(upper, _mm512_maskz_mov_ps(_mm512_cmpge_epu32_mask(x, least), scale));
    }
    // The draws of a quad are one quarter of each word; concatenated they are 32 keys in order.
    static void select_quads(const std::uint32_t (&words)[4][16], std::uint32_t threshold, float keep,
                             float* const (&row_ptr)[4], std::size_t quads) {
        const __m512i a = load(words[0]), b = load(words[1]), c = load(words[2]), d = load(words[3]);
        const __m512i low_ab = _mm512_shuffle_i32x4(a, b, 0x44), high_ab = _mm512_shuffle_i32x4(a, b, 0xEE);
        const __m512i low_cd = _mm512_shuffle_i32x4(c, d, 0x44), high_cd = _mm512_shuffle_i32x4(c, d, 0xEE);
        const __m512i draws[4] = {
            _mm512_shuffle_i32x4(low_ab, low_cd, 0x88), _mm512_shuffle_i32x4(low_ab, low_cd, 0xDD),
            _mm512_shuffle_i32x4(high_ab, high_cd, 0x88), _mm512_shuffle_i32x4(high_ab, high_cd, 0xDD)};
        const __m512i least = _mm512_set1_epi16(static_cast<short>(threshold));
        const __m512 scale = _mm512_set1_ps(keep);
        for (std::size_t i = 0; i < quads; ++i) {
            const __mmask32 keep_mask = _mm512_cmpge_epu16_mask(draws[i], least);
            _mm512_storeu_ps(row_ptr[i], _mm512_maskz_mov_ps(static_cast<__mmask16>(keep_mask), scale));
            _mm512_storeu_ps(row_ptr[i] + 16, _mm512_maskz_mov_ps(static_cast<__mmask16>(keep_mask >> 16), scale));
        }
    }
};
