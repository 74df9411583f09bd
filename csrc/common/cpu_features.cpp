#include "common/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstdint>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace fastbert {
namespace {

#if defined(__x86_64__)

struct Registers {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// The result of CPUID, all zeros for an unsupported leaf.
Registers cpuid(unsigned leaf, unsigned subleaf) {
    Registers r;
    __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
    return r;
}

constexpr bool bit(unsigned value, unsigned index) { return (value >> index & 1U) != 0; }

// XCR0: the register states that the operating system saves. XGETBV in assembly, as its intrinsic needs a compiler
// flag.
std::uint64_t saved_states() {
    std::uint32_t low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return std::uint64_t{high} << 32 | low;
}

constexpr std::uint64_t kAvxStates = 0x6;       // SSE and the upper halves of ymm
constexpr std::uint64_t kAvx512States = 0xE6;   // these, masks, upper halves of zmm, zmm16 to zmm31
constexpr std::uint64_t kAmxStates = 0x60000;   // tile configuration and tile data

// Linux grants the 8 KiB of tile data per thread only on request (arch/x86: ARCH_REQ_XCOMP_PERM).
bool request_tiles() {
#if defined(__linux__)
    constexpr long kRequestPermission = 0x1023;
    constexpr long kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
    return false;
#endif
}

CpuFeatures detect() {
    CpuFeatures has;
    const Registers basic = cpuid(1, 0), extended = cpuid(7, 0);
    const Registers more = extended.eax >= 1 ? cpuid(7, 1) : Registers{};
    has.amx_in_hardware = bit(extended.edx, 24);
    const bool os_saves = bit(basic.ecx, 27);
    const std::uint64_t saved = os_saves ? saved_states() : 0;
    if ((saved & kAvxStates) == kAvxStates) {
        has.avx2 = bit(extended.ebx, 5);
        has.fma = bit(basic.ecx, 12);
        has.f16c = bit(basic.ecx, 29);
    }
    if ((saved & kAvx512States) == kAvx512States) {
        has.avx512f = bit(extended.ebx, 16);
        has.avx512dq = bit(extended.ebx, 17);
        has.avx512bw = bit(extended.ebx, 30);
        has.avx512vl = bit(extended.ebx, 31);
        has.avx512vbmi = bit(extended.ecx, 1);
        has.avx512_vbmi2 = bit(extended.ecx, 6);
        has.avx512_vnni = bit(extended.ecx, 11);
        has.avx512_bf16 = bit(more.eax, 5);
        has.avx512_vp2intersect = bit(extended.edx, 8);
    }
    if (has.amx_in_hardware && (saved & kAmxStates) == kAmxStates && request_tiles()) {
        has.amx_tile = true;
        has.amx_int8 = bit(extended.edx, 25);
        has.amx_bf16 = bit(extended.edx, 22);
    }
    return has;
}

#else

CpuFeatures detect() { return {}; }

#endif

}  // namespace

const CpuFeatures& cpu_features() {
    static const CpuFeatures features = detect();
    return features;
}

}  // namespace fastbert
