// Dot products of up to four queries with consecutive rows (search.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/search/search.h"
#include "cpu/simd/target.h"

namespace fastbert {

inline constexpr std::size_t kMostQueries = 4;  // per call
inline constexpr std::size_t kMostRows = 64;
inline constexpr std::size_t kReadAhead = 64;  // bytes after the last row that a kernel may read, but does not use
inline constexpr std::size_t kPrefetch = 2048;  // bytes ahead: hardware stops at the end of a page
inline constexpr std::size_t kHeader = 64;     // bytes before the elements of a packed query: an int32 that is
                                               // subtracted from its sums of integers

struct DotKernel {
    // Bytes per packed query: a header and elements, padded with zeros to whole cache lines.
    std::size_t (*packed_bytes)(std::size_t width);
    void (*pack)(const void* query, std::size_t width, std::byte* packed);  // `packed` holds zeros
    // Write dots[query * kMostRows + row]; `queries` lie `query_stride` bytes apart, aligned to cache lines.
    void (*dots)(const std::byte* rows, std::size_t count, std::size_t width, const std::byte* queries,
                 std::size_t query_stride, std::size_t query_count, float* dots);
};

const DotKernel& portable_dot_kernel(RowKind kind);
#if FASTBERT_X86
const DotKernel& avx2_dot_kernel(RowKind kind);
const DotKernel& avx512_dot_kernel(RowKind kind);
const DotKernel& avx512_vnni_dot_kernel();  // int8
#endif

inline std::size_t padded_bytes(std::size_t bytes) { return kHeader + (bytes + 63) / 64 * 64; }

}  // namespace fastbert
