// Portable Words of dropout_factors.h. Included after it.
struct PortableWords {
    static constexpr std::size_t kLanes = 1;
    using Word = std::uint64_t;

    static FASTBERT_INLINE Word broadcast(std::uint32_t x) { return x; }
    static FASTBERT_INLINE Word load(const std::uint32_t* p) { return p[0] | static_cast<Word>(p[1]) << 32; }
    static FASTBERT_INLINE void store(std::uint32_t* p, Word x) {
        p[0] = static_cast<std::uint32_t>(x);
        p[1] = static_cast<std::uint32_t>(x >> 32);
    }
    static FASTBERT_INLINE Word mul(Word x, std::uint32_t by) { return static_cast<std::uint32_t>(x) * Word{by}; }
    static FASTBERT_INLINE Word upper(Word x) { return x >> 32; }
    static FASTBERT_INLINE Word exclusive_or(Word x, Word y, Word z) { return x ^ y ^ z; }
    static FASTBERT_INLINE Word join(Word even, Word odd) { return (even & 0xFFFFFFFFU) | odd << 32; }
    // Branch-free, since random draws would be mispredicted.
    static FASTBERT_INLINE float select(std::uint32_t draw, std::uint32_t threshold, float keep) {
        const std::uint32_t all = draw >= threshold ? 0xFFFFFFFFU : 0U;
        return std::bit_cast<float>(std::bit_cast<std::uint32_t>(keep) & all);
    }
    static void select_halves(const std::uint32_t (&word)[16], std::uint32_t threshold, float keep, float* lower,
                              float* upper) {
        for (std::size_t i = 0; i < 16; ++i) {
            lower[i] = select(word[i] & 0xFFFFU, threshold, keep);
            upper[i] = select(word[i] >> 16, threshold, keep);
        }
    }
    static void select_quads(const std::uint32_t (&words)[4][16], std::uint32_t threshold, float keep,
                             float* const (&row_ptr)[4], std::size_t quads) {
        for (std::size_t quad = 0; quad < quads; ++quad) {
            for (std::size_t w = 0; w < 4; ++w) {
                for (std::size_t i = 0; i < 8; ++i) {
                    const std::uint32_t draw = words[w][4 * quad + i / 2] >> (i % 2 * 16) & 0xFFFFU;
                    row_ptr[quad][8 * w + i] = select(draw, threshold, keep);
                }
            }
        }
    }
};
