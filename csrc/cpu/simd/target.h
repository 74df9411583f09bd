// Regions of code for one instruction set.
//
// Everything between FASTBERT_TARGET_BEGIN(...) and FASTBERT_TARGET_END is compiled for these instructions, whatever the
// command line says, and must stand in an anonymous namespace: an inline function that another file shares could
// otherwise be the one that the linker keeps, and crash older processors. Standard headers are included before the
// region for the same reason.
#pragma once

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
// GCC 12 takes the undefined registers of its own AVX-512 header for a mistake.
#define FASTBERT_TARGET_BEGIN(features)                                                        \
    _Pragma("GCC push_options") FASTBERT_PRAGMA(GCC target(features))                          \
    _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wuninitialized\"")       \
    _Pragma("GCC diagnostic ignored \"-Wmaybe-uninitialized\"")
#define FASTBERT_TARGET_END _Pragma("GCC diagnostic pop") _Pragma("GCC pop_options")
#endif

// What a level may use. AVX-512 BF16, VNNI and AMX are asked for one by one, beside the level.
#define FASTBERT_AVX2 "avx2,fma"
#define FASTBERT_AVX512 "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma"
#define FASTBERT_AVX512_BF16 "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma"
#define FASTBERT_AVX512_VNNI "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma"
#define FASTBERT_AMX "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,amx-tile,amx-bf16,amx-int8,avx2,fma"

#define FASTBERT_INLINE inline __attribute__((always_inline))
