// The mask generator for a vector of 64-bit lanes with one Philox word in the lower half of each. Included inside a
// target region, after such a vector type.

// kSets vectors of blocks in parallel, to hide the latency of the dependent rounds.
template <class V, bool kAttention, int kSets, class Element>
FASTBERT_INLINE void fill_sets(const DropoutRow& row, std::uint32_t block, std::size_t count, Element keep,
                               Element* out) {
    using Word = typename V::Word;
    Word c0[kSets], c1[kSets], c2[kSets], c3[kSets];
    for (int set = 0; set < kSets; ++set) {
        c0[set] = V::template blocks<kAttention>(block + static_cast<std::uint32_t>(set * V::kBlocks));
        c1[set] = V::broadcast(row.row);
        c2[set] = V::broadcast(row.head);
        c3[set] = V::broadcast(row.site);
    }
    const Word m0 = V::broadcast(kPhiloxMultipliers[0]), m1 = V::broadcast(kPhiloxMultipliers[1]);
    auto k0 = static_cast<std::uint32_t>(row.key), k1 = static_cast<std::uint32_t>(row.key >> 32);
    for (int round = 0; round < kDropoutRounds; ++round) {
        const Word key0 = V::broadcast(k0), key1 = V::broadcast(k1);
        for (int set = 0; set < kSets; ++set) {
            // The upper halves of words hold leftovers of multiplications and are never read.
            const Word a = V::product(m0, c0[set]), b = V::product(m1, c2[set]);
            c0[set] = V::exclusive_or(V::upper(b), c1[set], key0);
            c2[set] = V::exclusive_or(V::upper(a), c3[set], key1);
            c1[set] = b;
            c3[set] = a;
        }
        k0 += kPhiloxSteps[0];
        k1 += kPhiloxSteps[1];
    }
    for (int set = 0; set < kSets; ++set) {
        constexpr std::size_t kDraws = V::kBlocks * 4;  // per vector, of two
        const std::size_t done = static_cast<std::size_t>(set) * 2 * kDraws;
        Word first, second;
        V::template arrange<kAttention>(c0[set], c1[set], c2[set], c3[set], first, second);
        if (done < count) V::select(first, row.threshold, keep, count - done, out + done);
        if (done + kDraws < count) V::select(second, row.threshold, keep, count - done - kDraws, out + done + kDraws);
    }
}

template <class V, bool kAttention, class Element>
FASTBERT_INLINE void fill_in_order(const DropoutRow& row, std::size_t count, Element keep, Element* out) {
    constexpr std::size_t kSet = V::kBlocks * 8;  // draws
    std::uint32_t block = row.first_block;
    while (count > 2 * kSet) {
        const std::size_t part = count < 4 * kSet ? count : 4 * kSet;
        fill_sets<V, kAttention, 4>(row, block, part, keep, out);
        count -= part;
        out += part;
        block += 4 * V::kBlocks;
    }
    if (count > kSet) fill_sets<V, kAttention, 2>(row, block, count, keep, out);
    else if (count) fill_sets<V, kAttention, 1>(row, block, count, keep, out);
}

template <class V, class Element>
void fill(const DropoutRow& row, std::size_t count, Element keep, Element* out) {
    if (row.attention) return fill_in_order<V, true>(row, count, keep, out);
    fill_in_order<V, false>(row, count, keep, out);
}
