#include "cpu/product_int8.h"

#include "cpu/level.h"
#include "cpu/product_amx.h"

namespace fastbert {

const BlockKernel& int8_block_kernel() {
#if FASTBERT_X86
    const CpuFeatures& has = level_features();
    if (level() == Level::amx) return kAmxInt8;
    if (level() == Level::avx512) return has.avx512_vnni ? kVnniInt8 : kAvx512Int8;
    if (level() == Level::avx2) return kAvx2Int8;
#endif
    return kPortableInt8;
}

}  // namespace fastbert
