// Philox, and the masks of token-wise dropout, for a vector of 64-bit lanes with one word in the lower half of each.
// Included inside a target region, after such a vector type.

// The state of kVectors vectors of counters, computed in parallel to hide the latency of the dependent rounds. The
// upper halves of lanes hold leftovers of multiplications and are never read.
template <class V, std::size_t kVectors>
struct Philox {
    using Word = typename V::Word;
    Word c0[kVectors], c1[kVectors], c2[kVectors], c3[kVectors];

    // Run the rounds from `first` on, whose keys are k0 and k1.
    FASTBERT_INLINE void run(int first, std::uint32_t k0, std::uint32_t k1) {
        const Word m0 = V::broadcast(kPhiloxMultipliers[0]), m1 = V::broadcast(kPhiloxMultipliers[1]);
        for (int round = first; round < kDropoutRounds; ++round) {
            const Word key0 = V::broadcast(k0), key1 = V::broadcast(k1);
            for (std::size_t i = 0; i < kVectors; ++i) {
                const Word a = V::product(m0, c0[i]), b = V::product(m1, c2[i]);
                c0[i] = V::exclusive_or(V::upper(b), c1[i], key0);
                c2[i] = V::exclusive_or(V::upper(a), c3[i], key1);
                c1[i] = b;
                c3[i] = a;
            }
            k0 += kPhiloxSteps[0];
            k1 += kPhiloxSteps[1];
        }
    }
};

template <class V, std::size_t kSets, class Element>
FASTBERT_INLINE void fill_sets(const TokenRow& row, std::uint32_t block, std::size_t count, Element keep,
                               Element* out) {
    using Word = typename V::Word;
    Philox<V, kSets> state;
    for (std::size_t set = 0; set < kSets; ++set) {
        state.c0[set] = V::blocks(block + static_cast<std::uint32_t>(set) * V::kBlocks);
        state.c1[set] = V::broadcast(row.position);
        state.c2[set] = V::broadcast(0);
        state.c3[set] = V::broadcast(row.site);
    }
    state.run(0, static_cast<std::uint32_t>(row.key), static_cast<std::uint32_t>(row.key >> 32));
    for (std::size_t set = 0; set < kSets; ++set) {
        constexpr std::size_t kDraws = V::kBlocks * 4;  // per vector, of two
        const std::size_t done = set * 2 * kDraws;
        Word first, second;
        V::arrange(state.c0[set], state.c1[set], state.c2[set], state.c3[set], first, second);
        if (done < count) V::select(first, row.threshold, keep, count - done, out + done);
        if (done + kDraws < count) V::select(second, row.threshold, keep, count - done - kDraws, out + done + kDraws);
    }
}

template <class V, class Element>
void fill(const TokenRow& row, std::size_t count, Element keep, Element* out) {
    constexpr std::size_t kSet = V::kBlocks * 8;  // draws
    std::uint32_t block = 0;
    while (count > 2 * kSet) {
        const std::size_t part = count < 4 * kSet ? count : 4 * kSet;
        fill_sets<V, 4>(row, block, part, keep, out);
        count -= part;
        out += part;
        block += 4 * V::kBlocks;
    }
    if (count > kSet) fill_sets<V, 2>(row, block, count, keep, out);
    else if (count) fill_sets<V, 1>(row, block, count, keep, out);
}
