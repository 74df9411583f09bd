#include "cpu/peak/peak.h"

#if FASTBERT_X86
#include <immintrin.h>

namespace fastbert {
namespace {

FASTBERT_TARGET_BEGIN(FASTBERT_AVX2)

#include "cpu/peak/registers.h"

struct Fma {
    using Vector = __m256;
    static constexpr std::size_t kSums = 12;
    static constexpr double kOperations = 16;
    static FASTBERT_INLINE Vector load(const std::byte* p) { return _mm256_load_ps(reinterpret_cast<const float*>(p)); }
    static FASTBERT_INLINE void store(std::byte* p, Vector x) { _mm256_store_ps(reinterpret_cast<float*>(p), x); }
    static FASTBERT_INLINE Vector step(Vector sum, Vector x, Vector y) { return _mm256_fmadd_ps(x, y, sum); }
};

// int8 is multiplied by the byte instruction, whose sums of 16 bits a second one widens.
struct Bytes {
    using Vector = __m256i;
    static constexpr std::size_t kSums = 8;
    static constexpr double kOperations = 64;
    static FASTBERT_INLINE Vector load(const std::byte* p) {
        return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
    }
    static FASTBERT_INLINE void store(std::byte* p, Vector x) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(p), x);
    }
    static FASTBERT_INLINE Vector step(Vector sum, Vector x, Vector y) {
        // Inline assembly: compilers would hoist the multiplications, since x and y are invariant.
        Vector products;
        __asm__ volatile("vpmaddubsw %2, %1, %0" : "=x"(products) : "x"(x), "x"(y));
        return _mm256_add_epi32(sum, _mm256_madd_epi16(products, _mm256_set1_epi16(1)));
    }
};

FASTBERT_TARGET_END

}  // namespace

PeakKernel avx2_peak(Element element) { return element == Element::int8 ? peak_of<Bytes>() : peak_of<Fma>(); }

}  // namespace fastbert
#endif
