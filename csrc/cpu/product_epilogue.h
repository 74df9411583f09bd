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
FASTBERT_INLINE typename V::Float block_sums(const Block& block, const Epilogue& epilogue, std::size_t row,
                                             std::size_t column) {
    const float* sums = block.sums + row * kColumns + column;
    if (!epilogue.row_scales) return V::load(sums);
    // Subtracted as integers: as floats both would have lost the digits that the difference consists of.
    const auto* integers = reinterpret_cast<const std::int32_t*>(sums);
    const std::size_t output = block.first_column + column;
    const typename V::Float exact =
        epilogue.column_sums ? V::from_integers(integers, epilogue.column_sums + output) : V::from_integers(integers);
    const typename V::Float scale = V::broadcast(epilogue.row_scales[block.first_row + row]);
    return V::mul(V::mul(exact, scale), V::load(epilogue.column_scales + output));
}

template <class V, Epilogue::Activation kActivation>
void finish_rows_by(const Block& block, const Epilogue& epilogue, std::size_t first, std::size_t last) {
    using F = typename V::Float;
    for (std::size_t row = first; row < last; ++row) {
        const std::size_t residual = (block.first_row + row) * epilogue.residual_stride + block.first_column;
        const std::size_t out = (block.first_row + row) * epilogue.out_stride + block.first_column;
        for (std::size_t column = 0; column < block.columns; column += V::kLanes) {
            const std::size_t count = block.columns - column;
            F x = block_sums<V>(block, epilogue, row, column);
            if (epilogue.bias) x = V::add(x, load_some<V>(epilogue.bias + block.first_column + column, count));
            if constexpr (kActivation == Epilogue::Activation::gelu) x = gelu_of<V>(x);
            if constexpr (kActivation == Epilogue::Activation::gelu_tanh) x = gelu_tanh_of<V>(x);
            if (epilogue.residual && epilogue.residual_dtype == Dtype::bf16) {
                const auto* from = static_cast<const BFloat16*>(epilogue.residual) + residual + column;
                x = V::add(x, load_some<V>(from, count));
            } else if (epilogue.residual) {
                const auto* from = static_cast<const float*>(epilogue.residual) + residual + column;
                x = V::add(x, load_some<V>(from, count));
            }
            if (epilogue.dtype == Dtype::bf16)
                store_some<V>(static_cast<BFloat16*>(epilogue.out) + out + column, x, count);
            else
                store_some<V>(static_cast<float*>(epilogue.out) + out + column, x, count);
        }
    }
}

// Finish rows first..last of a block, counted from its first.
template <class V>
void finish_rows(const Block& block, const Epilogue& epilogue, std::size_t first, std::size_t last) {
    switch (epilogue.activation) {
        case Epilogue::Activation::none:
            return finish_rows_by<V, Epilogue::Activation::none>(block, epilogue, first, last);
        case Epilogue::Activation::gelu:
            return finish_rows_by<V, Epilogue::Activation::gelu>(block, epilogue, first, last);
        case Epilogue::Activation::gelu_tanh:
            return finish_rows_by<V, Epilogue::Activation::gelu_tanh>(block, epilogue, first, last);
    }
}
