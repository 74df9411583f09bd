// The epilogue of a block, generic over the vector type. Included inside a target region, after a vector type,
// vector_math.h, gelu_gradient.h and activations.h.

// Load the first `count` elements at p, at most one vector.
template <class V, typename Value>
FASTBERT_INLINE typename V::Float load_some(const Value* p, std::size_t count) {
    return count >= V::kLanes ? V::load(p) : V::load_part(p, count);
}

template <class V, typename Value>
FASTBERT_INLINE void store_some(Value* p, typename V::Float x, std::size_t count) {
    count >= V::kLanes ? V::store(p, x) : V::store_part(p, x, count);
}

// Load one vector of a row's sums as floats. Rows of sums, scales and column sums are padded, so nothing is masked.
template <class V>
FASTBERT_INLINE typename V::Float block_sums(const Block& block, const Epilogue& epilogue, std::size_t row,
                                             std::size_t column) {
    const float* sums = block.sums + row * kColumns + column;
    if (!epilogue.row_scales) return V::load(sums);
    // Subtract as integers: in fp32 both operands would have lost the digits of their difference.
    const auto* integers = reinterpret_cast<const std::int32_t*>(sums);
    const std::size_t output = block.first_column + column;
    const typename V::Float exact =
        epilogue.column_sums ? V::from_integers(integers, epilogue.column_sums + output) : V::from_integers(integers);
    const typename V::Float scale = V::broadcast(epilogue.row_scales[block.first_row + row]);
    return V::mul(V::mul(exact, scale), V::load(epilogue.column_scales + output));
}

template <class V>
FASTBERT_INLINE void store_as(Dtype dtype, void* p, std::size_t offset, typename V::Float x, std::size_t count) {
    if (dtype == Dtype::bf16)
        store_some<V>(static_cast<BFloat16*>(p) + offset, x, count);
    else
        store_some<V>(static_cast<float*>(p) + offset, x, count);
}

template <class V>
FASTBERT_INLINE typename V::Float load_as(Dtype dtype, const void* p, std::size_t offset, std::size_t count) {
    return dtype == Dtype::bf16 ? load_some<V>(static_cast<const BFloat16*>(p) + offset, count)
                                : load_some<V>(static_cast<const float*>(p) + offset, count);
}

template <class V, Epilogue::Activation kActivation>
void finish_rows_by(const Block& block, const Epilogue& epilogue, std::size_t first, std::size_t last) {
    using F = typename V::Float;
    using enum Epilogue::Activation;
    constexpr bool kGradient = kActivation == gelu_gradient || kActivation == gelu_tanh_gradient;
    constexpr bool kTanh = kActivation == gelu_tanh || kActivation == gelu_tanh_gradient;
    for (std::size_t row = first; row < last; ++row) {
        const auto offset = [&](std::size_t stride) { return (block.first_row + row) * stride + block.first_column; };
        const std::size_t residual = offset(epilogue.residual_stride), out = offset(epilogue.out_stride);
        const std::size_t pre_activation = offset(epilogue.pre_activation_stride),
                          activation_out = offset(epilogue.activation_out_stride);
        for (std::size_t column = 0; column < block.columns; column += V::kLanes) {
            const std::size_t count = block.columns - column;
            F x = block_sums<V>(block, epilogue, row, column);
            if (epilogue.bias) x = V::add(x, load_some<V>(epilogue.bias + block.first_column + column, count));
            if constexpr (kGradient) {
                const F u = load_as<V>(epilogue.dtype, epilogue.pre_activation, pre_activation + column, count);
                x = V::mul(x, kTanh ? gelu_tanh_gradient_of<V>(u) : gelu_gradient_of<V>(u));
                const F h = kTanh ? gelu_tanh_of<V>(u) : gelu_of<V>(u);
                store_as<V>(epilogue.dtype, epilogue.activation_out, activation_out + column, h, count);
            } else if constexpr (kActivation != none) {
                if (epilogue.pre_activation) {
                    store_as<V>(epilogue.dtype, epilogue.pre_activation, pre_activation + column, x, count);
                    x = load_as<V>(epilogue.dtype, epilogue.pre_activation, pre_activation + column, count);
                }
                x = kTanh ? gelu_tanh_of<V>(x) : gelu_of<V>(x);
            }
            if (epilogue.residual)
                x = V::add(x, load_as<V>(epilogue.residual_dtype, epilogue.residual, residual + column, count));
            store_as<V>(epilogue.dtype, epilogue.out, out + column, x, count);
        }
    }
}

// A block of a gated weight: the sums of kPanel gates, then of their values.
template <class V, Activation kGate>
void finish_gated_rows_by(const Block& block, const Epilogue& epilogue, std::size_t first, std::size_t last) {
    using F = typename V::Float;
    const std::size_t width = epilogue.gated_width;
    for (std::size_t row = first; row < last; ++row) {
        const std::size_t at = block.first_row + row;
        for (std::size_t column = 0; column < kPanel; column += V::kLanes) {
            const std::size_t output = block.first_column / 2 + column;
            if (output >= width) break;
            const std::size_t count = width - output;
            F gate = block_sums<V>(block, epilogue, row, column);
            F value = block_sums<V>(block, epilogue, row, kPanel + column);
            if (epilogue.bias) {
                gate = V::add(gate, load_some<V>(epilogue.bias + output, count));
                value = V::add(value, load_some<V>(epilogue.bias + width + output, count));
            }
            if (epilogue.pre_activation) {
                const std::size_t to = at * epilogue.pre_activation_stride + output;
                store_as<V>(epilogue.dtype, epilogue.pre_activation, to, gate, count);
                store_as<V>(epilogue.dtype, epilogue.pre_activation, to + width, value, count);
                gate = load_as<V>(epilogue.dtype, epilogue.pre_activation, to, count);
                value = load_as<V>(epilogue.dtype, epilogue.pre_activation, to + width, count);
            }
            const F product = V::mul(activation_of<V, kGate>(gate), value);
            store_as<V>(epilogue.dtype, epilogue.out, at * epilogue.out_stride + output, product, count);
        }
    }
}

template <class V, Activation kGate>
void finish_gated_gradient_rows_by(const Block& block, const Epilogue& epilogue, std::size_t first, std::size_t last) {
    using F = typename V::Float;
    const std::size_t width = epilogue.gated_width;
    for (std::size_t row = first; row < last; ++row) {
        const std::size_t at = block.first_row + row, from = at * epilogue.pre_activation_stride + block.first_column;
        const std::size_t out = at * epilogue.out_stride + block.first_column;
        const std::size_t activation_out = at * epilogue.activation_out_stride + block.first_column;
        for (std::size_t column = 0; column < block.columns; column += V::kLanes) {
            const std::size_t count = block.columns - column;
            const F gradient = block_sums<V>(block, epilogue, row, column);
            const F gate = load_as<V>(epilogue.dtype, epilogue.pre_activation, from + column, count);
            const F value = load_as<V>(epilogue.dtype, epilogue.pre_activation, from + width + column, count);
            const F activated = activation_of<V, kGate>(gate);
            const F dgate = V::mul(V::mul(gradient, value), activation_gradient_of<V, kGate>(gate));
            store_as<V>(epilogue.dtype, epilogue.activation_out, activation_out + column, V::mul(activated, value),
                        count);
            store_as<V>(epilogue.dtype, epilogue.out, out + column, dgate, count);
            store_as<V>(epilogue.dtype, epilogue.out, out + width + column, V::mul(gradient, activated), count);
        }
    }
}

template <class V>
void finish_gated_rows(const Block& block, const Epilogue& epilogue, std::size_t first, std::size_t last) {
    using Finish = void (*)(const Block&, const Epilogue&, std::size_t, std::size_t);
    using enum Activation;
    // In the order of Activation.
    static constexpr Finish kForward[] = {finish_gated_rows_by<V, gelu>, finish_gated_rows_by<V, gelu_tanh>,
                                          finish_gated_rows_by<V, relu>, finish_gated_rows_by<V, silu>};
    static constexpr Finish kGradient[] = {
        finish_gated_gradient_rows_by<V, gelu>, finish_gated_gradient_rows_by<V, gelu_tanh>,
        finish_gated_gradient_rows_by<V, relu>, finish_gated_gradient_rows_by<V, silu>};
    const bool gradient = epilogue.activation == Epilogue::Activation::gated_gradient;
    (gradient ? kGradient : kForward)[static_cast<std::size_t>(epilogue.gate)](block, epilogue, first, last);
}

// Prefetch the rows that a block's epilogue will read, one block ahead, to overlap their latencies.
FASTBERT_INLINE void prefetch_rows_of(const Block& block, const void* rows, std::size_t stride, Dtype dtype) {
    const std::size_t size = size_of(dtype), bytes = block.columns * size;
    const auto* row = static_cast<const std::byte*>(rows) + (block.first_row * stride + block.first_column) * size;
    for (std::size_t i = 0; i < block.rows; ++i, row += stride * size)
        for (std::size_t line = 0; line < bytes; line += 64) __builtin_prefetch(row + line, 0, 2);
}

FASTBERT_INLINE void prefetch_operands(const Block& block, const Epilogue& epilogue) {
    using enum Epilogue::Activation;
    if (epilogue.activation == gelu_gradient || epilogue.activation == gelu_tanh_gradient)
        prefetch_rows_of(block, epilogue.pre_activation, epilogue.pre_activation_stride, epilogue.dtype);
    if (epilogue.activation == gated_gradient) {
        const std::size_t bytes = epilogue.gated_width * size_of(epilogue.dtype);
        const auto* gates = static_cast<const std::byte*>(epilogue.pre_activation);
        prefetch_rows_of(block, gates, epilogue.pre_activation_stride, epilogue.dtype);
        prefetch_rows_of(block, gates + bytes, epilogue.pre_activation_stride, epilogue.dtype);
    }
    if (epilogue.residual)
        prefetch_rows_of(block, epilogue.residual, epilogue.residual_stride, epilogue.residual_dtype);
}

// Apply the epilogue to rows first..last of a block, counted from its first row.
template <class V>
void finish_rows(const Block& block, const Epilogue& epilogue, std::size_t first, std::size_t last) {
    using enum Epilogue::Activation;
    switch (epilogue.activation) {
        case none:
            return finish_rows_by<V, none>(block, epilogue, first, last);
        case gelu:
            return finish_rows_by<V, gelu>(block, epilogue, first, last);
        case gelu_tanh:
            return finish_rows_by<V, gelu_tanh>(block, epilogue, first, last);
        case gelu_gradient:
            return finish_rows_by<V, gelu_gradient>(block, epilogue, first, last);
        case gelu_tanh_gradient:
            return finish_rows_by<V, gelu_tanh_gradient>(block, epilogue, first, last);
        case gated:
        case gated_gradient:
            return finish_gated_rows<V>(block, epilogue, first, last);
    }
}
