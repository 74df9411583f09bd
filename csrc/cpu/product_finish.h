// What follows a block's sums, for any of the vectors. Included inside a region, behind a vector and vector_math.h.

// The first `count` elements at p, no more than fit a vector.
template <class V, typename Value>
FASTBERT_INLINE typename V::Float load_some(const Value* p, std::size_t count) {
    return count >= V::kLanes ? V::load(p) : V::load_part(p, count);
}

template <class V, typename Value>
FASTBERT_INLINE void store_some(Value* p, typename V::Float x, std::size_t count) {
    count >= V::kLanes ? V::store(p, x) : V::store_part(p, x, count);
}

// The sums of one vector of a row, as floats. Rows of sums are whole, and so are the scales and sums of a packed
// weight: nothing of them is masked.
template <class V>
FASTBERT_INLINE typename V::Float block_sums(const Block& block, const Finish& finish, std::size_t row,
                                             std::size_t column) {
    const float* sums = block.sums + row * kColumns + column;
    if (!finish.row_scales) return V::load(sums);
    // Subtracted as integers: as floats both would have lost the digits that the difference consists of.
    const auto* integers = reinterpret_cast<const std::int32_t*>(sums);
    const std::size_t output = block.first_column + column;
    const typename V::Float exact =
        finish.column_sums ? V::from_integers(integers, finish.column_sums + output) : V::from_integers(integers);
    const typename V::Float scale = V::broadcast(finish.row_scales[block.first_row + row]);
    return V::mul(V::mul(exact, scale), V::load(finish.column_scales + output));
}

template <class V, Finish::Activation kActivation>
void finish_rows_by(const Block& block, const Finish& finish, std::size_t first, std::size_t last) {
    using F = typename V::Float;
    for (std::size_t row = first; row < last; ++row) {
        const std::size_t residual = (block.first_row + row) * finish.residual_stride + block.first_column;
        const std::size_t out = (block.first_row + row) * finish.out_stride + block.first_column;
        for (std::size_t column = 0; column < block.columns; column += V::kLanes) {
            const std::size_t count = block.columns - column;
            F x = block_sums<V>(block, finish, row, column);
            if (finish.bias) x = V::add(x, load_some<V>(finish.bias + block.first_column + column, count));
            if constexpr (kActivation == Finish::Activation::gelu) x = gelu_of<V>(x);
            if constexpr (kActivation == Finish::Activation::gelu_tanh) x = gelu_tanh_of<V>(x);
            if (finish.residual && finish.residual_dtype == Dtype::bf16) {
                const auto* from = static_cast<const BFloat16*>(finish.residual) + residual + column;
                x = V::add(x, load_some<V>(from, count));
            } else if (finish.residual) {
                const auto* from = static_cast<const float*>(finish.residual) + residual + column;
                x = V::add(x, load_some<V>(from, count));
            }
            if (finish.dtype == Dtype::bf16)
                store_some<V>(static_cast<BFloat16*>(finish.out) + out + column, x, count);
            else
                store_some<V>(static_cast<float*>(finish.out) + out + column, x, count);
        }
    }
}

// Finish rows first..last of a block, counted from its first.
template <class V>
void finish_rows(const Block& block, const Finish& finish, std::size_t first, std::size_t last) {
    switch (finish.activation) {
        case Finish::Activation::none:
            return finish_rows_by<V, Finish::Activation::none>(block, finish, first, last);
        case Finish::Activation::gelu:
            return finish_rows_by<V, Finish::Activation::gelu>(block, finish, first, last);
        case Finish::Activation::gelu_tanh:
            return finish_rows_by<V, Finish::Activation::gelu_tanh>(block, finish, first, last);
    }
}
