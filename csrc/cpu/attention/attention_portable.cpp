#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/attention/attention.h"
#include "cpu/simd/target.h"

namespace fastbert {
namespace {

#include "cpu/simd/vector_portable.h"
#include "cpu/simd/vector_math.h"
#include "cpu/attention/attention_dropout.h"
#include "cpu/attention/attention_words.h"
#include "cpu/attention/attention_tile.h"
#include "cpu/attention/attention_floats.h"
#include "cpu/attention/attention_gradient.h"
#include "cpu/attention/attention_gradient_floats.h"

struct Lanes : Portable {
    using Words = PortableWords;
    static constexpr std::size_t kRows = 2, kFewRows = 1;

    static FASTBERT_INLINE void transpose(Float (&rows)[kLanes]) {
        for (std::size_t i = 0; i < kLanes; ++i)
            for (std::size_t j = 0; j < i; ++j) std::swap(rows[i].lane[j], rows[j].lane[i]);
    }
};

}  // namespace

AttentionKernel attention_portable(Dtype dtype) { return kernel_of_floats<Lanes>(dtype); }

}  // namespace fastbert
