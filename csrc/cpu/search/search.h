// The rows with the largest dot products with each query, by a scan of all rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace fastbert {

enum class RowKind { int8, fp16, fp32 };

struct SearchCall {
    RowKind kind = RowKind::fp32;
    const void* rows = nullptr;       // (count, width), contiguous
    const float* scales = nullptr;    // (count,) for int8, else null
    std::size_t count = 0, width = 0;
    const void* queries = nullptr;        // (queries, width): int8 for int8 rows, else fp32
    const float* query_scales = nullptr;  // (queries,) for int8, else null
    std::size_t query_count = 0;
    std::size_t best = 0;             // scores per query, at most `count`
    float* scores = nullptr;          // (queries, best), the largest first
    std::int64_t* indices = nullptr;  // (queries, best): rows; of equal scores the smaller first
};

// int8: score = float(sum of products) * the row's scale * the query's scale, rounded in this order; the sum is exact.
// Others: 16 sums in fp32, of the elements whose indices are equal modulo 16, without fused multiply-add, which are then
// added in pairs at distance 8, 4, 2 and 1. So a score has the same bits on every CPU, for any number of threads and
// other queries or rows.
//
// Returns the first row that has a score which is not finite; scores and indices are undefined then. int8 needs
// width <= 65536. Throws std::bad_alloc.
std::optional<std::size_t> search_rows(const SearchCall& call);

}  // namespace fastbert
