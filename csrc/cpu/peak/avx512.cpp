// Peak loops of AVX-512 and its extensions. The target region enables all of them; each function executes the
// instructions its name states.
#include "cpu/peak/peak.h"

#if FASTBERT_X86
#include <immintrin.h>

#include "cpu/runtime/cpu_capability.h"

namespace fastbert {
namespace {

FASTBERT_TARGET_BEGIN(FASTBERT_AMX)

#include "cpu/peak/registers.h"

struct Registers {
    using Vector = __m512i;
    static constexpr std::size_t kSums = 16;
    static FASTBERT_INLINE Vector load(const std::byte* p) { return _mm512_load_si512(p); }
    static FASTBERT_INLINE void store(std::byte* p, Vector x) { _mm512_store_si512(p, x); }
};

struct Fma : Registers {
    using Vector = __m512;
    static constexpr double kOperations = 32;
    static FASTBERT_INLINE Vector load(const std::byte* p) { return _mm512_load_ps(p); }
    static FASTBERT_INLINE void store(std::byte* p, Vector x) { _mm512_store_ps(p, x); }
    static FASTBERT_INLINE Vector step(Vector sum, Vector x, Vector y) { return _mm512_fmadd_ps(x, y, sum); }
};

struct Vnni : Registers {
    static constexpr double kOperations = 128;
    static FASTBERT_INLINE Vector step(Vector sum, Vector x, Vector y) { return _mm512_dpbusd_epi32(sum, x, y); }
};

struct Bf16 : Fma {
    static constexpr double kOperations = 64;
    static FASTBERT_INLINE Vector step(Vector sum, Vector x, Vector y) {
        return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_castps_si512(x), (__m512bh)_mm512_castps_si512(y));
    }
};

// Eight tiles of 16 rows of 64 bytes.
struct Configuration {
    unsigned char palette = 1, rest[15] = {};
    unsigned short row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    unsigned char rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
alignas(64) constexpr Configuration kConfiguration;

void enter() { _tile_loadconfig(&kConfiguration); }
void leave() { _tile_release(); }

template <Element kElement>
void run_tiles(std::byte* data, std::size_t rounds) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, data, 64);
    _tile_loadd(5, data + 1024, 64);
    _tile_loadd(6, data + 512, 64);
    _tile_loadd(7, data + 256, 64);
    for (std::size_t round = 0; round < rounds; ++round) {
        if constexpr (kElement == Element::int8) {
            _tile_dpbssd(0, 4, 6);
            _tile_dpbssd(1, 4, 7);
            _tile_dpbssd(2, 5, 6);
            _tile_dpbssd(3, 5, 7);
        } else {
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, data + 3072, 64);
}

FASTBERT_TARGET_END

}  // namespace

PeakKernel avx512_peak(Element element) {
    const CpuFeatures& has = capability_features();
    if (cpu_capability() == CpuCapability::amx && element == Element::bf16)
        return {run_tiles<Element::bf16>, 4.0 * 2 * 16 * 16 * 32, enter, leave};
    if (cpu_capability() == CpuCapability::amx && element == Element::int8)
        return {run_tiles<Element::int8>, 4.0 * 2 * 16 * 16 * 64, enter, leave};
    if (element == Element::bf16 && has.avx512_bf16) return peak_of<Bf16>();
    if (element == Element::int8 && has.avx512_vnni) return peak_of<Vnni>();
    return peak_of<Fma>();
}

}  // namespace fastbert
#endif
