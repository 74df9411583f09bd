// The end of a process that uses an instruction wrongly: hardware would raise #UD or #GP, here a line says why.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace emulator {

template <typename... Values>
[[noreturn]] void fail(const char* format, Values... values) {
    char line[256];
    std::snprintf(line, sizeof line, format, values...);
    std::fprintf(stderr, "emulator: %s\n", line);
    std::abort();
}

}  // namespace emulator
