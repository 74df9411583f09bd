// Eight floats as two vectors of 16 bytes, a type of GCC and clang on every architecture. Included inside an anonymous
// namespace; the other vector types have the same members.
struct Portable {
    static constexpr std::size_t kLanes = 8;
    // Not an array of lanes: unrolling and vectorising loops over it would take most of the compile time.
    typedef float Quad __attribute__((vector_size(16)));
    typedef std::uint32_t Bits __attribute__((vector_size(16)));
    typedef std::int32_t Integers __attribute__((vector_size(16)));
    typedef std::uint16_t Words __attribute__((vector_size(16)));
    typedef std::uint32_t WideBits __attribute__((vector_size(32)));  // within functions only: it has no portable ABI
    struct Float {
        Quad half[2];
    };

    static FASTBERT_INLINE Float broadcast(float x) {
        const Quad quad = {x, x, x, x};
        return {{quad, quad}};
    }
    static FASTBERT_INLINE Float zero() { return {}; }
    static FASTBERT_INLINE Float load(const float* p) {
        Float r;
        std::memcpy(&r, p, sizeof(r));
        return r;
    }
    static FASTBERT_INLINE Float load(const BFloat16* p) {
        Words words;
        std::memcpy(&words, p, sizeof(words));
        return __builtin_bit_cast(Float, __builtin_convertvector(words, WideBits) << 16);
    }
    // Load the first `count` elements, 1 to kLanes, zero-padded; nothing after them is read.
    template <typename T>
    static FASTBERT_INLINE Float load_part(const T* p, std::size_t count) {
        T elements[kLanes] = {};
        std::memcpy(elements, p, count * sizeof(T));
        return load(elements);
    }
    // The first and the second bf16 of kLanes pairs.
    static FASTBERT_INLINE Float first_of_pairs(const std::byte* p) { return of_pairs(p, 16); }
    static FASTBERT_INLINE Float second_of_pairs(const std::byte* p) { return of_pairs(p, 0); }
    static FASTBERT_INLINE Float of_pairs(const std::byte* p, int shift) {
        // The order of a pair's halves in memory depends on the endianness.
        if constexpr (std::endian::native == std::endian::big) shift = 16 - shift;
        Bits pairs[2];
        std::memcpy(pairs, p, sizeof(pairs));
        for (Bits& bits : pairs) bits = bits << shift & 0xFFFF0000U;
        return __builtin_bit_cast(Float, pairs);
    }
    // Integers as floats, and integers less 128 times others.
    static FASTBERT_INLINE Float from_integers(const std::int32_t* p) { return from_integers(load_integers(p)); }
    static FASTBERT_INLINE Float from_integers(const std::int32_t* p, const std::int32_t* sums) {
        const Whole x = load_integers(p), less = load_integers(sums);
        return from_integers(Whole{{x.half[0] - 128 * less.half[0], x.half[1] - 128 * less.half[1]}});
    }
    static FASTBERT_INLINE void store(float* p, Float x) { std::memcpy(p, &x, sizeof(x)); }
    // As to_bfloat16.
    static FASTBERT_INLINE void store(BFloat16* p, Float x) {
        const Float rounded = each(x, x, [](Quad y, Quad) {
            const Bits bits = std::bit_cast<Bits>(y);
            return std::bit_cast<Quad>(y == y ? (bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16 : bits >> 16 | 0x40U);
        });
        const Words words = __builtin_convertvector(__builtin_bit_cast(WideBits, rounded), Words);
        std::memcpy(p, &words, sizeof(words));
    }
    template <typename T>
    static FASTBERT_INLINE void store_part(T* p, Float x, std::size_t count) {
        T elements[kLanes];
        store(elements, x);
        std::memcpy(p, elements, count * sizeof(T));
    }

    template <typename Operation>
    static FASTBERT_INLINE Float each(Float a, Float b, Operation operation) {
        return {{operation(a.half[0], b.half[0]), operation(a.half[1], b.half[1])}};
    }
    static FASTBERT_INLINE Float add(Float a, Float b) {
        return each(a, b, [](Quad x, Quad y) { return x + y; });
    }
    static FASTBERT_INLINE Float sub(Float a, Float b) {
        return each(a, b, [](Quad x, Quad y) { return x - y; });
    }
    static FASTBERT_INLINE Float mul(Float a, Float b) {
        return each(a, b, [](Quad x, Quad y) { return x * y; });
    }
    static FASTBERT_INLINE Float div(Float a, Float b) {
        return each(a, b, [](Quad x, Quad y) { return x / y; });
    }
    // b if a is NaN, as the x86 instructions return.
    static FASTBERT_INLINE Float max(Float a, Float b) {
        return each(a, b, [](Quad x, Quad y) { return x > y ? x : y; });
    }
    static FASTBERT_INLINE Float min(Float a, Float b) {
        return each(a, b, [](Quad x, Quad y) { return x < y ? x : y; });
    }
    // a * b + c; fused where the processor supports it.
    static FASTBERT_INLINE Float fma(Float a, Float b, Float c) {
        return {{fma_of(a.half[0], b.half[0], c.half[0]), fma_of(a.half[1], b.half[1], c.half[1])}};
    }
    // sum += a * b.
    static FASTBERT_INLINE void add_product(Float& sum, Float a, Float b) { sum = fma(a, b, sum); }
    static FASTBERT_INLINE Float abs(Float x) {
        return each(x, x, [](Quad y, Quad) { return std::bit_cast<Quad>(std::bit_cast<Bits>(y) & 0x7FFFFFFFU); });
    }
    // The magnitude of a with the sign of b.
    static FASTBERT_INLINE Float copysign(Float a, Float b) {
        return each(a, b, [](Quad x, Quad y) {
            return std::bit_cast<Quad>((std::bit_cast<Bits>(x) & 0x7FFFFFFFU) | (std::bit_cast<Bits>(y) & 0x80000000U));
        });
    }
    // Round to the nearest integer, ties to even, for magnitudes below 2^22.
    static FASTBERT_INLINE Float round(Float x) {
        return each(x, x, [](Quad y, Quad) { return (y + 12582912.0F) - 12582912.0F; });
    }
    // x * 2^n for an integral n of -126 to 127.
    static FASTBERT_INLINE Float scale(Float x, Float n) {
        return each(x, n, [](Quad y, Quad power) {
            const Integers whole = __builtin_convertvector(power == power ? power : Quad{}, Integers);
            return y * std::bit_cast<Quad>((whole + 127) << 23);
        });
    }
    static FASTBERT_INLINE float sum(Float x) {
        const Quad r = x.half[0] + x.half[1];
        return (r[0] + r[2]) + (r[1] + r[3]);
    }
    static FASTBERT_INLINE float largest(Float x) {
        float lanes[kLanes];
        store(lanes, x);
        float r = lanes[0];
        for (float lane : lanes) r = lane > r ? lane : r;
        return r;
    }
    // `yes` in the lanes where a < b, else `no`.
    static FASTBERT_INLINE Float where_less(Float a, Float b, Float yes, Float no) {
        return {{a.half[0] < b.half[0] ? yes.half[0] : no.half[0], a.half[1] < b.half[1] ? yes.half[1] : no.half[1]}};
    }
    // Lane i of `yes` where bit i % 8 of byte i / 8 is set, else of `no`.
    static FASTBERT_INLINE Float where_bits(const std::uint8_t* bits, Float yes, Float no) {
        const std::uint32_t byte = *bits;
        const Bits all = {byte, byte, byte, byte}, low = all & Bits{1, 2, 4, 8}, high = all & Bits{16, 32, 64, 128};
        return {{low != 0 ? yes.half[0] : no.half[0], high != 0 ? yes.half[1] : no.half[1]}};
    }

  private:
    struct Whole {
        Integers half[2];
    };
    static FASTBERT_INLINE Whole load_integers(const std::int32_t* p) {
        Whole r;
        std::memcpy(&r, p, sizeof(r));
        return r;
    }
    static FASTBERT_INLINE Float from_integers(Whole x) {
        return {{__builtin_convertvector(x.half[0], Quad), __builtin_convertvector(x.half[1], Quad)}};
    }
    static FASTBERT_INLINE Quad fma_of(Quad a, Quad b, Quad c) {
#if defined(__aarch64__)
        return vfmaq_f32(c, a, b);
#elif defined(__FP_FAST_FMAF)
        Quad r;
        for (std::size_t i = 0; i < 4; ++i) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
        return r;
#else
        return a * b + c;
#endif
    }
};
