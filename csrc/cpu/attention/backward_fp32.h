// fp32 matmuls of attention's backward. Included after backward.h.
template <class Lanes, class T>
struct Fp32Backward : Fp32Products<Lanes, T> {
    using Forward = Fp32Products<Lanes, T>;
    using Fp32 = Forward;
    using Forward::kLanes, Forward::kPanel, Forward::kScoreStride;
    static constexpr std::size_t kQueryStride = kScoreStride;
    // dS is read in place, one column of the tile at a time, and so are the tile's keys.
    static constexpr std::size_t kSpan = kKeyTile;
    static_assert(Forward::kBlock == kGradientBlock && kGroup % kPanel == 0);

    static std::size_t span_bytes(std::size_t) { return 0; }
    static std::size_t query_sum_bytes(std::size_t dim) { return kGradientBlock * round_up(dim, 16) * sizeof(float); }

    static void clear_queries(float* sums, std::size_t count, std::size_t dim) {
        std::fill_n(sums, count * round_up(dim, 16), 0.0F);
    }

    static void load_tile(const T* k, std::size_t stride, std::size_t rows, std::size_t dim, float* to) {
        Forward::load_queries(k, stride, rows, dim, to);
    }

    static void load_span(const T*, std::size_t, std::size_t, std::size_t, std::byte*) {}

    // out (rows, kGroup) = the tile's rows times packed columns first.., of which `stored` exist.
    static void group(const float* tile, const float* columns, std::size_t first, std::size_t stored, std::size_t rows,
                      std::size_t dim, float* out) {
        for (std::size_t n = 0; n < kGroup && first + n < stored; n += kPanel) {
            const float* b = columns + (first + n) * dim;
            if (stored - first - n > kLanes) {
                Forward::template multiply_panel<2>(tile, b, rows, dim, out + n, kGroupStride, false);
            } else {
                Forward::template multiply_panel<1>(tile, b, rows, dim, out + n, kGroupStride, false);
            }
        }
    }

    // sums (keys, dim) = weights (keys, first..end) times the packed rows, of which `stored` exist.
    static void accumulate_over_queries(const float* weights, const float* packed, std::size_t keys, std::size_t first,
                                        std::size_t end, std::size_t stored, std::size_t dim, float* sums,
                                        std::size_t sum_stride, bool add) {
        for (std::size_t n = 0; n < dim; n += kPanel, packed += kPanel * stored) {
            if (dim - n > kLanes) {
                Forward::template multiply_panel<2>(weights + first, packed + first * kPanel, keys, end - first,
                                                    sums + n, sum_stride, add);
            } else {
                Forward::template multiply_panel<1>(weights + first, packed + first * kLanes, keys, end - first,
                                                    sums + n, sum_stride, add);
            }
        }
    }

    static void store_score_gradients(const float*, std::size_t, std::size_t, std::size_t, std::size_t, std::size_t,
                                      std::size_t, std::size_t, std::byte*) {}

    static void add_queries(float* sums, const float* rows, std::size_t stride, std::size_t count, std::size_t) {
        for (std::size_t i = 0; i < count * stride; i += kLanes)
            Lanes::store(sums + i, Lanes::add(Lanes::load(sums + i), Lanes::load(rows + i)));
    }

    // sums (first..end, dim) += dS (keys, first..end)^T times the tile's keys.
    static void accumulate_over_keys(const float* score_gradients, const float* tile, const std::byte*,
                                     std::size_t keys, std::size_t first, std::size_t end, std::size_t dim,
                                     float* sums) {
        const std::size_t stride = round_up(dim, 16);
        score_gradients += first;
        sums += first * stride;
        for (std::size_t n = 0; n < dim; n += kPanel) {
            if (dim - n > kLanes) {
                Forward::template multiply_panel<2, 1, kScoreStride, kQueryStride>(
                    score_gradients, tile + n, end - first, keys, sums + n, stride, true);
            } else {
                Forward::template multiply_panel<1, 1, kScoreStride, kQueryStride>(
                    score_gradients, tile + n, end - first, keys, sums + n, stride, true);
            }
        }
    }

    static void finish_queries(const float* sums, std::size_t count, std::size_t dim, float scale, T* out,
                               std::size_t stride) {
        for (std::size_t i = 0; i < count; ++i)
            write_row<Lanes>(sums + i * round_up(dim, 16), dim, scale, out + i * stride);
    }
};

// The register blocking may differ from forward, whose tiles have 24 queries.
template <class Lanes, class GradientLanes = Lanes>
AttentionKernel fp32_kernel(Dtype dtype) {
    return dtype == Dtype::fp32 ? make_kernel<Fp32Products<Lanes, float>, Fp32Backward<GradientLanes, float>>()
                                : make_kernel<Fp32Products<Lanes, BFloat16>, Fp32Backward<GradientLanes, BFloat16>>();
}
