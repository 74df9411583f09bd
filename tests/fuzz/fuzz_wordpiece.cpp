// libFuzzer target: see run.py.
#include <cstddef>
#include <cstdint>

#include "wordpiece_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fastbert::checks::check_wordpiece({reinterpret_cast<const char*>(data), size});
    return 0;
}
