// The Python module fastbert._C. Conversion, checks and the GIL live in csrc/bindings, never in the core.
#include "bindings/module.h"

PYBIND11_MODULE(_C, module) {
    module.doc() = "The C++ core of fastbert: tokenizer, masking collator and CPU kernels.";
    fastbert::bind_wordpiece(module);
    fastbert::bind_collator(module);
    fastbert::bind_cpu(module);
    fastbert::bind_attention(module);
    fastbert::bind_features(module);
    fastbert::bind_quantize(module);
    fastbert::bind_peak(module);
    fastbert::bind_product(module);
    fastbert::bind_rows(module);
    fastbert::bind_layer(module);
    fastbert::bind_cross_entropy(module);
    fastbert::bind_pool(module);
    fastbert::bind_adamw(module);
    fastbert::bind_crc32c(module);
}
