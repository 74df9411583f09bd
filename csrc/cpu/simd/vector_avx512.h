// Sixteen floats in a zmm register; members as in vector_portable.h. Included inside a target region for
// FASTBERT_AVX512.
struct Avx512 {
    static constexpr std::size_t kLanes = 16;
    using Float = __m512;

    static FASTBERT_INLINE Float broadcast(float x) { return _mm512_set1_ps(x); }
    static FASTBERT_INLINE Float zero() { return _mm512_setzero_ps(); }
    static FASTBERT_INLINE __mmask16 first(std::size_t count) { return static_cast<__mmask16>((1U << count) - 1U); }
    static FASTBERT_INLINE Float widen(__m256i x) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
    }
    // Integer rounding: the AVX-512 BF16 instruction flushes denormals to zero.
    static FASTBERT_INLINE __m256i narrow(Float x) {
        const __m512i bits = _mm512_castps_si512(x);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
        const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
        const __m512i whole = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
        return _mm512_cvtepi32_epi16(_mm512_srli_epi32(whole, 16));
    }
    static FASTBERT_INLINE Float load(const float* p) { return _mm512_loadu_ps(p); }
    static FASTBERT_INLINE Float load(const BFloat16* p) {
        return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    static FASTBERT_INLINE Float load_part(const float* p, std::size_t count) {
        return _mm512_maskz_loadu_ps(first(count), p);
    }
    static FASTBERT_INLINE Float load_part(const BFloat16* p, std::size_t count) {
        return widen(_mm256_maskz_loadu_epi16(first(count), p));
    }
    static FASTBERT_INLINE Float first_of_pairs(const std::byte* p) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
    }
    static FASTBERT_INLINE Float second_of_pairs(const std::byte* p) {
        const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000U));
        return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), upper));
    }
    static FASTBERT_INLINE Float from_integers(const std::int32_t* p) {
        return _mm512_cvtepi32_ps(_mm512_loadu_si512(p));
    }
    static FASTBERT_INLINE Float from_integers(const std::int32_t* p, const std::int32_t* sums) {
        const __m512i less = _mm512_slli_epi32(_mm512_loadu_si512(sums), 7);
        return _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_loadu_si512(p), less));
    }
    static FASTBERT_INLINE void store(float* p, Float x) { _mm512_storeu_ps(p, x); }
    static FASTBERT_INLINE void store(BFloat16* p, Float x) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(x));
    }
    static FASTBERT_INLINE void store_part(float* p, Float x, std::size_t count) {
        _mm512_mask_storeu_ps(p, first(count), x);
    }
    static FASTBERT_INLINE void store_part(BFloat16* p, Float x, std::size_t count) {
        _mm256_mask_storeu_epi16(p, first(count), narrow(x));
    }

    static FASTBERT_INLINE Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
    static FASTBERT_INLINE Float sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
    static FASTBERT_INLINE Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
    static FASTBERT_INLINE Float div(Float a, Float b) { return _mm512_div_ps(a, b); }
    static FASTBERT_INLINE Float max(Float a, Float b) { return _mm512_max_ps(a, b); }
    static FASTBERT_INLINE Float min(Float a, Float b) { return _mm512_min_ps(a, b); }
    static FASTBERT_INLINE Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
    // Inline assembly keeps the sum in its register: compilers choose the form that overwrites a factor, and copy.
    static FASTBERT_INLINE void add_product(Float& sum, Float a, Float b) {
        asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    }
    static FASTBERT_INLINE Float abs(Float x) { return _mm512_abs_ps(x); }
    static FASTBERT_INLINE Float copysign(Float a, Float b) {
        // Bitwise select: b where the sign mask is set, else a.
        const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80000000U));
        return _mm512_castsi512_ps(
            _mm512_ternarylogic_epi32(sign, _mm512_castps_si512(b), _mm512_castps_si512(a), 0xCA));
    }
    static FASTBERT_INLINE Float round(Float x) {
        return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    static FASTBERT_INLINE Float scale(Float x, Float n) { return _mm512_scalef_ps(x, n); }
    static FASTBERT_INLINE float sum(Float x) {
        const __m256 upper = _mm512_extractf32x8_ps(x, 1);
        const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), upper);
        __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
        quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
        return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
    }
    static FASTBERT_INLINE float largest(Float x) { return _mm512_reduce_max_ps(x); }
    static FASTBERT_INLINE Float where_less(Float a, Float b, Float yes, Float no) {
        return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
    }
    static FASTBERT_INLINE Float where_bits(const std::uint8_t* bits, Float yes, Float no) {
        std::uint16_t mask;
        std::memcpy(&mask, bits, sizeof(mask));
        return _mm512_mask_blend_ps(mask, no, yes);
    }
};
