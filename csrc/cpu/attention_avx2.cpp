#include "cpu/target.h"

#if FASTBERT_X86

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/attention.h"

namespace fastbert {

FASTBERT_TARGET_BEGIN(FASTBERT_AVX2)
namespace {

#include "cpu/vector_avx2.h"
#include "cpu/vector_math.h"
#include "cpu/attention_dropout.h"
#include "cpu/attention_words_avx2.h"
#include "cpu/attention_tile.h"
#include "cpu/attention_floats.h"
#include "cpu/attention_gradient.h"
#include "cpu/attention_gradient_floats.h"

struct Lanes : Avx2 {
    using Words = Avx2Words;
    static constexpr std::size_t kRows = 6, kFewRows = 2;

    static FASTBERT_INLINE void transpose(Float (&rows)[kLanes]) {
        Float pairs[8], fours[8];
        for (int i = 0; i < 8; i += 2) {
            pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
            pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
        }
        for (int i = 0; i < 8; i += 4) {
            for (int j = 0; j < 2; ++j) {
                fours[i + 2 * j] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0x44);
                fours[i + 2 * j + 1] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0xEE);
            }
        }
        for (int i = 0; i < 4; ++i) {
            rows[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
            rows[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
        }
    }
};

AttentionKernel kernel(Dtype dtype) { return kernel_of_floats<Lanes>(dtype); }

}  // namespace
FASTBERT_TARGET_END

AttentionKernel attention_avx2(Dtype dtype) { return kernel(dtype); }

}  // namespace fastbert

#endif
