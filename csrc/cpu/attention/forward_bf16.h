// bf16 matmuls of attention with pairwise dot products accumulated in fp32. Included after forward.h and
// transpose_avx512.h, inside a target region for AVX-512 BF16.
//
// Operands use the VNNI layout, zero-padded to squares of 32 dims or keys by 16: a square of 16 rows of 64 bytes is one
// AMX tile, each of its rows one operand of a dot-product instruction. Keys: [keys / 16][dim / 32][16 pairs of dims][16
// keys][2]; values: [dim / 16][keys / 32][16 pairs of keys][16 dims][2].

inline constexpr std::size_t kSquare = 512;  // elements

// Blocks is the matmul backend: `multiply<ROWS, ...>`, see below.
template <class Blocks>
struct Bf16Products {
    using Vector = Avx512;
    using Element = BFloat16;
    using Weight = BFloat16;
    static constexpr std::size_t kTile = 32, kBlock = 256;
    // Odd numbers of cache lines, so that neighbouring rows map to different cache sets.
    static constexpr std::size_t kScoreStride = 272, kWeightStride = 288, kQueryStride = 288;
    static constexpr std::size_t kWeightStep = 32;
    static_assert(kAttentionTiles % kTile == 0 && kQueryStride >= kMaxHeadDim && kWeightStride >= kBlock);

    static std::size_t query_bytes(std::size_t) { return kTile * kQueryStride * sizeof(BFloat16); }
    static std::size_t key_bytes(std::size_t dim) { return kBlock * round_up(dim, 32) * sizeof(BFloat16); }
    static std::size_t value_bytes(std::size_t dim) { return kBlock * round_up(dim, 32) * sizeof(BFloat16); }

    static FASTBERT_INLINE void store_weights(BFloat16* p, __m512 x) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(x));
    }

    // Load up to 32 elements, zero-padded.
    static FASTBERT_INLINE __m512i load(const BFloat16* p, std::size_t count) {
        return count >= 32 ? _mm512_loadu_si512(p)
                           : _mm512_maskz_loadu_epi16(static_cast<__mmask32>((1U << count) - 1U), p);
    }

    static void load_queries(const BFloat16* q, std::size_t stride, std::size_t rows, std::size_t dim, BFloat16* to) {
        for (std::size_t r = 0; r < rows; ++r, q += stride, to += kQueryStride)
            for (std::size_t d = 0; d < dim; d += 32) _mm512_store_si512(to + d, load(q + d, dim - d));
    }

    // Pairs of dims are transposed as floats; their bits are not interpreted.
    static void pack_keys(const BFloat16* k, std::size_t stride, std::size_t keys, std::size_t dim, BFloat16* to) {
        const std::size_t padded = round_up(keys, 32);
        for (std::size_t first = 0; first < padded; first += 16) {
            for (std::size_t d = 0; d < dim; d += 32, to += kSquare) {
                __m512 rows[16];
                for (std::size_t i = 0; i < 16; ++i) {
                    const std::size_t key = first + i;
                    rows[i] = key < keys ? _mm512_castsi512_ps(load(k + key * stride + d, dim - d))
                                         : _mm512_setzero_ps();
                }
                transpose_lanes(rows);
                for (std::size_t i = 0; i < 16; ++i) _mm512_store_ps(reinterpret_cast<float*>(to + i * 32), rows[i]);
            }
        }
    }

    static void pack_values(const BFloat16* v, std::size_t stride, std::size_t keys, std::size_t dim, BFloat16* to) {
        // Interleave an even and an odd key: 16 pairs from the lower and 16 from the upper halves.
        const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38,
                                             6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
        const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
        const std::size_t padded = round_up(keys, 32);
        const std::size_t column = padded / 32 * kSquare;  // one of 16 dims
        for (std::size_t i = 0; i < padded; i += 2) {
            BFloat16* row = to + i / 32 * kSquare + i % 32 / 2 * 32;
            for (std::size_t d = 0; d < dim; d += 32, row += 2 * column) {
                const __m512i even = i < keys ? load(v + i * stride + d, dim - d) : _mm512_setzero_si512();
                const __m512i odd = i + 1 < keys ? load(v + (i + 1) * stride + d, dim - d) : _mm512_setzero_si512();
                _mm512_store_si512(row, _mm512_permutex2var_epi16(even, low, odd));
                _mm512_store_si512(row + column, _mm512_permutex2var_epi16(even, high, odd));
            }
        }
    }

    // c (rows, 16 * columns) = a b, `steps` squares deep; b has `pitch` squares per column.
    template <std::size_t STRIDE>
    static FASTBERT_INLINE void multiply(const BFloat16* a, const BFloat16* b, std::size_t rows, std::size_t columns,
                                         std::size_t steps, std::size_t pitch, float* c, std::size_t c_stride,
                                         bool add) {
        for (std::size_t n = 0; n < columns; n += 2, b += 2 * pitch * kSquare) {
            if (columns - n > 1) {
                Blocks::template multiply<2, STRIDE>(a, b, rows, steps, pitch, c + n * 16, c_stride, add);
            } else {
                Blocks::template multiply<1, STRIDE>(a, b, rows, steps, pitch, c + n * 16, c_stride, add);
            }
        }
    }

    // The offset of a packed key, a multiple of 32, in elements.
    static constexpr std::size_t packed_keys(std::size_t key, std::size_t dim) {
        return key / 16 * ((dim + 31) / 32) * kSquare;
    }

    static FASTBERT_INLINE void transpose(__m512 (&rows)[16]) { transpose_lanes(rows); }

    // s (rows, visible) = q k^T for the packed keys first..; `first` is a multiple of 32.
    static void scores(const BFloat16* q, const BFloat16* k, std::size_t rows, std::size_t first, std::size_t visible,
                       std::size_t, std::size_t dim, float* s, std::size_t s_stride) {
        const std::size_t steps = (dim + 31) / 32;
        multiply<kQueryStride>(q, k + packed_keys(first, dim), rows, (visible + 15) / 16, steps, steps, s, s_stride,
                               false);
    }

    // sums (rows, dim) = weights v for the packed values first.. of `keys`, added if `add`.
    static void accumulate(const BFloat16* weights, const BFloat16* v, std::size_t rows, std::size_t first,
                           std::size_t visible, std::size_t keys, std::size_t dim, float* sums, std::size_t sum_stride,
                           bool add) {
        multiply<kWeightStride>(weights, v + first / 32 * kSquare, rows, (dim + 15) / 16, (visible + 31) / 32,
                                (keys + 31) / 32, sums, sum_stride, add);
    }
};
