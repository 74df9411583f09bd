// A CRC is the remainder of the data, read as a polynomial over GF(2), modulo P. The register holds it with the highest
// power in bit 31 reversed: bit 31 is x^0. Appending a byte multiplies the remainder by x^8.
#include "cpu/runtime/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#include "cpu/runtime/cpu_capability.h"
#include "cpu/simd/target.h"

#if FASTBERT_X86
#include <nmmintrin.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace fastbert {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // P without x^32, reversed
// Bytes of each of the three interleaved streams: the CRC instruction has a latency of three cycles and a throughput of
// one per cycle.
constexpr std::size_t kStream = 2048;

using Table = std::array<std::uint32_t, 256>;

// a(x) b(x) mod P.
constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
    std::uint32_t product = 0;
    for (std::uint32_t bit = 1U << 31; bit != 0; bit >>= 1) {
        if (a & bit) product ^= b;
        b = b & 1 ? (b >> 1) ^ kPolynomial : b >> 1;
    }
    return product;
}

// x^(8 bytes) mod P.
constexpr std::uint32_t power(std::uint64_t bytes) {
    std::uint32_t result = 1U << 31, square = 1U << 23;
    for (; bytes != 0; bytes >>= 1) {
        if (bytes & 1) result = multiply(square, result);
        square = multiply(square, square);
    }
    return result;
}

// tables[k][b]: the register after the byte b and k zero bytes, from 0.
constexpr std::array<Table, 8> byte_tables() {
    std::array<Table, 8> tables{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t state = byte;
        for (int bit = 0; bit < 8; ++bit) state = state & 1 ? (state >> 1) ^ kPolynomial : state >> 1;
        tables[0][byte] = state;
    }
    for (std::size_t k = 1; k < tables.size(); ++k)
        for (std::size_t byte = 0; byte < 256; ++byte) {
            const std::uint32_t before = tables[k - 1][byte];
            tables[k][byte] = (before >> 8) ^ tables[0][before & 0xFF];
        }
    return tables;
}

constexpr std::array<Table, 8> kTables = byte_tables();

// shifts[i][b]: the effect of kStream zero bytes on a register whose byte i is b.
constexpr std::array<Table, 4> shift_tables() {
    const std::uint32_t factor = power(kStream);
    std::array<Table, 4> tables{};
    for (std::size_t byte = 0; byte < tables.size(); ++byte)
        for (std::uint32_t bit = 0; bit < 8; ++bit) {
            const std::uint32_t image = multiply(factor, 1U << (8 * byte + bit));
            for (std::uint32_t low = 0; low < 1U << bit; ++low)
                tables[byte][(1U << bit) + low] = tables[byte][low] ^ image;
        }
    return tables;
}

constexpr std::array<Table, 4> kShifts = shift_tables();

FASTBERT_INLINE std::uint32_t shifted(std::uint32_t state) {
    return kShifts[0][state & 0xFF] ^ kShifts[1][state >> 8 & 0xFF] ^ kShifts[2][state >> 16 & 0xFF] ^
           kShifts[3][state >> 24];
}

FASTBERT_INLINE std::uint64_t word_at(const std::byte* data) {
    std::uint64_t word;
    std::memcpy(&word, data, sizeof word);
    return word;
}

FASTBERT_INLINE std::uint32_t add_byte(std::uint32_t state, std::byte byte) {
    return (state >> 8) ^ kTables[0][(state ^ static_cast<std::uint32_t>(byte)) & 0xFF];
}

// Eight bytes at a time, each by a table of its own.
std::uint32_t portable(const std::byte* data, std::size_t size, std::uint32_t state) {
    if constexpr (std::endian::native == std::endian::little) {
        for (; size >= 8; data += 8, size -= 8) {
            const std::uint64_t word = word_at(data) ^ state;
            state = 0;
            for (std::size_t byte = 0; byte < 8; ++byte) state ^= kTables[7 - byte][word >> (8 * byte) & 0xFF];
        }
    }
    for (; size > 0; ++data, --size) state = add_byte(state, *data);
    return state;
}

}  // namespace
}  // namespace fastbert

#if FASTBERT_X86 || defined(__aarch64__)
#if FASTBERT_X86
FASTBERT_TARGET_BEGIN("sse4.2")
#endif
namespace fastbert {
namespace {

FASTBERT_INLINE std::uint32_t add_word(std::uint32_t state, std::uint64_t word) {
#if FASTBERT_X86
    return static_cast<std::uint32_t>(_mm_crc32_u64(state, word));
#else
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(state) : "r"(word));
    return state;
#endif
}

// Three streams at a time with the CRC instruction, then the rest in one.
std::uint32_t with_instruction(const std::byte* data, std::size_t size, std::uint32_t state) {
    for (; size >= 3 * kStream; data += 3 * kStream, size -= 3 * kStream) {
        std::uint32_t first = state, second = 0, third = 0;
        for (std::size_t at = 0; at < kStream; at += 8) {
            first = add_word(first, word_at(data + at));
            second = add_word(second, word_at(data + kStream + at));
            third = add_word(third, word_at(data + 2 * kStream + at));
        }
        state = shifted(shifted(first) ^ second) ^ third;
    }
    for (; size >= 8; data += 8, size -= 8) state = add_word(state, word_at(data));
    for (; size > 0; ++data, --size) state = add_byte(state, *data);
    return state;
}

}  // namespace
}  // namespace fastbert
#if FASTBERT_X86
FASTBERT_TARGET_END
#endif
#endif

namespace fastbert {
namespace {

#if FASTBERT_X86 || defined(__aarch64__)

bool has_instruction() {
#if FASTBERT_X86
    return cpu_capability() >= CpuCapability::avx2;  // every processor with AVX2 has SSE4.2
#elif defined(__linux__)
    constexpr unsigned long kHwcapCrc32 = 1UL << 7;
    static const bool has = (getauxval(AT_HWCAP) & kHwcapCrc32) != 0;
    return has;
#else
    return true;  // Apple's processors
#endif
}

#endif

}  // namespace

std::uint32_t crc32c(const std::byte* data, std::size_t size, std::uint32_t value) {
#if FASTBERT_X86 || defined(__aarch64__)
    if (has_instruction()) return ~with_instruction(data, size, ~value);
#endif
    return ~portable(data, size, ~value);
}

std::uint32_t crc32c_combine(std::uint32_t first, std::uint32_t second, std::uint64_t second_size) {
    return multiply(power(second_size), first) ^ second;
}

}  // namespace fastbert
