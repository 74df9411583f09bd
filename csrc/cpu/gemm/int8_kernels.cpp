#include "cpu/gemm/int8_kernels.h"

#include "cpu/runtime/cpu_capability.h"

namespace fastbert {

const BlockKernel& int8_kernel([[maybe_unused]] Level level) {
#if FASTBERT_X86
    switch (level) {
        case Level::amx:
            return amx_int8_kernel();
        case Level::avx512:
            return level_features().avx512_vnni ? avx512_vnni_int8_kernel() : avx512_int8_kernel();
        case Level::avx2:
            return avx2_int8_kernel();
        case Level::portable:
            break;
    }
#endif
    return portable_int8_kernel();
}

}  // namespace fastbert
