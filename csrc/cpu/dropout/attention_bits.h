// The masks of attention dropout as bits, sixteen Philox counters at a time. Included after philox_vectors.h.
//
// V also converts words to bits. `row_bits`: counter i holds block i % 4 of query i / 4, and the 64 draws of each query
// go to a row of 64 bits. `column_bits`: counter i belongs to query i, and byte k of word w of all counters goes to 16
// bits in the row of key 16 w + 8 (k / 2) + k % 2.

alignas(64) inline constexpr std::uint32_t kLane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
alignas(64) inline constexpr std::uint32_t kBlockOfLane[16] = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3};
alignas(64) inline constexpr std::uint32_t kQueryOfLane[16] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};

// Sixteen counters: pairs of vectors, the first with the even counters, the second with the odd ones.
template <class V>
struct SixteenCounters : Philox<V, 16 / V::kBlocks> {
    static constexpr std::size_t kVectors = 16 / V::kBlocks, kPairs = kVectors / 2;
    using Word = typename V::Word;

    // c[i] = counters ^ constant.
    static FASTBERT_INLINE void spread(const std::uint32_t (&counters)[16], std::uint32_t constant,
                                       Word (&c)[kVectors]) {
        const Word other = V::broadcast(constant), zero = V::broadcast(0);
        for (std::size_t i = 0; i < kPairs; ++i) {
            const Word pair = V::load(counters + 2 * i * V::kBlocks);
            c[2 * i] = V::exclusive_or(pair, other, zero);
            c[2 * i + 1] = V::exclusive_or(V::upper(pair), other, zero);
        }
    }

    static FASTBERT_INLINE void join(const Word (&c)[kVectors], Word (&word)[kPairs]) {
        for (std::size_t i = 0; i < kPairs; ++i) word[i] = V::join(c[2 * i], c[2 * i + 1]);
    }

    FASTBERT_INLINE void finish(int first, std::uint32_t k0, std::uint32_t k1, Word (&words)[4][kPairs]) {
        this->run(first, k0, k1);
        join(this->c0, words[0]);
        join(this->c1, words[1]);
        join(this->c2, words[2]);
        join(this->c3, words[3]);
    }
};

inline std::uint32_t lower(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
inline std::uint32_t upper(std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); }

template <class V>
void row_bits(const HeadDropout& dropout, std::size_t query, std::size_t first_key, std::size_t keys,
              std::uint8_t* bits, std::size_t stride) {
    const std::uint32_t k0 = lower(dropout.key), k1 = upper(dropout.key);
    const std::uint64_t b = std::uint64_t{kPhiloxMultipliers[1]} * dropout.head;
    for (std::size_t key = 0; key < keys; key += KeepBits::kKeys) {
        // In the first round, half of the work is shared: head and site are the same for all counters.
        SixteenCounters<V> state;
        state.spread(kQueryOfLane, lower(query) ^ upper(b) ^ k0, state.c0);
        state.spread(kBlockOfLane, lower((first_key + key) / 16), state.c3);
        for (std::size_t i = 0; i < state.kVectors; ++i) {
            state.c1[i] = V::broadcast(lower(b));
            state.c3[i] = V::product(state.c3[i], V::broadcast(kPhiloxMultipliers[0]));
            state.c2[i] = V::exclusive_or(V::upper(state.c3[i]), V::broadcast(dropout.site), V::broadcast(k1));
        }
        typename V::Word words[4][state.kPairs];
        state.finish(1, k0 + kPhiloxSteps[0], k1 + kPhiloxSteps[1], words);
        V::row_bits(words, dropout.threshold, bits + key / 8, stride);
    }
}

template <class V>
void column_bits(const HeadDropout& dropout, std::size_t query, std::size_t queries, std::size_t first_key,
                 std::uint8_t* bits, std::size_t stride) {
    const std::uint32_t k0 = lower(dropout.key), k1 = upper(dropout.key);
    const std::uint32_t second_k0 = k0 + kPhiloxSteps[0], second_k1 = k1 + kPhiloxSteps[1];
    const std::uint64_t b = std::uint64_t{kPhiloxMultipliers[1]} * dropout.head;
    for (std::size_t block = 0; block < 4; ++block) {
        const std::uint64_t a = std::uint64_t{kPhiloxMultipliers[0]} * lower(first_key / 16 + block);
        const std::uint64_t next = std::uint64_t{kPhiloxMultipliers[1]} * (upper(a) ^ dropout.site ^ k1);
        for (std::size_t i = 0; i < queries; i += KeepBits::kColumnQueries) {
            // Only the query differs between counters, and it reaches the other words in the second round: the first
            // round and half of the second are scalar.
            SixteenCounters<V> state;
            state.spread(kLane, lower(query + i) ^ upper(b) ^ k0, state.c0);
            for (std::size_t j = 0; j < state.kVectors; ++j) {
                state.c3[j] = V::product(state.c0[j], V::broadcast(kPhiloxMultipliers[0]));
                state.c2[j] = V::exclusive_or(V::upper(state.c3[j]), V::broadcast(lower(a)), V::broadcast(second_k1));
                state.c0[j] = V::broadcast(upper(next) ^ lower(b) ^ second_k0);
                state.c1[j] = V::broadcast(lower(next));
            }
            typename V::Word words[4][state.kPairs];
            state.finish(2, second_k0 + kPhiloxSteps[0], second_k1 + kPhiloxSteps[1], words);
            V::column_bits(words, dropout.threshold, bits + 2 * block * stride + i / 8, stride);
        }
    }
}
