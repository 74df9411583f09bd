// Eight floats in a ymm register; members as in vector_portable.h. Included inside a target region for FASTBERT_AVX2.
struct Avx2 {
    static constexpr std::size_t kLanes = 8;
    using Float = __m256;

    static FASTBERT_INLINE Float broadcast(float x) { return _mm256_set1_ps(x); }
    static FASTBERT_INLINE Float zero() { return _mm256_setzero_ps(); }
    // The sign bit is set in the lanes below `count`: the mask format of masked loads and stores.
    static FASTBERT_INLINE __m256i first(std::size_t count) {
        const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), index);
    }
    static FASTBERT_INLINE Float widen(__m128i x) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
    }
    static FASTBERT_INLINE __m128i narrow(Float x) {
        const __m256i bits = _mm256_castps_si256(x);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
        const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
        const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
        const __m256i upper = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
        const __m256i packed = _mm256_packus_epi32(upper, upper);
        return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
    }
    static FASTBERT_INLINE Float load(const float* p) { return _mm256_loadu_ps(p); }
    static FASTBERT_INLINE Float load(const BFloat16* p) {
        return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
    static FASTBERT_INLINE Float load_part(const float* p, std::size_t count) {
        return _mm256_maskload_ps(p, first(count));
    }
    static FASTBERT_INLINE Float load_part(const BFloat16* p, std::size_t count) {
        alignas(16) std::uint16_t whole[8] = {};
        std::memcpy(whole, p, count * 2);
        return widen(_mm_load_si128(reinterpret_cast<const __m128i*>(whole)));
    }
    static FASTBERT_INLINE Float first_of_pairs(const std::byte* p) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), 16));
    }
    static FASTBERT_INLINE Float second_of_pairs(const std::byte* p) {
        const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xFFFF0000U));
        return _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), upper));
    }
    static FASTBERT_INLINE Float from_integers(const std::int32_t* p) {
        return _mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    static FASTBERT_INLINE Float from_integers(const std::int32_t* p, const std::int32_t* sums) {
        const __m256i less = _mm256_slli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums)), 7);
        return _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), less));
    }
    static FASTBERT_INLINE void store(float* p, Float x) { _mm256_storeu_ps(p, x); }
    static FASTBERT_INLINE void store(BFloat16* p, Float x) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(x));
    }
    static FASTBERT_INLINE void store_part(float* p, Float x, std::size_t count) {
        _mm256_maskstore_ps(p, first(count), x);
    }
    static FASTBERT_INLINE void store_part(BFloat16* p, Float x, std::size_t count) {
        alignas(16) std::uint16_t whole[8];
        _mm_store_si128(reinterpret_cast<__m128i*>(whole), narrow(x));
        std::memcpy(p, whole, count * 2);
    }

    static FASTBERT_INLINE Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
    static FASTBERT_INLINE Float sub(Float a, Float b) { return _mm256_sub_ps(a, b); }
    static FASTBERT_INLINE Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
    static FASTBERT_INLINE Float div(Float a, Float b) { return _mm256_div_ps(a, b); }
    static FASTBERT_INLINE Float max(Float a, Float b) { return _mm256_max_ps(a, b); }
    static FASTBERT_INLINE Float min(Float a, Float b) { return _mm256_min_ps(a, b); }
    static FASTBERT_INLINE Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
    // Inline assembly keeps the sum in its register: compilers choose the form that overwrites a factor, and copy.
    static FASTBERT_INLINE void add_product(Float& sum, Float a, Float b) {
        asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
    }
    static FASTBERT_INLINE Float abs(Float x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0F), x); }
    static FASTBERT_INLINE Float copysign(Float a, Float b) {
        const __m256 sign = _mm256_set1_ps(-0.0F);
        return _mm256_or_ps(_mm256_andnot_ps(sign, a), _mm256_and_ps(sign, b));
    }
    static FASTBERT_INLINE Float round(Float x) {
        return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    static FASTBERT_INLINE Float scale(Float x, Float n) {
        const __m256i power = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(power, 23)));
    }
    static FASTBERT_INLINE float sum(Float x) {
        __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        half = _mm_add_ps(half, _mm_movehl_ps(half, half));
        return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
    }
    static FASTBERT_INLINE float largest(Float x) {
        __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        half = _mm_max_ps(half, _mm_movehl_ps(half, half));
        return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
    }
    static FASTBERT_INLINE Float where_less(Float a, Float b, Float yes, Float no) {
        return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
    }
    static FASTBERT_INLINE Float where_bits(const std::uint8_t* bits, Float yes, Float no) {
        // Move each lane's bit to the sign, which selects.
        const __m256i shifts = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
        const __m256i signs = _mm256_sllv_epi32(_mm256_set1_epi32(*bits), shifts);
        return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(signs));
    }
};
