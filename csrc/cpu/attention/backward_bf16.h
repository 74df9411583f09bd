// bf16 matmuls of attention's backward. Included after backward.h.
//
// dQ needs dS with one row per query, but dS has one row per key. The transpose is accumulated instead: K^T (dims,
// keys) times dS in VNNI layout, which is cheaper than transposing dS. AMX needs depth, so dS of a whole span of keys
// is kept: [queries / 16][keys / 32][16 pairs of keys][16 queries][2].
struct GradientLanes : Avx512 {
    static constexpr std::size_t kRows = 8, kFewRows = 4;

    static FASTBERT_INLINE void transpose(__m512 (&rows)[16]) { transpose_lanes(rows); }
};

template <class Blocks>
struct Bf16Backward : Bf16Products<Blocks> {
    using Forward = Bf16Products<Blocks>;
    // Sums by relative position are multiplied in fp32.
    using Fp32 = Fp32Products<GradientLanes, BFloat16>;
    using Forward::kQueryStride, Forward::kWeightStride;
    static constexpr std::size_t kSpan = 256, kSteps = kSpan / 32;
    static constexpr std::size_t kSpanStride = 288;  // of K^T
    static constexpr std::size_t kSumStride = 272;   // of dQ^T
    static_assert(Forward::kBlock == kGradientBlock && kSpan == Forward::kBlock && kSumStride >= kGradientBlock);

    static std::size_t transposed_bytes(std::size_t dim) { return round_up(dim, 32) * kSpanStride * sizeof(BFloat16); }
    static std::size_t score_gradient_bytes() { return kGradientBlock * kSpan * sizeof(BFloat16); }
    static std::size_t span_bytes(std::size_t dim) {
        return transposed_bytes(dim) + score_gradient_bytes() + Forward::value_bytes(dim);
    }
    static BFloat16* transposed_keys(std::byte* span) { return reinterpret_cast<BFloat16*>(span); }
    static BFloat16* score_gradients_of(std::byte* span, std::size_t dim) {
        return reinterpret_cast<BFloat16*>(span + transposed_bytes(dim));
    }
    static std::size_t query_sum_bytes(std::size_t dim) { return round_up(dim, 32) * kSumStride * sizeof(float); }

    static void clear_queries(float* sums, std::size_t count, std::size_t dim) {
        for (std::size_t d = 0; d < round_up(dim, 32); ++d)
            std::fill_n(sums + d * kSumStride, round_up(count, 32), 0.0F);
    }

    static void load_tile(const BFloat16* k, std::size_t stride, std::size_t rows, std::size_t dim, BFloat16* to) {
        Forward::load_queries(k, stride, rows, dim, to);
    }

    // Transposed squares of 16 pairs of keys by 16 dims are rows of 32 keys.
    static void load_span(const BFloat16* k, std::size_t stride, std::size_t keys, std::size_t dim, std::byte* span) {
        auto* packed = reinterpret_cast<BFloat16*>(span + transposed_bytes(dim) + score_gradient_bytes());
        Forward::pack_values(k, stride, keys, dim, packed);
        for (std::size_t d = 0; d < round_up(dim, 32); d += 16) {
            for (std::size_t key = 0; key < keys; key += 32, packed += kSquare) {
                __m512 rows[16];
                for (std::size_t i = 0; i < 16; ++i)
                    rows[i] = _mm512_load_ps(reinterpret_cast<const float*>(packed + i * 32));
                transpose_lanes(rows);
                for (std::size_t i = 0; i < 16; ++i)
                    _mm512_store_ps(reinterpret_cast<float*>(transposed_keys(span) + (d + i) * kSpanStride + key),
                                    rows[i]);
            }
        }
    }

    static void group(const BFloat16* tile, const BFloat16* columns, std::size_t first, std::size_t, std::size_t rows,
                      std::size_t dim, float* out) {
        const std::size_t steps = (dim + 31) / 32;
        Blocks::template multiply<2, kQueryStride>(tile, columns + first / 16 * steps * kSquare, rows, steps, steps,
                                                   out, kGroupStride, false);
    }

    static void accumulate_over_queries(const BFloat16* weights, const BFloat16* packed, std::size_t keys,
                                        std::size_t first, std::size_t end, std::size_t stored, std::size_t dim,
                                        float* sums, std::size_t sum_stride, bool add) {
        Forward::template multiply<kWeightStride>(weights + first, packed + first / 32 * kSquare, keys, (dim + 15) / 16,
                                                  (end - first + 31) / 32, (stored + 31) / 32, sums, sum_stride, add);
    }

    // Store a tile's dS (keys, first..last) into the span at key `done`; zero elsewhere from `start` to `end`, where
    // queries attend to no key, and for missing keys.
    static void store_score_gradients(const BFloat16* score_gradients, std::size_t keys, std::size_t done,
                                      std::size_t start, std::size_t first, std::size_t last, std::size_t end,
                                      std::size_t dim, std::byte* span) {
        const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38,
                                             6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
        const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
        const auto row = [&](std::size_t key, std::size_t query) {
            return key < keys && query >= first && query < last ? _mm512_load_si512(score_gradients + key * kWeightStride + query)
                                                : _mm512_setzero_si512();
        };
        for (std::size_t query = start; query < end; query += 32) {
            BFloat16* to = score_gradients_of(span, dim) + (query / 16 * kSteps + done / 32) * kSquare;
            for (std::size_t key = 0; key < 32; key += 2, to += 32) {
                const __m512i even = row(key, query), odd = row(key + 1, query);
                _mm512_store_si512(to, _mm512_permutex2var_epi16(even, low, odd));
                _mm512_store_si512(to + kSteps * kSquare, _mm512_permutex2var_epi16(even, high, odd));
            }
        }
    }

    // sums (dim, first..end) += K^T times dS of the span's keys.
    static void accumulate_over_keys(const BFloat16*, const BFloat16*, std::byte* span, std::size_t keys,
                                     std::size_t first, std::size_t end, std::size_t dim, float* sums) {
        const BFloat16* columns = score_gradients_of(span, dim) + first / 16 * kSteps * kSquare;
        for (std::size_t d = 0; d < dim; d += 32) {
            const std::size_t dims = std::min<std::size_t>(32, dim - d);
            Forward::template multiply<kSpanStride>(transposed_keys(span) + d * kSpanStride, columns, dims,
                                                    (end - first + 15) / 16, (keys + 31) / 32, kSteps,
                                                    sums + d * kSumStride + first, kSumStride, true);
        }
    }

    // sums += rows (count, dim), transposed.
    static void add_queries(float* sums, const float* rows, std::size_t stride, std::size_t count, std::size_t dim) {
        for (std::size_t i = 0; i < count; ++i)
            for (std::size_t d = 0; d < dim; ++d) sums[d * kSumStride + i] += rows[i * stride + d];
    }

    static void finish_queries(const float* sums, std::size_t count, std::size_t dim, float scale, BFloat16* out,
                               std::size_t stride) {
        const __m512 by = _mm512_set1_ps(scale);
        for (std::size_t query = 0; query < count; query += 16) {
            for (std::size_t d = 0; d < dim; d += 16) {
                __m512 rows[16];
                for (std::size_t i = 0; i < 16; ++i)
                    rows[i] = _mm512_mul_ps(_mm512_load_ps(sums + (d + i) * kSumStride + query), by);
                transpose_lanes(rows);
                for (std::size_t i = 0; i < std::min<std::size_t>(16, count - query); ++i)
                    Avx512::store_part(out + (query + i) * stride + d, rows[i], std::min<std::size_t>(16, dim - d));
            }
        }
    }
};
