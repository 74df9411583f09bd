// libFuzzer target, for the check named by CHECK: see run.py.
#include <cstddef>
#include <cstdint>

#include "checks.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fastbert::checks::CHECK({reinterpret_cast<const char*>(data), size});
    return 0;
}
