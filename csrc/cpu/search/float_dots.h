// Dot products of fp32 and fp16 rows. Included inside a target region.
//
// L: 16 lanes in fp32: Lanes, zero, load (of T, widened exactly), add_product (rounded twice) and total.

template <class L, class T, std::size_t kQueries>
FASTBERT_INLINE void float_rows(const T* rows, std::size_t count, std::size_t width, const std::byte* queries,
                                std::size_t query_stride, float* dots) {
    const std::size_t whole = width / 16 * 16;
    const auto query = [&](std::size_t index) {
        return reinterpret_cast<const float*>(queries + index * query_stride + kHeader);
    };
    for (std::size_t row = 0; row < count; ++row) {
        const T* x = rows + row * width;
        for (std::size_t line = 0; line < width * sizeof(T); line += 64)
            __builtin_prefetch(reinterpret_cast<const std::byte*>(x) + line + kPrefetch);
        typename L::Lanes sums[kQueries];
        for (auto& sum : sums) sum = L::zero();
        for (std::size_t i = 0; i < whole; i += 16) {
            const typename L::Lanes values = L::load(x + i);
#pragma GCC unroll 4
            for (std::size_t q = 0; q < kQueries; ++q) L::add_product(sums[q], values, L::load(query(q) + i));
        }
        if (whole < width) {
            // Not read ahead: zero times a NaN of the next row would be NaN.
            alignas(64) T rest[16] = {};
            std::memcpy(rest, x + whole, (width - whole) * sizeof(T));
            const typename L::Lanes values = L::load(static_cast<const T*>(rest));
            for (std::size_t q = 0; q < kQueries; ++q) L::add_product(sums[q], values, L::load(query(q) + whole));
        }
        for (std::size_t q = 0; q < kQueries; ++q) dots[q * kMostRows + row] = L::total(sums[q]);
    }
}

template <class L, class T>
void float_dots(const std::byte* rows, std::size_t count, std::size_t width, const std::byte* queries,
                std::size_t query_stride, std::size_t query_count, float* dots) {
    const T* x = reinterpret_cast<const T*>(rows);
    if (query_count == 4) return float_rows<L, T, 4>(x, count, width, queries, query_stride, dots);
    for (std::size_t q = 0; q < query_count; ++q)
        float_rows<L, T, 1>(x, count, width, queries + q * query_stride, query_stride, dots + q * kMostRows);
}

inline std::size_t packed_floats(std::size_t width) { return padded_bytes(width * sizeof(float)); }

inline void pack_floats(const void* query, std::size_t width, std::byte* packed) {
    std::memcpy(packed + kHeader, query, width * sizeof(float));
}

template <class L, class T>
constexpr DotKernel float_kernel() {
    return {.packed_bytes = packed_floats, .pack = pack_floats, .dots = float_dots<L, T>};
}
