// Target regions: code compiled for one instruction set.
//
// Everything between FASTBERT_TARGET_BEGIN(...) and FASTBERT_TARGET_END is compiled for these instructions regardless
// of the command line, and must be in an anonymous namespace: otherwise the linker could keep this copy of an inline
// function shared with another file, and crash older processors. Standard headers are included before the region for
// the same reason.
#pragma once

#if defined(__aarch64__)
#include <arm_neon.h>  // for the portable vector
#endif

#if defined(__x86_64__)
#define FASTBERT_X86 1
#else
#define FASTBERT_X86 0
#endif

#define FASTBERT_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define FASTBERT_TARGET_BEGIN(features) \
    FASTBERT_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define FASTBERT_TARGET_END _Pragma("clang attribute pop")
#else
// GCC 12 warns about the undefined registers of its own AVX-512 header.
#define FASTBERT_TARGET_BEGIN(features)                                                        \
    _Pragma("GCC push_options") FASTBERT_PRAGMA(GCC target(features))                          \
    _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wuninitialized\"")       \
    _Pragma("GCC diagnostic ignored \"-Wmaybe-uninitialized\"")
#define FASTBERT_TARGET_END _Pragma("GCC diagnostic pop") _Pragma("GCC pop_options")
#endif

// The features of each CPU capability. F16C, AVX-512 BF16, VNNI and AMX are checked separately.
#define FASTBERT_AVX2 "avx2,fma"
#define FASTBERT_AVX2_F16C "avx2,fma,f16c"
#define FASTBERT_AVX512 "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma"
#define FASTBERT_AVX512_BF16 "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma"
#define FASTBERT_AVX512_VNNI "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma"
#define FASTBERT_AMX "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,amx-tile,amx-bf16,amx-int8,avx2,fma"

#define FASTBERT_INLINE inline __attribute__((always_inline))
// For lambdas: a loop is vectorised only if its body is inlined.
#define FASTBERT_INLINE_BODY __attribute__((always_inline))
