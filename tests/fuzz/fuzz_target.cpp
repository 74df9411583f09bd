// libFuzzer target, for the check that FASTBERT_FUZZ_TARGET names: see run.py. One program for all of them is compiled once.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "checks.h"

namespace {

void (*check)(std::string_view) = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
    const char* const name = std::getenv("FASTBERT_FUZZ_TARGET");
    for (const auto& target : fastbert::checks::kTargets) {
        if (name != nullptr && std::string_view(name) == target.name) check = target.check;
    }
    if (check == nullptr) std::fputs("FASTBERT_FUZZ_TARGET names no target\n", stderr), std::exit(2);
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    check({reinterpret_cast<const char*>(data), size});
    return 0;
}
