// Row panels of kRows rows, no more than a vector V has lanes: words of 32 bits, [words][kRows]. Included inside a
// region, behind a vector, its transpose and epilogue.h.

// `load(row, word)` gives a vector of words of a row from `word` on. As many rows as lanes are stored where kRows of them
// belong, and the next word's store covers what is too much: behind the panel there must be room for a vector.
template <class V, std::size_t kRows, class Load>
FASTBERT_INLINE void pack_dwords(std::size_t rows, std::size_t words, std::byte* panel, Load load) {
    for (std::size_t word = 0; word < words; word += V::kLanes) {
        typename V::Float x[V::kLanes];
        for (std::size_t row = 0; row < V::kLanes; ++row) x[row] = row < rows ? load(row, word) : V::zero();
        transpose_lanes(x);
        for (std::size_t i = 0; i < V::kLanes; ++i)
            V::store(reinterpret_cast<float*>(panel) + (word + i) * kRows, x[i]);
    }
}

// A MicroKernel's `fill` of rows of Value as floats.
template <class V, std::size_t kRows, typename Value>
void pack_floats(const void* x, std::size_t stride, std::size_t rows, std::size_t depth, std::size_t padded_depth,
                 std::byte* panel) {
    pack_dwords<V, kRows>(rows, padded_depth, panel, [&](std::size_t row, std::size_t k) {
        if (k >= depth) return V::zero();
        return load_some<V>(static_cast<const Value*>(x) + row * stride + k, depth - k);
    });
}
