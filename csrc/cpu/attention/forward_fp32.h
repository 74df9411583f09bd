// fp32 matmuls of attention, for any operand dtype. Included after forward.h.
//
// Lanes is a vector type with its register block: kRows rows by two vectors (kFewRows for the remainder), and with
// `transpose` of a square of vectors.

// c (R rows, N vectors) = a b, plus c if `add`. ROW and COLUMN are the strides of a, STEP the row stride of b, in
// floats.
template <class V, std::size_t R, std::size_t N, std::size_t ROW, std::size_t COLUMN, std::size_t STEP>
FASTBERT_INLINE void multiply_block(const float* a, const float* b, std::size_t depth, float* c, std::size_t c_stride,
                                    bool add) {
    typename V::Float sum[R][N];
    for (std::size_t r = 0; r < R; ++r)
        for (std::size_t n = 0; n < N; ++n) sum[r][n] = add ? V::load(c + r * c_stride + n * V::kLanes) : V::zero();
    for (std::size_t d = 0; d < depth; ++d, b += STEP) {
        typename V::Float column[N];
        for (std::size_t n = 0; n < N; ++n) column[n] = V::load(b + n * V::kLanes);
        for (std::size_t r = 0; r < R; ++r) {
            const auto x = V::broadcast(a[r * ROW + d * COLUMN]);
            for (std::size_t n = 0; n < N; ++n) sum[r][n] = V::fma(x, column[n], sum[r][n]);
        }
    }
    for (std::size_t r = 0; r < R; ++r)
        for (std::size_t n = 0; n < N; ++n) V::store(c + r * c_stride + n * V::kLanes, sum[r][n]);
}

template <class Lanes, class T>
struct Fp32Products {
    using Vector = Lanes;
    using Element = T;
    using Weight = float;
    static constexpr std::size_t kLanes = Lanes::kLanes, kPanel = 2 * kLanes;
    static constexpr std::size_t kTile = 24, kBlock = 256;
    // 17 cache lines, so that neighbouring rows map to different cache sets.
    static constexpr std::size_t kScoreStride = 272, kWeightStride = kScoreStride;
    static constexpr std::size_t kWeightStep = 1;
    static_assert(kAttentionTiles % kTile == 0 && kTile % Lanes::kRows == 0 && Lanes::kRows % Lanes::kFewRows == 0);

    static std::size_t query_bytes(std::size_t) { return kTile * kScoreStride * sizeof(float); }
    static std::size_t key_bytes(std::size_t dim) { return kBlock * round_up(dim, 16) * sizeof(float); }
    static std::size_t value_bytes(std::size_t dim) { return kBlock * round_up(dim, 16) * sizeof(float); }

    static FASTBERT_INLINE void store_weights(float* p, typename Lanes::Float x) { Lanes::store(p, x); }

    // Load up to one vector of a row, zero-padded.
    static FASTBERT_INLINE typename Lanes::Float load(const T* p, std::size_t count) {
        return count >= kLanes ? Lanes::load(p) : Lanes::load_part(p, count);
    }

    static void load_queries(const T* q, std::size_t stride, std::size_t rows, std::size_t dim, float* to) {
        for (std::size_t r = 0; r < rows; ++r, q += stride, to += kScoreStride)
            for (std::size_t d = 0; d < dim; d += kLanes) Lanes::store(to + d, load(q + d, dim - d));
    }

    // [keys / panel][dim][panel]; the last panel is one vector wide if its keys fit.
    static void pack_keys(const T* k, std::size_t stride, std::size_t keys, std::size_t dim, float* to) {
        for (std::size_t first = 0; first < keys; first += kPanel, to += kPanel * dim) {
            const std::size_t width = keys - first > kLanes ? kPanel : kLanes;
            for (std::size_t half = 0; half < width; half += kLanes) {
                const std::size_t begin = first + half, count = std::min(kLanes, keys - begin);
                for (std::size_t d = 0; d < dim; d += kLanes)
                    pack_square(k + begin * stride + d, stride, count, dim - d, to + d * width + half, width);
            }
        }
    }

    // A square of keys by dims, transposed.
    static FASTBERT_INLINE void pack_square(const T* k, std::size_t stride, std::size_t keys, std::size_t dims,
                                            float* to, std::size_t width) {
        typename Lanes::Float rows[kLanes];
        if (keys == kLanes && dims >= kLanes) {
            for (std::size_t i = 0; i < kLanes; ++i) rows[i] = Lanes::load(k + i * stride);
            Lanes::transpose(rows);
            for (std::size_t i = 0; i < kLanes; ++i) Lanes::store(to + i * width, rows[i]);
            return;
        }
        for (std::size_t i = 0; i < kLanes; ++i) rows[i] = i < keys ? load(k + i * stride, dims) : Lanes::zero();
        Lanes::transpose(rows);
        for (std::size_t i = 0; i < std::min(kLanes, dims); ++i) Lanes::store(to + i * width, rows[i]);
    }

    // [dim / panel][keys][panel], the last panel as above.
    static void pack_values(const T* v, std::size_t stride, std::size_t keys, std::size_t dim, float* to) {
        for (std::size_t first = 0; first < dim; first += kPanel) {
            const std::size_t left = dim - first;
            const bool wide = left > kLanes;
            const T* row = v + first;
            for (std::size_t i = 0; i < keys; ++i, row += stride) {
                Lanes::store(to, load(row, left));
                if (wide) Lanes::store(to + kLanes, load(row + kLanes, left - kLanes));
                to += wide ? kPanel : kLanes;
            }
        }
    }

    // The offset of a packed key, a multiple of 32, in elements.
    static constexpr std::size_t packed_keys(std::size_t key, std::size_t dim) { return key * dim; }

    static FASTBERT_INLINE void transpose(typename Lanes::Float (&rows)[kLanes]) { Lanes::transpose(rows); }

    // The extent of a packed operand that is used, its stored extent, and where the use begins.
    struct Extent {
        std::size_t used, stored, first = 0;
    };

    // c (rows, columns.used) = a b over depth.used rows of b's panels, from depth.first on.
    static FASTBERT_INLINE void multiply(const float* a, const float* b, std::size_t rows, Extent columns, Extent depth,
                                         float* c, std::size_t c_stride, bool add) {
        for (std::size_t n = 0; n < columns.used; n += kPanel, b += kPanel * depth.stored) {
            if (columns.stored - n > kLanes) {
                multiply_panel<2>(a, b + depth.first * kPanel, rows, depth.used, c + n, c_stride, add);
            } else {
                multiply_panel<1>(a, b + depth.first * kLanes, rows, depth.used, c + n, c_stride, add);
            }
        }
    }

    template <std::size_t N, std::size_t ROW = kScoreStride, std::size_t COLUMN = 1, std::size_t STEP = N * kLanes>
    static void multiply_panel(const float* a, const float* b, std::size_t rows, std::size_t depth, float* c,
                               std::size_t c_stride, bool add) {
        std::size_t r = 0;
        for (; r + Lanes::kRows <= rows; r += Lanes::kRows)
            multiply_block<Lanes, Lanes::kRows, N, ROW, COLUMN, STEP>(a + r * ROW, b, depth, c + r * c_stride, c_stride,
                                                                      add);
        // Padding rows are computed from stale data and ignored.
        for (; r < rows; r += Lanes::kFewRows)
            multiply_block<Lanes, Lanes::kFewRows, N, ROW, COLUMN, STEP>(a + r * ROW, b, depth, c + r * c_stride,
                                                                         c_stride, add);
    }

    // s (rows, visible) = q k^T for the packed keys first.. of `keys`; `first` is a multiple of 32.
    static void scores(const float* q, const float* k, std::size_t rows, std::size_t first, std::size_t visible,
                       std::size_t keys, std::size_t dim, float* s, std::size_t s_stride) {
        multiply(q, k + packed_keys(first, dim), rows, {visible, keys - first}, {dim, dim}, s, s_stride, false);
    }

    // sums (rows, dim) = weights v for the packed values first.. of `keys`, added if `add`.
    static void accumulate(const float* weights, const float* v, std::size_t rows, std::size_t first,
                           std::size_t visible, std::size_t keys, std::size_t dim, float* sums, std::size_t sum_stride,
                           bool add) {
        multiply(weights, v, rows, {dim, dim}, {visible, keys, first}, sums, sum_stride, add);
    }
};
