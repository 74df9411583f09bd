#include "cpu/gemm/int8_kernels.h"

#include "cpu/runtime/cpu_capability.h"

namespace fastbert {

const MicroKernel& int8_micro_kernel([[maybe_unused]] CpuCapability capability) {
#if FASTBERT_X86
    switch (capability) {
        case CpuCapability::amx:
            return amx_int8_micro_kernel();
        case CpuCapability::avx512:
            return capability_features().avx512_vnni ? avx512_vnni_int8_micro_kernel() : avx512_int8_micro_kernel();
        case CpuCapability::avx2:
            return avx2_int8_micro_kernel();
        case CpuCapability::portable:
            break;
    }
#endif
    return portable_int8_micro_kernel();
}

}  // namespace fastbert
