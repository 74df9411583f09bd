// The dropout masks of cpu/dropout/dropout.h as factors of 0 or `keep`, from sixteen Philox counters in parallel.
// Included inside a target region and an anonymous namespace.
//
// Words is a vector of kLanes 64-bit lanes, whose multiplication reads the lower halves. Sixteen counters take 2 *
// kParts vectors: per part the even counters, then the odd ones.
//
// Words also converts draws to factors. `select_halves`: of one word of sixteen counters, the lower halves go to one
// row and the upper halves to another. `select_quads`: of all four words, the 32 draws of four counters go to one row
// in key order: key 8 w + 2 i + half is taken from word w and counter i.

template <class Words>
struct Philox {
    using Word = typename Words::Word;
    static constexpr std::size_t kParts = 8 / Words::kLanes, kVectors = 2 * kParts;

    Word c0[kVectors], c1[kVectors], c2[kVectors], c3[kVectors];

    static FASTBERT_INLINE void spread(const std::uint32_t* counters, Word (&c)[kVectors]) {
        for (std::size_t i = 0; i < kParts; ++i) {
            c[2 * i] = Words::load(counters + 2 * i * Words::kLanes);
            c[2 * i + 1] = Words::upper(c[2 * i]);
        }
    }

    // Run the rounds from `done` on, starting with the round keys k0 and k1; words[w] receives word w of each counter.
    FASTBERT_INLINE void finish(int done, std::uint32_t k0, std::uint32_t k1, std::uint32_t (&words)[4][16]) {
        for (int round = done; round < 7; ++round, k0 += 0x9E3779B9U, k1 += 0xBB67AE85U) {
            const Word first = Words::broadcast(k0), second = Words::broadcast(k1);
            for (std::size_t i = 0; i < kVectors; ++i) {
                const Word a = Words::mul(c0[i], 0xD2511F53U), b = Words::mul(c2[i], 0xCD9E8D57U);
                c0[i] = Words::exclusive_or(Words::upper(b), c1[i], first);
                c2[i] = Words::exclusive_or(Words::upper(a), c3[i], second);
                c1[i] = b;
                c3[i] = a;
            }
        }
        for (std::size_t i = 0; i < kParts; ++i) {
            const std::size_t offset = 2 * i * Words::kLanes;
            Words::store(words[0] + offset, Words::join(c0[2 * i], c0[2 * i + 1]));
            Words::store(words[1] + offset, Words::join(c1[2 * i], c1[2 * i + 1]));
            Words::store(words[2] + offset, Words::join(c2[2 * i], c2[2 * i + 1]));
            Words::store(words[3] + offset, Words::join(c3[2 * i], c3[2 * i + 1]));
        }
    }
};

alignas(64) inline constexpr std::uint32_t kSixteen[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Dropout of one head of a sequence.
struct HeadDropout {
    HeadDropout(const AttentionCall& call, const AttentionItem& item)
        : key(static_cast<std::uint64_t>(call.dropout.keys[item.sequence])),
          head(static_cast<std::uint32_t>(item.head)), site(call.dropout.site), threshold(call.dropout.threshold),
          keep(call.dropout.keep) {}

    // Write factors of rows `query`.. and keys first_key.. (a multiple of 32), in whole groups of 32 keys.
    template <class Words>
    void row_factors(std::size_t query, std::size_t rows, std::size_t first_key, std::size_t keys, float* out,
                     std::size_t stride) const {
        const std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
        const std::uint64_t b = 0xCD9E8D57ULL * head;
        const std::size_t groups = (keys + 31) / 32, quads = rows * groups;
        // A quad is four counters, whose draws cover 32 keys of one row.
        std::size_t row = 0, group = 0;
        for (std::size_t first = 0; first < quads; first += 4) {
            alignas(64) std::uint32_t blocks[16], queries[16], words[4][16];
            float* row_ptr[4];
            for (std::size_t i = 0; i < 4; ++i) {
                row_ptr[i] = out + row * stride + group * 32;
                for (std::size_t j = 0; j < 4; ++j) {
                    blocks[4 * i + j] = static_cast<std::uint32_t>(first_key / 8 + 4 * group + j);
                    queries[4 * i + j] = static_cast<std::uint32_t>(query + row);
                }
                if (++group == groups) {
                    group = 0;
                    ++row;
                }
            }
            // The first round is partly shared: head and site are the same for all counters.
            Philox<Words> state;
            state.spread(blocks, state.c3);
            state.spread(queries, state.c0);
            for (std::size_t i = 0; i < state.kVectors; ++i) {
                const auto zero = Words::broadcast(0);
                state.c0[i] = Words::exclusive_or(
                    state.c0[i], Words::broadcast(static_cast<std::uint32_t>(b >> 32) ^ k0), zero);
                state.c1[i] = Words::broadcast(static_cast<std::uint32_t>(b));
                state.c3[i] = Words::mul(state.c3[i], 0xD2511F53U);
                state.c2[i] = Words::exclusive_or(Words::upper(state.c3[i]), Words::broadcast(site ^ k1), zero);
            }
            state.finish(1, k0 + 0x9E3779B9U, k1 + 0xBB67AE85U, words);
            Words::select_quads(words, threshold, keep, row_ptr, std::min<std::size_t>(4, quads - first));
        }
    }

    // Write the same factors transposed: one row per key for 32 keys from first_key on, 16 queries from a multiple of
    // 16 on.
    template <class Words>
    void column_factors(std::size_t query, std::size_t first_key, float* out, std::size_t stride) const {
        std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
        const std::uint64_t b = 0xCD9E8D57ULL * head;
        for (std::size_t block = 0; block < 4; ++block) {
            alignas(64) std::uint32_t words[4][16];
            const std::uint64_t a = 0xD2511F53ULL * (first_key / 8 + block);
            // Only the query differs between counters, and it reaches the other words in the second round: the first
            // round and half of the second are scalar.
            Philox<Words> state;
            state.spread(kSixteen, state.c0);
            const std::uint64_t next = 0xCD9E8D57ULL * (static_cast<std::uint32_t>(a >> 32) ^ site ^ k1);
            const std::uint32_t second_k0 = k0 + 0x9E3779B9U, second_k1 = k1 + 0xBB67AE85U;
            const auto zero = Words::broadcast(0);
            const auto common =
                Words::broadcast(static_cast<std::uint32_t>(b >> 32) ^ k0 ^ static_cast<std::uint32_t>(query));
            for (std::size_t i = 0; i < state.kVectors; ++i) {
                const auto c0 = Words::exclusive_or(state.c0[i], common, zero);
                state.c3[i] = Words::mul(c0, 0xD2511F53U);
                state.c2[i] = Words::exclusive_or(Words::upper(state.c3[i]),
                                                  Words::broadcast(static_cast<std::uint32_t>(a) ^ second_k1), zero);
                state.c0[i] = Words::broadcast(static_cast<std::uint32_t>(next >> 32) ^ static_cast<std::uint32_t>(b) ^
                                               second_k0);
                state.c1[i] = Words::broadcast(static_cast<std::uint32_t>(next));
            }
            state.finish(2, second_k0 + 0x9E3779B9U, second_k1 + 0xBB67AE85U, words);
            // The lower half of a word belongs to one key, the upper half to the next.
            for (std::size_t w = 0; w < 4; ++w) {
                float* row_ptr = out + (8 * w + 2 * block) * stride;
                Words::select_halves(words[w], threshold, keep, row_ptr, row_ptr + stride);
            }
        }
    }

    std::uint64_t key;
    std::uint32_t head, site, threshold;
    float keep;
};
