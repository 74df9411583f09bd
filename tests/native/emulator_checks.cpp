// Little functions of one or a few AMX or AVX512_BF16 instructions, called by test_emulator.py.

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#define AMX __attribute__((target("amx-tile,amx-bf16,amx-int8")))
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

// A tile is named in the instruction itself: one case for each.
#define FOR_TILE(tile, CALL)   \
    switch (tile) {            \
        case 0: CALL(0) break; \
        case 1: CALL(1) break; \
        case 2: CALL(2) break; \
        case 3: CALL(3) break; \
        case 4: CALL(4) break; \
        case 5: CALL(5) break; \
        case 6: CALL(6) break; \
        case 7: CALL(7) break; \
        default: break;        \
    }

extern "C" {

// Asks the system for the use of tiles by this process; 0 where it grants it.
int allow_amx() {
    constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
    return static_cast<int>(syscall(SYS_arch_prctl, kRequest, kTileData));
}

AMX void load_config(const void* from) { _tile_loadconfig(from); }
AMX void store_config(void* to) { _tile_storeconfig(to); }
AMX void release() { _tile_release(); }

AMX void zero(int tile) {
#define CALL(n) _tile_zero(n);
    FOR_TILE(tile, CALL)
#undef CALL
}

AMX void load(int tile, const void* from, std::int64_t stride) {
#define CALL(n) _tile_loadd(n, from, stride);
    FOR_TILE(tile, CALL)
#undef CALL
}

AMX void load_streaming(int tile, const void* from, std::int64_t stride) {
#define CALL(n) _tile_stream_loadd(n, from, stride);
    FOR_TILE(tile, CALL)
#undef CALL
}

AMX void store(int tile, void* to, std::int64_t stride) {
#define CALL(n) _tile_stored(n, to, stride);
    FOR_TILE(tile, CALL)
#undef CALL
}

// Tile 0 += tile 1 x tile 2, or with `high` tile 5 += tile 7 x tile 6.
AMX void dot(int kind, int high) {
    switch (2 * kind + high) {
        case 0: _tile_dpbf16ps(0, 1, 2); break;
        case 1: _tile_dpbf16ps(5, 7, 6); break;
        case 2: _tile_dpbssd(0, 1, 2); break;
        case 3: _tile_dpbssd(5, 7, 6); break;
        case 4: _tile_dpbsud(0, 1, 2); break;
        case 5: _tile_dpbsud(5, 7, 6); break;
        case 6: _tile_dpbusd(0, 1, 2); break;
        case 7: _tile_dpbusd(5, 7, 6); break;
        case 8: _tile_dpbuud(0, 1, 2); break;
        default: _tile_dpbuud(5, 7, 6); break;
    }
}

// TDPBF16PS tmm0, tmm1, tmm1, which assemblers refuse.
void dot_with_itself() { asm volatile(".byte 0xc4, 0xe2, 0x72, 0x5c, 0xc1"); }

// Loads tile 3 through another form of address each; the first element is always at `from`.
AMX void load_addressed(int form, const char* from, std::int64_t stride) {
    register const char* base asm("r13") = from;
    register std::int64_t index asm("r9") = stride;
    register const char* low_base asm("rax") = from;
    register std::int64_t low_index asm("rdi") = stride;
    switch (form) {
        case 0: asm volatile("tileloadd (%0,%1), %%tmm3" ::"r"(base), "r"(index)); break;
        case 1: asm volatile("tileloadd 0x70(%0,%1), %%tmm3" ::"r"(base -= 0x70), "r"(index)); break;
        case 2: asm volatile("tileloadd -0x80(%0,%1), %%tmm3" ::"r"(base += 0x80), "r"(index)); break;
        case 3: asm volatile("tileloadd 0x12340(%0,%1), %%tmm3" ::"r"(base -= 0x12340), "r"(index)); break;
        case 4: asm volatile("tileloadd (%0,%1,4), %%tmm3" ::"r"(base), "r"(index /= 4)); break;
        case 5: asm volatile("tileloadd (%0,%1,8), %%tmm3" ::"r"(base), "r"(index /= 8)); break;
        case 6: asm volatile("tileloadd (%0), %%tmm3" ::"r"(base)); break;  // no index: all rows are the same
        default: asm volatile("tileloadd (%0,%1), %%tmm3" ::"r"(low_base), "r"(low_index)); break;
    }
}

// The configuration lies in thread-local memory, which is addressed through FS, then in the library's own, which is
// addressed relatively to the instruction; both go through STTILECFG into `to`, 128 bytes.
AMX void configure_elsewhere(const void* from, void* to) {
    static thread_local unsigned char of_thread[64];
    static unsigned char of_library[64];
    std::memcpy(of_thread, from, 64);
    std::memcpy(of_library, from, 64);
    std::uint64_t fs;
    asm("mov %%fs:0, %0" : "=r"(fs));
    const std::uint64_t offset = reinterpret_cast<std::uint64_t>(of_thread) - fs;
    asm volatile("ldtilecfg %%fs:(%0)" ::"r"(offset) : "memory");
    _tile_storeconfig(to);
    _tile_release();
    asm volatile("ldtilecfg %0" ::"m"(of_library));
    _tile_storeconfig(static_cast<char*>(to) + 64);
}

// 64 products into 4 tiles, `times` times: only to be timed.
AMX void many_products(int times) {
    for (int i = 0; i < times; ++i) {
        for (int j = 0; j < 16; ++j) {
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
}

void undefined() { asm volatile("ud2"); }

// Runs `text` on vector registers. Registers 5 and 21 hold the destination, 9 and 30 the first operand, 12 and 17 the
// second, k3 the mask; afterwards `to` holds register 5 and then register 21.
#define RUN(text)                                                                                                     \
    asm volatile(                                                                                                     \
        "kmovd %k[mask], %%k3\n\tvmovups (%[to]), %%zmm5\n\tvmovups 64(%[to]), %%zmm21\n\t"                           \
        "vmovups (%[first]), %%zmm9\n\tvmovups (%[first]), %%zmm30\n\t"                                               \
        "vmovups (%[second]), %%zmm12\n\tvmovups (%[second]), %%zmm17\n\t" text                                       \
        "\n\tvmovups %%zmm5, (%[to])\n\tvmovups %%zmm21, 64(%[to])"                                                   \
        :                                                                                                             \
        : [to] "r"(to), [first] "r"(first), [second] "r"(second), [memory] "r"(memory), [mask] "r"(mask),             \
          [index] "r"(std::int64_t{5}), [mem] "m"(mem)                                                                \
        : "memory", "k3", "xmm5", "xmm9", "xmm12", "xmm17", "xmm21", "xmm30")

// A function for each instruction and vector length. Its forms: registers below (0) and above (1) 16, a merging (2) and
// a zeroing mask (3), a compressed displacement (4), a long one with an index (5), a negative compressed one with a
// merging mask (6), a broadcast (7), a broadcast with a zeroing mask (8), memory relative to the instruction (9).
#define FORMS(name, mnemonic, suffix, vector, bytes, times, LOW, HIGH)                                                \
    AVX512 void name(int form, char* to, const char* first, const char* second, const char* memory, unsigned mask) {  \
        static char mem[64];                                                                                          \
        std::memcpy(mem, second, sizeof mem);                                                                         \
        switch (form) {                                                                                               \
            case 0: RUN(mnemonic " %%" vector "12, " LOW); break;                                                     \
            case 1: RUN(mnemonic " %%" vector "17, " HIGH); break;                                                    \
            case 2: RUN(mnemonic " %%" vector "12, " LOW "%{%%k3%}"); break;                                          \
            case 3: RUN(mnemonic " %%" vector "17, " HIGH "%{%%k3%}%{z%}"); break;                                    \
            case 4: RUN(mnemonic suffix " " bytes "(%[memory]), " LOW); break;                                        \
            case 5: RUN(mnemonic suffix " 0x1234(%[memory],%[index],4), " HIGH); break;                               \
            case 6: RUN(mnemonic suffix " -" bytes "(%[memory]), " LOW "%{%%k3%}"); break;                            \
            case 7: RUN(mnemonic " 12(%[memory])%{1to" times "%}, " LOW); break;                                      \
            case 8: RUN(mnemonic " -8(%[memory])%{1to" times "%}, " HIGH "%{%%k3%}%{z%}"); break;                     \
            default: RUN(mnemonic suffix " %[mem], " LOW); break;                                                     \
        }                                                                                                             \
    }

// Operands behind the second one, in registers below and above 16.
#define THREE_LOW(vector) "%%" vector "9, %%" vector "5"
#define THREE_HIGH(vector) "%%" vector "30, %%" vector "21"

FORMS(dot_128, "vdpbf16ps", "", "xmm", "16", "4", THREE_LOW("xmm"), THREE_HIGH("xmm"))
FORMS(dot_256, "vdpbf16ps", "", "ymm", "32", "8", THREE_LOW("ymm"), THREE_HIGH("ymm"))
FORMS(dot_512, "vdpbf16ps", "", "zmm", "64", "16", THREE_LOW("zmm"), THREE_HIGH("zmm"))
FORMS(convert_two_128, "vcvtne2ps2bf16", "", "xmm", "16", "4", THREE_LOW("xmm"), THREE_HIGH("xmm"))
FORMS(convert_two_256, "vcvtne2ps2bf16", "", "ymm", "32", "8", THREE_LOW("ymm"), THREE_HIGH("ymm"))
FORMS(convert_two_512, "vcvtne2ps2bf16", "", "zmm", "64", "16", THREE_LOW("zmm"), THREE_HIGH("zmm"))
FORMS(convert_128, "vcvtneps2bf16", "x", "xmm", "16", "4", "%%xmm5", "%%xmm21")
FORMS(convert_256, "vcvtneps2bf16", "y", "ymm", "32", "8", "%%xmm5", "%%xmm21")
FORMS(convert_512, "vcvtneps2bf16", "", "zmm", "64", "16", "%%ymm5", "%%ymm21")

// All vector registers and masks but xmm0..15 are in their initial state, as XSAVE sees it, when the instructions write
// registers 21 and 5, the second under a mask that is zero. `to` receives registers 21, 20, 5.
AVX512 __attribute__((noinline)) void convert_into_initial_state(char* to, const char* memory) {
    alignas(64) static char area[4096] = {};
    const unsigned mxcsr = 0x1f80;
    std::memcpy(area + 24, &mxcsr, sizeof mxcsr);
    asm volatile(
        "xrstor (%[area])\n\tvcvtneps2bf16 (%[memory]), %%ymm21\n\tvcvtneps2bf16 (%[memory]), %%ymm5%{%%k3%}%{z%}\n\t"
        "vmovups %%zmm21, (%[to])\n\tvmovups %%zmm20, 64(%[to])\n\tvmovups %%zmm5, 128(%[to])"
        :
        : [area] "r"(area), [memory] "r"(memory), [to] "r"(to), "a"(0xe4), "d"(0)
        : "memory", "k3", "xmm5", "xmm20", "xmm21");
}

// The intrinsics, as compilers emit them.
AVX512 void intrinsic_dot(float* to, const void* first, const void* second) {
    const __m512i a = _mm512_loadu_si512(first), b = _mm512_loadu_si512(second);
    const __m512 sum = _mm512_loadu_ps(to);
    _mm512_storeu_ps(to, _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b)));
}

AVX512 void intrinsic_convert(void* to, const float* from) {
    const __m256bh result = _mm512_cvtneps_pbh(_mm512_loadu_ps(from));
    std::memcpy(to, &result, sizeof result);
}

}  // extern "C"
