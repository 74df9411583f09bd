// Dot products of int8 rows, whose sums are exact. Included inside a target region.
//
// I: kStep elements of a row at a time; QueryElement; Integers, zero, load_row, load_query (aligned), add_products, and
// total.

template <class I, std::size_t kQueries>
FASTBERT_INLINE void integer_rows(const std::int8_t* rows, std::size_t count, std::size_t width,
                                  const std::byte* queries, std::size_t query_stride, float* dots) {
    for (std::size_t row = 0; row < count; ++row) {
        const std::int8_t* x = rows + row * width;
        for (std::size_t line = 0; line < width; line += 64)
            __builtin_prefetch(reinterpret_cast<const std::byte*>(x) + line + kPrefetch);
        typename I::Integers sums[kQueries];
        for (auto& sum : sums) sum = I::zero();
        // The last step may read beyond the row, where the queries are zero.
        for (std::size_t i = 0; i < width; i += I::kStep) {
            const typename I::Integers values = I::load_row(x + i);
            const std::byte* query = queries + kHeader + i * sizeof(typename I::QueryElement);
#pragma GCC unroll 4
            for (std::size_t q = 0; q < kQueries; ++q)
                sums[q] = I::add_products(sums[q], values, I::load_query(query + q * query_stride));
        }
        for (std::size_t q = 0; q < kQueries; ++q) {
            std::int32_t excess;
            std::memcpy(&excess, queries + q * query_stride, sizeof(excess));
            // Unsigned: the sum with the excess may be beyond 31 bits.
            const std::uint32_t sum = static_cast<std::uint32_t>(I::total(sums[q])) - static_cast<std::uint32_t>(excess);
            dots[q * kMostRows + row] = static_cast<float>(static_cast<std::int32_t>(sum));
        }
    }
}

template <class I>
void integer_dots(const std::byte* rows, std::size_t count, std::size_t width, const std::byte* queries,
                  std::size_t query_stride, std::size_t query_count, float* dots) {
    const auto* x = reinterpret_cast<const std::int8_t*>(rows);
    if (query_count == 4) return integer_rows<I, 4>(x, count, width, queries, query_stride, dots);
    for (std::size_t q = 0; q < query_count; ++q)
        integer_rows<I, 1>(x, count, width, queries + q * query_stride, query_stride, dots + q * kMostRows);
}

// Rows are read as bytes of this offset, by instructions that multiply unsigned by signed bytes.
template <class I>
void pack_integers(const void* query, std::size_t width, std::byte* packed) {
    const auto* values = static_cast<const std::int8_t*>(query);
    auto* elements = reinterpret_cast<typename I::QueryElement*>(packed + kHeader);
    std::int32_t sum = 0;
    for (std::size_t i = 0; i < width; ++i) {
        elements[i] = values[i];
        sum += values[i];
    }
    const std::int32_t excess = I::kRowOffset * sum;
    std::memcpy(packed, &excess, sizeof(excess));
}

template <class I>
std::size_t packed_integers(std::size_t width) {
    return padded_bytes(width * sizeof(typename I::QueryElement));
}

template <class I>
constexpr DotKernel integer_kernel() {
    return {.packed_bytes = packed_integers<I>, .pack = pack_integers<I>, .dots = integer_dots<I>};
}
