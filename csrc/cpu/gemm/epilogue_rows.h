// The epilogue of a block, a row at a time between the steps of the next block. Included inside a target region with
// AVX-512 BF16, after vector_avx512.h and epilogue.h.
//
// A row of a whole block is a cache line of bf16: two vectors of sums are rounded and stored at once. Options are
// examined per row, not per vector, and the bias of a block stays in registers.

// Rounds to nearest like `narrow`, except that denormals become zero, as in the products of tiles.
FASTBERT_INLINE __m512i round_pair(__m512 lower, __m512 upper) {
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(upper, lower));
}

// Rows of kColumns columns.
template <Element kElement, Epilogue::Activation kActivation>
class BlockRows {
    using V = Avx512;
    using enum Epilogue::Activation;
    static constexpr bool kTanh = kActivation == gelu_tanh || kActivation == gelu_tanh_gradient;
    static constexpr bool kGradient = kActivation == gelu_gradient || kActivation == gelu_tanh_gradient;

public:
    FASTBERT_INLINE BlockRows(const Block* block, const Epilogue& epilogue) : epilogue_(epilogue) {
        if (!block) return;
        left = block->rows;
        sums_ = block->sums;
        row_ = block->first_row;
        column_ = block->first_column;
        for (std::size_t half = 0; half < 2; ++half) {
            const std::size_t column = column_ + half * V::kLanes;
            bias_[half] = epilogue.bias ? V::load(epilogue.bias + column) : V::zero();
            if constexpr (kElement == Element::int8) scales_[half] = V::load(epilogue.column_scales + column);
        }
    }

    FASTBERT_INLINE void next() {
        __m512 x[2];
        for (std::size_t half = 0; half < 2; ++half) {
            const float* sums = sums_ + half * V::kLanes;
            if constexpr (kElement == Element::int8) {
                const auto* integers = reinterpret_cast<const std::int32_t*>(sums);
                const __m512 scale = V::broadcast(epilogue_.row_scales[row_]);
                x[half] = V::mul(V::mul(V::from_integers(integers), scale), scales_[half]);
            } else {
                x[half] = V::load(sums);
            }
            x[half] = V::add(x[half], bias_[half]);
        }
        if constexpr (kGradient) {
            __m512 u[2], h[2];
            load(epilogue_.dtype, epilogue_.pre_activation, epilogue_.pre_activation_stride, u);
            for (std::size_t half = 0; half < 2; ++half) {
                x[half] =
                    V::mul(x[half], kTanh ? gelu_tanh_gradient_of<V>(u[half]) : gelu_gradient_of<V>(u[half]));
                h[half] = kTanh ? gelu_tanh_of<V>(u[half]) : gelu_of<V>(u[half]);
            }
            store(epilogue_.dtype, epilogue_.activation_out, epilogue_.activation_out_stride, h);
        } else if constexpr (kActivation != none) {
            if (epilogue_.pre_activation) {
                store(epilogue_.dtype, epilogue_.pre_activation, epilogue_.pre_activation_stride, x);
                load(epilogue_.dtype, epilogue_.pre_activation, epilogue_.pre_activation_stride, x);
            }
            for (__m512& value : x) value = kTanh ? gelu_tanh_of<V>(value) : gelu_of<V>(value);
        }
        if (epilogue_.residual) {
            __m512 residual[2];
            load(epilogue_.residual_dtype, epilogue_.residual, epilogue_.residual_stride, residual);
            for (std::size_t half = 0; half < 2; ++half) x[half] = V::add(x[half], residual[half]);
        }
        store(epilogue_.dtype, epilogue_.out, epilogue_.out_stride, x);
        sums_ += kColumns;
        ++row_;
        --left;
    }

    std::size_t left = 0;  // rows

private:
    FASTBERT_INLINE void load(Dtype dtype, const void* rows, std::size_t stride, __m512 (&x)[2]) const {
        const std::size_t at = row_ * stride + column_;
        for (std::size_t half = 0; half < 2; ++half)
            x[half] = dtype == Dtype::bf16 ? V::load(static_cast<const BFloat16*>(rows) + at + half * V::kLanes)
                                           : V::load(static_cast<const float*>(rows) + at + half * V::kLanes);
    }

    FASTBERT_INLINE void store(Dtype dtype, void* rows, std::size_t stride, const __m512 (&x)[2]) const {
        const std::size_t at = row_ * stride + column_;
        if (dtype == Dtype::bf16) {
            _mm512_storeu_si512(static_cast<BFloat16*>(rows) + at, round_pair(x[0], x[1]));
        } else {
            V::store(static_cast<float*>(rows) + at, x[0]);
            V::store(static_cast<float*>(rows) + at + V::kLanes, x[1]);
        }
    }

    const Epilogue& epilogue_;
    const float* sums_ = nullptr;
    std::size_t row_ = 0, column_ = 0;
    __m512 bias_[2], scales_[2];
};

// Rows of fewer columns.
class PartialRows {
public:
    FASTBERT_INLINE PartialRows(const Block& block, const Epilogue& epilogue)
        : left(block.rows), block_(block), epilogue_(epilogue) {}

    FASTBERT_INLINE void next() {
        const std::size_t row = block_.rows - left--;
        finish_rows<Avx512>(block_, epilogue_, row, row + 1);
    }

    std::size_t left;  // rows

private:
    const Block& block_;
    const Epilogue& epilogue_;
};
