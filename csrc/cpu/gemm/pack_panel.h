// Packing of row panels of kRows rows, at most one vector V: 32-bit groups, [groups][kRows]. Included inside a target
// region, after a vector type, its transpose and epilogue.h.

// `load(row, word)` loads a vector of a row's 32-bit groups from `word` on. Stores write a whole vector although only
// kRows lanes are valid; the next store overwrites the excess, so the panel needs one more vector of memory.
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

// `MicroKernel::pack_rows` for rows of Value as floats.
template <class V, std::size_t kRows, typename Value>
void pack_floats(const void* x, std::size_t stride, std::size_t rows, std::size_t depth, std::size_t padded_depth,
                 std::byte* panel) {
    pack_dwords<V, kRows>(rows, padded_depth, panel, [&](std::size_t row, std::size_t k) {
        if (k >= depth) return V::zero();
        return load_some<V>(static_cast<const Value*>(x) + row * stride + k, depth - k);
    });
}
