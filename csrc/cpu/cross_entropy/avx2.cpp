// Cross-entropy for AVX2.
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/cross_entropy/cross_entropy.h"
#include "cpu/rowwise/forward_table.h"
#include "cpu/simd/target.h"

#if FASTBERT_X86
#include <immintrin.h>

FASTBERT_TARGET_BEGIN(FASTBERT_AVX2)
namespace fastbert {
namespace {

#include "cpu/simd/vector_avx2.h"
#include "cpu/simd/vector_math.h"
#include "cpu/rowwise/row_loops.h"
#include "cpu/cross_entropy/kernels.h"

CrossEntropyKernel kernel(Dtype dtype) { return cross_entropy_of<Avx2>(dtype); }

}  // namespace
FASTBERT_TARGET_END

CrossEntropyKernel cross_entropy_avx2(Dtype dtype) { return kernel(dtype); }

}  // namespace fastbert

#endif
