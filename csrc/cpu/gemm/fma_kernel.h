// Micro-kernels by fused multiply-adds, and the row operations around matmuls, generic over the vector type. Included
// inside a target region, after a vector type, vector_math.h and epilogue.h.
//
// A row panel holds floats, [padded depth][rows], in broadcast order. Each output is a single chain of sums in depth
// order, however many rows its panel has.

// Load the weights of one depth step, at p + the vector's offset among the panels.
template <class V, Element kElement, bool kSecond>
FASTBERT_INLINE typename V::Float weights_at(const std::byte* p) {
    if constexpr (kElement == Element::fp32)
        return V::load(reinterpret_cast<const float*>(p));
    else
        return kSecond ? V::second_of_pairs(p) : V::first_of_pairs(p);
}

// Accumulate one depth step into the sums of kRows rows by kVectors vectors.
template <class V, Element kElement, bool kSecond, std::size_t kRows, std::size_t kVectors>
FASTBERT_INLINE void add_step(const float* panel, const std::byte* weights, std::size_t panel_bytes,
                              typename V::Float (&total)[kRows][kVectors]) {
    typename V::Float weight[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) {
        const std::size_t lane = v * V::kLanes;
        weight[v] = weights_at<V, kElement, kSecond>(weights + lane / kPanel * panel_bytes + lane % kPanel * 4);
    }
#pragma GCC unroll 16
    for (std::size_t row = 0; row < kRows; ++row) {
        const typename V::Float x = V::broadcast(panel[row]);
        for (std::size_t v = 0; v < kVectors; ++v) V::add_product(total[row][v], x, weight[v]);
    }
}

// Prefetch distance in a weight panel, in bytes.
inline constexpr std::size_t kPrefetchDistance = 2048;

// Compilers keep an array in registers only if all loops over it are unrolled, and by default stop before 14 rows.
//
// Compute sums[row][0..kVectors * kLanes] of kRows rows of a panel of kStride. `weights` points to the first vector's
// group 0.
template <class V, Element kElement, std::size_t kRows, std::size_t kStride, std::size_t kVectors>
void sum_rows(const float* panel, const std::byte* weights, std::size_t panel_bytes, std::size_t groups, float* sums) {
    typename V::Float total[kRows][kVectors];
#pragma GCC unroll 16
    for (std::size_t row = 0; row < kRows; ++row)
        for (std::size_t v = 0; v < kVectors; ++v) total[row][v] = V::zero();
    for (std::size_t group = 0; group < groups; ++group) {
        // Weights from memory: 10 to 20% faster than relying on the hardware prefetcher.
        __builtin_prefetch(weights + kPrefetchDistance);
        if constexpr (kVectors * V::kLanes > kPanel) __builtin_prefetch(weights + panel_bytes + kPrefetchDistance);
        add_step<V, kElement, false>(panel, weights, panel_bytes, total);
        panel += kStride;
        if constexpr (kElement == Element::bf16) {
            add_step<V, kElement, true>(panel, weights, panel_bytes, total);
            panel += kStride;
        }
        weights += kPanel * 4;
    }
#pragma GCC unroll 16
    for (std::size_t row = 0; row < kRows; ++row)
        for (std::size_t v = 0; v < kVectors; ++v) V::store(sums + row * kColumns + v * V::kLanes, total[row][v]);
}

// The micro-kernel of panels of kRows rows, whose kVectors vectors of sums fit into registers.
template <class V, Element kElement, std::size_t kRows, std::size_t kVectors>
struct FmaKernel {
    using Sum = void (*)(const float*, const std::byte*, std::size_t, std::size_t, float*);

    template <std::size_t... kCount>
    static Sum sum_of(std::size_t rows, std::index_sequence<kCount...>) {
        static constexpr Sum kSums[] = {&sum_rows<V, kElement, kCount + 1, kRows, kVectors>...};
        return kSums[rows - 1];
    }

    // One vector more, since stores write whole vectors.
    static std::size_t panel_bytes(std::size_t padded_depth) {
        return (padded_depth * kRows * sizeof(float) + 127) / 64 * 64;
    }

    static void multiply(const std::byte* panel, const std::byte* weights, std::size_t weight_bytes,
                         std::size_t padded_depth, const Block& block, const Block* previous,
                         const Epilogue& epilogue) {
        prefetch_operands(block, epilogue);
        if (previous) finish_block(*previous, epilogue);
        const Sum sum = sum_of(block.rows, std::make_index_sequence<kRows>());
        constexpr std::size_t kWidth = kVectors * V::kLanes;
        for (std::size_t column = 0; column < kColumns; column += kWidth) {
            const std::byte* first = weights + column / kPanel * weight_bytes + column % kPanel * 4;
            sum(reinterpret_cast<const float*>(panel), first, weight_bytes, padded_depth / group_of(kElement),
                block.sums + column);
        }
    }

    static void finish_block(const Block& block, const Epilogue& epilogue) {
        finish_rows<V>(block, epilogue, 0, block.rows);
    }

    static void pack_rows(const void* x, std::size_t stride, std::size_t rows, std::size_t depth,
                          std::size_t padded_depth, std::byte* panel) {
        auto* to = reinterpret_cast<float*>(panel);
        for (std::size_t row = 0; row < kRows; ++row) {
            const std::size_t count = row < rows ? depth : 0;
            for (std::size_t k = 0; k < count; ++k) {
                if constexpr (kElement == Element::fp32)
                    to[k * kRows + row] = static_cast<const float*>(x)[row * stride + k];
                else
                    to[k * kRows + row] = to_float(static_cast<const BFloat16*>(x)[row * stride + k]);
            }
            for (std::size_t k = count; k < padded_depth; ++k) to[k * kRows + row] = 0.0F;
        }
    }

    // Stores write a whole vector although only kRows values are valid; the next token's store overwrites the excess.
    static void pack_columns(const void* x, std::size_t stride, std::size_t tokens, std::size_t columns,
                             std::size_t first, std::byte* panel, float* sums) {
        static_assert(kRows <= V::kLanes);
        using Value = std::conditional_t<kElement == Element::fp32, float, BFloat16>;
        const Value* from = static_cast<const Value*>(x);
        float* to = reinterpret_cast<float*>(panel) + first * kRows;
        typename V::Float total = V::zero();
        for (std::size_t token = 0; token < tokens; ++token, from += stride, to += kRows) {
            const typename V::Float values = V::load_part(from, columns);
            V::store(to, values);
            total = V::add(total, values);
        }
        for (std::size_t token = tokens; token % (kStep / bytes_of(kElement)); ++token, to += kRows)
            V::store(to, V::zero());
        if (sums) V::store_part(sums, V::add(V::load_part(sums, columns), total), columns);
    }
};

template <class V>
void round_row(const float* from, std::size_t count, BFloat16* to) {
    for (std::size_t i = 0; i < count; i += V::kLanes)
        store_some<V>(to + i, load_some<V>(from + i, count - i), count - i);
}

template <class V>
void widen_row(const BFloat16* from, std::size_t count, float* to) {
    for (std::size_t i = 0; i < count; i += V::kLanes)
        store_some<V>(to + i, load_some<V>(from + i, count - i), count - i);
}

// The sum of term(vector) over a row of whole vectors, in two chains: those of even and of odd vectors.
template <class V, class Term>
FASTBERT_INLINE float sum_of_row(const float* row, std::size_t padded, const Term& term) {
    typename V::Float even = V::zero(), odd = V::zero();  // an array would be kept in memory
    std::size_t i = 0;
    for (; i + 2 * V::kLanes <= padded; i += 2 * V::kLanes) {
        even = term(V::load(row + i), even);
        odd = term(V::load(row + i + V::kLanes), odd);
    }
    if (i < padded) even = term(V::load(row + i), even);
    return V::sum(V::add(even, odd));
}

// out = (row - mean) * scale * weight + bias.
template <class V, class Out>
FASTBERT_INLINE void write_normed(const float* row, std::size_t count, float mean, float scale, const FusedNorm& norm,
                                  Out* out) {
    using F = typename V::Float;
    const F middle = V::broadcast(mean), factor = V::broadcast(scale);
    const auto write = [&](std::size_t i, F weight, F shift) FASTBERT_INLINE_BODY {
        return V::fma(V::mul(V::sub(V::load(row + i), middle), factor), weight, shift);
    };
    std::size_t i = 0;
    for (; i + V::kLanes <= count; i += V::kLanes)
        V::store(out + i, write(i, V::load(norm.weight + i), norm.bias ? V::load(norm.bias + i) : V::zero()));
    if (const std::size_t left = count - i) {
        const F shift = norm.bias ? V::load_part(norm.bias + i, left) : V::zero();
        V::store_part(out + i, write(i, V::load_part(norm.weight + i, left), shift), left);
    }
}

// Two-pass mean and variance of a row in L1 or L2.
template <class V>
void norm_row(float* row, std::size_t count, const FusedNorm& norm, void* out, Dtype dtype) {
    using F = typename V::Float;
    const std::size_t padded = (count + V::kLanes - 1) / V::kLanes * V::kLanes;
    const float share = 1.0F / static_cast<float>(count);
    // The padding of the last vector contributes nothing: it is zero first, then the mean.
    std::fill(row + count, row + padded, 0.0F);
    const float mean = share * sum_of_row<V>(row, padded, [&](F x, F sum) FASTBERT_INLINE_BODY { return V::add(sum, x); });
    std::fill(row + count, row + padded, mean);
    const F middle = V::broadcast(mean);
    const float variance = share * sum_of_row<V>(row, padded, [&](F x, F sum) FASTBERT_INLINE_BODY {
        const F difference = V::sub(x, middle);
        return V::fma(difference, difference, sum);
    });
    const float scale = 1.0F / std::sqrt(variance + norm.eps);
    if (dtype == Dtype::bf16)
        write_normed<V>(row, count, mean, scale, norm, static_cast<BFloat16*>(out));
    else
        write_normed<V>(row, count, mean, scale, norm, static_cast<float*>(out));
}
