// int8 blocks in AVX2 by the byte instruction, which multiplies unsigned by signed bytes and adds two products in 16
// bits: six rows by 16 outputs at a time, 12 vectors of sums in 16 registers.
//
// Weights become unsigned by an offset of 128, whose part of the sums is 128 times the sum of the row. Two products
// saturate only if their integers of the row have the same sign and magnitudes that sum to more than kMostPair. Such a
// pair, one in sixty of a normal distribution and fewer behind a LayerNorm, is split into two halves: one stays in the
// panel, the other is in a list of the row. So all sums are exact.
#include "cpu/gemm/int8_kernels.h"

#if FASTBERT_X86
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "cpu/simd/bfloat16.h"

namespace fastbert {
namespace {

constexpr std::size_t kRows = 6, kRowStep = 2;
constexpr std::size_t kGroup = group_of(Element::int8);
constexpr int kOffset = 128;
constexpr int kMostPair = 128;  // 255 * 128 < 2^15
// Prefetch distance in a weight panel, in bytes.
constexpr std::size_t kPrefetchDistance = 1024;

// The second half of a row's group.
struct Rest {
    std::uint32_t group;
    std::int8_t integers[kGroup];
};

// What a row panel begins with, before its groups, [depth / 4][kRows][4], and the rows' lists.
struct Header {
    std::int32_t sums[kRows];
    std::uint32_t rests[kRows];  // length of each list
};

constexpr std::size_t kHeaderBytes = 64;
static_assert(sizeof(Header) <= kHeaderBytes);

FASTBERT_TARGET_BEGIN(FASTBERT_AVX2)

#include "cpu/simd/vector_avx2.h"
#include "cpu/simd/vector_math.h"
#include "cpu/rowwise/gelu_gradient.h"
#include "cpu/rowwise/activations.h"
#include "cpu/gemm/epilogue.h"

alignas(32) constexpr std::int16_t kOnes[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
alignas(32) constexpr std::uint64_t kSignBits[4] = {0x8080808080808080, 0x8080808080808080, 0x8080808080808080,
                                                    0x8080808080808080};

std::size_t groups_bytes(std::size_t padded_depth) { return padded_depth * kRows; }
std::size_t list_bytes(std::size_t padded_depth) { return padded_depth / kGroup * sizeof(Rest); }

// Lists as long as the depth: their memory is touched by rows with that many pairs alone.
std::size_t panel_bytes(std::size_t padded_depth) {
    return kHeaderBytes + groups_bytes(padded_depth) + kRows * list_bytes(padded_depth);
}

// Split the pairs of a group that may saturate; return whether there was one.
bool split(std::int8_t* group, std::int8_t* rest) {
    bool found = false;
    std::memset(rest, 0, kGroup);
    for (std::size_t i = 0; i < kGroup; i += 2) {
        const int a = group[i], b = group[i + 1];
        // A sum of more than kMostPair in magnitude has two summands of the same sign.
        if (std::abs(a + b) <= kMostPair) continue;
        group[i] = static_cast<std::int8_t>(a / 2);
        group[i + 1] = static_cast<std::int8_t>(b / 2);
        rest[i] = static_cast<std::int8_t>(a - a / 2);
        rest[i + 1] = static_cast<std::int8_t>(b - b / 2);
        found = true;
    }
    return found;
}

void pack_rows(const void* x, std::size_t stride, std::size_t rows, std::size_t depth, std::size_t padded_depth,
               std::byte* panel) {
    constexpr std::size_t kBytes = 16, kGroups = kBytes / kGroup;
    auto* header = reinterpret_cast<Header*>(panel);
    std::byte* groups = panel + kHeaderBytes;
    const __m128i ones = _mm_set1_epi8(1), most = _mm_set1_epi16(kMostPair), zero = _mm_setzero_si128();
    for (std::size_t row = 0; row < kRows; ++row) {
        auto* list = reinterpret_cast<Rest*>(groups + groups_bytes(padded_depth) + row * list_bytes(padded_depth));
        std::size_t rests = 0;
        __m128i sums = zero;
        const auto* source = static_cast<const std::byte*>(x) + row * stride;
        for (std::size_t first = 0; first < padded_depth; first += kBytes) {
            alignas(16) std::int8_t integers[kBytes] = {};
            if (row < rows && first < depth) std::memcpy(integers, source + first, std::min(kBytes, depth - first));
            const __m128i packed = _mm_load_si128(reinterpret_cast<const __m128i*>(integers));
            const __m128i pairs = _mm_maddubs_epi16(ones, packed);
            sums = _mm_add_epi32(sums, _mm_madd_epi16(pairs, _mm_set1_epi16(1)));
            if (_mm_movemask_epi8(_mm_cmpgt_epi16(_mm_abs_epi16(pairs), most))) {
                for (std::size_t i = 0; i < kGroups; ++i) {
                    Rest& rest = list[rests];
                    rest.group = static_cast<std::uint32_t>(first / kGroup + i);
                    rests += split(integers + i * kGroup, rest.integers);
                }
            }
            for (std::size_t i = 0; i < kGroups; ++i)
                std::memcpy(groups + ((first / kGroup + i) * kRows + row) * kGroup, integers + i * kGroup, kGroup);
        }
        sums = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0x4E));
        sums = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0xB1));
        header->sums[row] = _mm_cvtsi128_si32(sums);
        header->rests[row] = static_cast<std::uint32_t>(rests);
    }
}

// Constants are read from memory: all registers are taken.
FASTBERT_INLINE __m256i unsigned_weights(const std::byte* p) {
    __m256i weights = _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
    __asm__("vpxor %1, %0, %0" : "+x"(weights) : "m"(kSignBits));
    return weights;
}

FASTBERT_INLINE void add_products(__m256i& sum, __m256i weights, __m256i x) {
    __m256i products = _mm256_maddubs_epi16(weights, x);
    __asm__("vpmaddwd %1, %0, %0" : "+x"(products) : "m"(kOnes));
    sum = _mm256_add_epi32(sum, products);
    // Sequential: otherwise GCC computes all products first and runs out of registers.
    __asm__ volatile("" : "+x"(sum));
}

FASTBERT_INLINE __m256i broadcast_group(const void* p) {
    std::int32_t group;
    std::memcpy(&group, p, sizeof(group));
    return _mm256_set1_epi32(group);
}

// Compute the sums of kCount rows by the 16 outputs of a weight panel, kColumns apart per row.
template <std::size_t kCount>
void multiply_panel(const std::byte* panel, const std::byte* weights, std::size_t padded_depth, std::int32_t* sums) {
    const auto* header = reinterpret_cast<const Header*>(panel);
    const std::byte *groups = panel + kHeaderBytes, *const end = groups + groups_bytes(padded_depth);
    // Unrolled explicitly: otherwise GCC keeps a copy of the sums in memory.
    __m256i left[kCount], right[kCount];
#pragma GCC unroll 8
    for (std::size_t row = 0; row < kCount; ++row)
        left[row] = right[row] = _mm256_set1_epi32(-kOffset * header->sums[row]);
    const std::byte* next = weights;
    for (; groups != end; groups += kRows * kGroup, next += kPanel * kGroup) {
        __builtin_prefetch(next + kPrefetchDistance);
        const __m256i weight_left = unsigned_weights(next), weight_right = unsigned_weights(next + 32);
#pragma GCC unroll 8
        for (std::size_t row = 0; row < kCount; ++row) {
            const __m256i x = broadcast_group(groups + row * kGroup);
            add_products(left[row], weight_left, x);
            add_products(right[row], weight_right, x);
        }
    }
#pragma GCC unroll 8
    for (std::size_t row = 0; row < kCount; ++row) {
        const auto* rest = reinterpret_cast<const Rest*>(end + row * list_bytes(padded_depth));
        for (const Rest* last = rest + header->rests[row]; rest != last; ++rest) {
            const std::byte* at = weights + rest->group * kPanel * kGroup;
            const __m256i x = broadcast_group(rest->integers);
            add_products(left[row], unsigned_weights(at), x);
            add_products(right[row], unsigned_weights(at + 32), x);
        }
        _mm256_store_si256(reinterpret_cast<__m256i*>(sums + row * kColumns), left[row]);
        _mm256_store_si256(reinterpret_cast<__m256i*>(sums + row * kColumns + 8), right[row]);
    }
}

template <std::size_t kCount>
void multiply_rows(const std::byte* panel, const std::byte* weights, std::size_t weight_panel_bytes,
                   std::size_t padded_depth, const Block& block) {
    if constexpr (kCount > kRowStep) {
        if (block.rows <= kCount - kRowStep)
            return multiply_rows<kCount - kRowStep>(panel, weights, weight_panel_bytes, padded_depth, block);
    }
    auto* sums = reinterpret_cast<std::int32_t*>(block.sums);
    multiply_panel<kCount>(panel, weights, padded_depth, sums);
    multiply_panel<kCount>(panel, weights + weight_panel_bytes, padded_depth, sums + kPanel);
}

void multiply(const std::byte* panel, const std::byte* weights, std::size_t weight_panel_bytes,
              std::size_t padded_depth, const Block& block, const Block* previous, const Epilogue& epilogue) {
    if (previous) finish_rows<Avx2>(*previous, epilogue, 0, previous->rows);
    multiply_rows<kRows>(panel, weights, weight_panel_bytes, padded_depth, block);
}

void finish_block(const Block& block, const Epilogue& epilogue) { finish_rows<Avx2>(block, epilogue, 0, block.rows); }

FASTBERT_TARGET_END

}  // namespace

const MicroKernel& avx2_int8_micro_kernel() {
    static constexpr MicroKernel kernel{.rows = kRows,
                                        .panel_bytes = panel_bytes,
                                        .pack_rows = pack_rows,
                                        .multiply = multiply,
                                        .finish = finish_block,
                                        .row_step = kRowStep,
                                        .memory_rows = kRows};
    return kernel;
}

}  // namespace fastbert
#endif
