// Eight floats in portable C++, which compilers vectorise for the architecture. Included inside an anonymous namespace;
// the other vector types have the same members.
struct Portable {
    static constexpr std::size_t kLanes = 8;
    struct Float {
        float lane[kLanes];
    };

    static FASTBERT_INLINE Float broadcast(float x) {
        Float r;
        for (float& lane : r.lane) lane = x;
        return r;
    }
    static FASTBERT_INLINE Float zero() { return broadcast(0.0F); }
    static FASTBERT_INLINE Float load(const float* p) {
        Float r;
        std::memcpy(r.lane, p, sizeof(r.lane));
        return r;
    }
    static FASTBERT_INLINE Float load(const BFloat16* p) {
        Float r;
        for (std::size_t i = 0; i < kLanes; ++i) r.lane[i] = to_float(p[i]);
        return r;
    }
    // Load the first `count` elements, 1 to kLanes, zero-padded; nothing after them is read.
    static FASTBERT_INLINE Float load_part(const float* p, std::size_t count) {
        Float r = zero();
        std::memcpy(r.lane, p, count * sizeof(float));
        return r;
    }
    static FASTBERT_INLINE Float load_part(const BFloat16* p, std::size_t count) {
        Float r = zero();
        for (std::size_t i = 0; i < count; ++i) r.lane[i] = to_float(p[i]);
        return r;
    }
    // The first and the second bf16 of kLanes pairs.
    static FASTBERT_INLINE Float first_of_pairs(const std::byte* p) { return of_pairs(p, 16); }
    static FASTBERT_INLINE Float second_of_pairs(const std::byte* p) { return of_pairs(p, 0); }
    static FASTBERT_INLINE Float of_pairs(const std::byte* p, int shift) {
        // The order of a pair's halves in memory depends on the endianness.
        if constexpr (std::endian::native == std::endian::big) shift = 16 - shift;
        std::uint32_t pairs[kLanes];
        std::memcpy(pairs, p, sizeof(pairs));
        Float r;
        for (std::size_t i = 0; i < kLanes; ++i)
            r.lane[i] = std::bit_cast<float>(pairs[i] << shift & 0xFFFF0000U);
        return r;
    }
    // Integers as floats, and integers less 128 times others.
    static FASTBERT_INLINE Float from_integers(const std::int32_t* p) {
        Float r;
        for (std::size_t i = 0; i < kLanes; ++i) r.lane[i] = static_cast<float>(p[i]);
        return r;
    }
    static FASTBERT_INLINE Float from_integers(const std::int32_t* p, const std::int32_t* sums) {
        Float r;
        for (std::size_t i = 0; i < kLanes; ++i) r.lane[i] = static_cast<float>(p[i] - 128 * sums[i]);
        return r;
    }
    static FASTBERT_INLINE void store(float* p, Float x) { std::memcpy(p, x.lane, sizeof(x.lane)); }
    static FASTBERT_INLINE void store(BFloat16* p, Float x) {
        for (std::size_t i = 0; i < kLanes; ++i) p[i] = to_bfloat16(x.lane[i]);
    }
    static FASTBERT_INLINE void store_part(float* p, Float x, std::size_t count) {
        std::memcpy(p, x.lane, count * sizeof(float));
    }
    static FASTBERT_INLINE void store_part(BFloat16* p, Float x, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) p[i] = to_bfloat16(x.lane[i]);
    }

    template <typename Operation>
    static FASTBERT_INLINE Float each(Float a, Float b, Operation operation) {
        Float r;
        for (std::size_t i = 0; i < kLanes; ++i) r.lane[i] = operation(a.lane[i], b.lane[i]);
        return r;
    }
    static FASTBERT_INLINE Float add(Float a, Float b) {
        return each(a, b, [](float x, float y) { return x + y; });
    }
    static FASTBERT_INLINE Float sub(Float a, Float b) {
        return each(a, b, [](float x, float y) { return x - y; });
    }
    static FASTBERT_INLINE Float mul(Float a, Float b) {
        return each(a, b, [](float x, float y) { return x * y; });
    }
    static FASTBERT_INLINE Float div(Float a, Float b) {
        return each(a, b, [](float x, float y) { return x / y; });
    }
    // b if a is NaN, as the x86 instructions return.
    static FASTBERT_INLINE Float max(Float a, Float b) {
        return each(a, b, [](float x, float y) { return x > y ? x : y; });
    }
    static FASTBERT_INLINE Float min(Float a, Float b) {
        return each(a, b, [](float x, float y) { return x < y ? x : y; });
    }
    // a * b + c; fused where the processor supports it.
    static FASTBERT_INLINE Float fma(Float a, Float b, Float c) {
        Float r;
        for (std::size_t i = 0; i < kLanes; ++i) {
#if defined(__FP_FAST_FMAF)
            r.lane[i] = __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]);
#else
            r.lane[i] = a.lane[i] * b.lane[i] + c.lane[i];
#endif
        }
        return r;
    }
    // sum += a * b.
    static FASTBERT_INLINE void add_product(Float& sum, Float a, Float b) { sum = fma(a, b, sum); }
    static FASTBERT_INLINE Float abs(Float x) {
        return each(x, x, [](float y, float) { return std::fabs(y); });
    }
    // The magnitude of a with the sign of b.
    static FASTBERT_INLINE Float copysign(Float a, Float b) {
        return each(a, b, [](float x, float y) { return std::copysign(x, y); });
    }
    // Round to the nearest integer, ties to even, for magnitudes below 2^22.
    static FASTBERT_INLINE Float round(Float x) {
        return each(x, x, [](float y, float) { return (y + 12582912.0F) - 12582912.0F; });
    }
    // x * 2^n for an integral n of -126 to 127.
    static FASTBERT_INLINE Float scale(Float x, Float n) {
        return each(x, n, [](float y, float power) {
            const std::int32_t whole = power == power ? static_cast<std::int32_t>(power) : 0;
            return y * std::bit_cast<float>((whole + 127) << 23);
        });
    }
    static FASTBERT_INLINE float sum(Float x) {
        float r[4];
        for (std::size_t i = 0; i < 4; ++i) r[i] = x.lane[i] + x.lane[i + 4];
        return (r[0] + r[2]) + (r[1] + r[3]);
    }
    static FASTBERT_INLINE float largest(Float x) {
        float r = x.lane[0];
        for (float lane : x.lane) r = lane > r ? lane : r;
        return r;
    }
    // `yes` in the lanes where a < b, else `no`.
    static FASTBERT_INLINE Float where_less(Float a, Float b, Float yes, Float no) {
        Float r;
        for (std::size_t i = 0; i < kLanes; ++i) r.lane[i] = a.lane[i] < b.lane[i] ? yes.lane[i] : no.lane[i];
        return r;
    }
    // Lane i of `yes` where bit i % 8 of byte i / 8 is set, else of `no`.
    static FASTBERT_INLINE Float where_bits(const std::uint8_t* bits, Float yes, Float no) {
        Float r;
        for (std::size_t i = 0; i < kLanes; ++i) r.lane[i] = *bits & 1U << i ? yes.lane[i] : no.lane[i];
        return r;
    }
};
