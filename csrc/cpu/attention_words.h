// Words of attention_dropout.h in plain C++. Included like it, behind it.
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
    static void select_quads(const std::uint32_t (&words)[4][16], std::uint32_t threshold, float keep,
                             float* const (&place)[4], std::size_t quads) {
        select_quads_of(words, threshold, keep, place, quads);
    }
};
