// AMX's eight tiles and what its instructions do with them, after the pseudo-code of Intel's manual (SDM volume 2).
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "decode.h"
#include "fail.h"

namespace emulator {

constexpr unsigned kTiles = 8;
constexpr unsigned kRows = 16;
constexpr unsigned kRowBytes = 64;
constexpr unsigned kLanes = kRowBytes / 4;

struct alignas(64) Tile {
    std::uint8_t rows[kRows][kRowBytes];
};

// The 64 bytes that LDTILECFG reads and STTILECFG writes.
struct Configuration {
    std::uint8_t palette;
    std::uint8_t start_row;
    std::uint8_t reserved[14];
    std::uint16_t row_bytes[16];
    std::uint8_t rows[16];
};
static_assert(sizeof(Configuration) == 64);

inline float bits_to_float(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline std::uint32_t float_to_bits(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

inline bool is_nan(std::uint32_t bits) { return (bits & 0x7fffffffU) > 0x7f800000U; }

// An FMA instruction's NaN is the first operand that is one, made quiet; the compiler is free to swap the factors, so
// the order is fixed here.
inline std::uint32_t fma_bits(std::uint32_t x, std::uint32_t y, std::uint32_t z) {
    for (const std::uint32_t operand : {x, y, z}) {
        if (is_nan(operand)) return operand | 0x400000U;
    }
    return float_to_bits(__builtin_fmaf(bits_to_float(x), bits_to_float(y), bits_to_float(z)));
}

template <typename Byte>
std::uint32_t widened(std::uint8_t byte) {
    return static_cast<std::uint32_t>(static_cast<std::int32_t>(static_cast<Byte>(byte)));
}

// One thread's tiles. Rows and bytes beyond the configured ones are always zero.
class Tiles {
public:
    void execute(const Instruction& instruction) {
        switch (instruction.operation) {
            case Operation::kLoadConfig: return load_configuration(instruction.address);
            case Operation::kStoreConfig: return store_configuration(instruction.address);
            case Operation::kRelease: return release();
            case Operation::kZero: return zero(instruction);
            case Operation::kLoad: return load(instruction);
            case Operation::kStore: return store(instruction);
            case Operation::kDotBf16: return dot_bf16(instruction);
            case Operation::kDotSignedSigned: return dot_int8<std::int8_t, std::int8_t>(instruction);
            case Operation::kDotSignedUnsigned: return dot_int8<std::int8_t, std::uint8_t>(instruction);
            case Operation::kDotUnsignedSigned: return dot_int8<std::uint8_t, std::int8_t>(instruction);
            case Operation::kDotUnsignedUnsigned: return dot_int8<std::uint8_t, std::uint8_t>(instruction);
            default: fail("operation %d is none of AMX", static_cast<int>(instruction.operation));
        }
    }

private:
    void load_configuration(std::uint64_t address) {
        Configuration requested;
        std::memcpy(&requested, reinterpret_cast<const void*>(address), sizeof requested);
        if (requested.palette == 0) return release();
        if (requested.palette != 1) fail("LDTILECFG: palette %d, and there are 0 and 1 (#GP)", requested.palette);
        for (const std::uint8_t byte : requested.reserved) {
            if (byte != 0) fail("LDTILECFG: a reserved byte is %d and must be 0 (#GP)", byte);
        }
        for (unsigned n = 0; n < 16; ++n) {
            const int rows = requested.rows[n], bytes = requested.row_bytes[n];
            if (n >= kTiles && (rows != 0 || bytes != 0)) fail("LDTILECFG: tile %u is configured, of 8 tiles (#GP)", n);
            if (rows > static_cast<int>(kRows)) fail("LDTILECFG: tile %u has %d rows, more than 16 (#GP)", n, rows);
            if (bytes > static_cast<int>(kRowBytes)) {
                fail("LDTILECFG: tile %u has rows of %d bytes, more than 64 (#GP)", n, bytes);
            }
            if ((rows == 0) != (bytes == 0)) fail("LDTILECFG: tile %u has %d rows of %d bytes (#GP)", n, rows, bytes);
        }
        configuration_ = requested;
        std::memset(tiles_, 0, sizeof tiles_);
    }

    // Without a configuration all of it is zero, as the manual wants it stored.
    void store_configuration(std::uint64_t address) const {
        std::memcpy(reinterpret_cast<void*>(address), &configuration_, sizeof configuration_);
    }

    void release() {
        configuration_ = {};
        std::memset(tiles_, 0, sizeof tiles_);
    }

    void zero(const Instruction& instruction) {
        std::memset(&checked("TILEZERO", instruction.destination), 0, sizeof(Tile));
        configuration_.start_row = 0;
    }

    // memcpy touches no byte but those asked for: a fault is that of the instruction.
    void load(const Instruction& instruction) {
        Tile& tile = checked_rows("TILELOADD", instruction.destination);
        const unsigned rows = configuration_.rows[instruction.destination];
        const unsigned bytes = configuration_.row_bytes[instruction.destination];
        const unsigned start = configuration_.start_row;
        if (start < kRows) std::memset(tile.rows[start], 0, (kRows - start) * kRowBytes);
        for (unsigned row = start; row < rows; ++row) {
            const std::uint64_t address = instruction.address + row * instruction.stride;
            std::memcpy(tile.rows[row], reinterpret_cast<const void*>(address), bytes);
        }
        configuration_.start_row = 0;
    }

    void store(const Instruction& instruction) {
        const Tile& tile = checked_rows("TILESTORED", instruction.destination);
        const unsigned rows = configuration_.rows[instruction.destination];
        const unsigned bytes = configuration_.row_bytes[instruction.destination];
        for (unsigned row = configuration_.start_row; row < rows; ++row) {
            const std::uint64_t address = instruction.address + row * instruction.stride;
            std::memcpy(reinterpret_cast<void*>(address), tile.rows[row], bytes);
        }
        configuration_.start_row = 0;
    }

    // The manual's order: for each element of the result, the products of the pairs' lower halves are accumulated from
    // zero in the order of k, those of the upper halves apart from them; the two sums are added, then that to the
    // destination. Silicon may order the sums otherwise within the same error.
    __attribute__((noinline)) void dot_bf16(const Instruction& instruction) {
        Tile& result = check_product("TDPBF16PS", instruction);
        const Tile &a = tiles_[instruction.first], &b = tiles_[instruction.second];
        const unsigned rows = configuration_.rows[instruction.destination];
        const unsigned lanes = configuration_.row_bytes[instruction.destination] / 4;
        const unsigned depth = configuration_.row_bytes[instruction.first] / 4;

        const __m512i upper_half = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
        __m512 b_lower[kRows], b_upper[kRows];
        for (unsigned k = 0; k < depth; ++k) {
            const __m512i pairs = _mm512_load_si512(b.rows[k]);
            b_lower[k] = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
            b_upper[k] = _mm512_castsi512_ps(_mm512_and_si512(pairs, upper_half));
        }
        for (unsigned m = 0; m < rows; ++m) {
            const __m512 old = _mm512_load_ps(result.rows[m]);
            __m512 lower = _mm512_setzero_ps(), upper = _mm512_setzero_ps();
            for (unsigned k = 0; k < depth; ++k) {
                std::uint32_t pair;
                std::memcpy(&pair, a.rows[m] + 4 * k, 4);
                lower = _mm512_fmadd_ps(_mm512_set1_ps(bits_to_float(pair << 16)), b_lower[k], lower);
                upper = _mm512_fmadd_ps(_mm512_set1_ps(bits_to_float(pair & 0xffff0000U)), b_upper[k], upper);
            }
            const __m512 sums = _mm512_add_ps(old, _mm512_add_ps(lower, upper));
            _mm512_store_ps(result.rows[m], sums);
            if (_mm512_cmp_ps_mask(sums, sums, _CMP_UNORD_Q) != 0) {
                dot_bf16_row(old, a.rows[m], b, depth, lanes, result.rows[m]);
            }
        }
        finish_product(&result, rows, lanes);
    }

    // The same for one row, with the NaN of the first operand that is one.
    static void dot_bf16_row(__m512 old, const std::uint8_t* a, const Tile& b, unsigned depth, unsigned lanes,
                             std::uint8_t* result) {
        constexpr std::uint32_t kOne = 0x3f800000U;
        std::uint32_t old_bits[kLanes];
        std::memcpy(old_bits, &old, sizeof old_bits);
        for (unsigned n = 0; n < lanes; ++n) {
            std::uint32_t lower = 0, upper = 0;
            for (unsigned k = 0; k < depth; ++k) {
                std::uint32_t x, y;
                std::memcpy(&x, a + 4 * k, 4);
                std::memcpy(&y, b.rows[k] + 4 * n, 4);
                lower = fma_bits(x << 16, y << 16, lower);
                upper = fma_bits(x & 0xffff0000U, y & 0xffff0000U, upper);
            }
            const std::uint32_t sum = fma_bits(lower, kOne, upper);
            const std::uint32_t value = fma_bits(old_bits[n], kOne, sum);
            std::memcpy(result + 4 * n, &value, 4);
        }
    }

    template <typename A, typename B>
    __attribute__((noinline)) void dot_int8(const Instruction& instruction) {
        Tile& result = check_product("TDPB??D", instruction);
        const Tile &a = tiles_[instruction.first], &b = tiles_[instruction.second];
        const unsigned rows = configuration_.rows[instruction.destination];
        const unsigned lanes = configuration_.row_bytes[instruction.destination] / 4;
        const unsigned depth = configuration_.row_bytes[instruction.first] / 4;

        alignas(64) std::uint32_t factors[kRows][4][kLanes];
        for (unsigned k = 0; k < depth; ++k) {
            for (unsigned j = 0; j < 4; ++j) {
                for (unsigned n = 0; n < kLanes; ++n) factors[k][j][n] = widened<B>(b.rows[k][4 * n + j]);
            }
        }
        for (unsigned m = 0; m < rows; ++m) {
            __m512i sums = _mm512_load_si512(result.rows[m]);  // they wrap round
            for (unsigned k = 0; k < depth; ++k) {
                for (unsigned j = 0; j < 4; ++j) {
                    const __m512i factor = _mm512_set1_epi32(static_cast<int>(widened<A>(a.rows[m][4 * k + j])));
                    sums = _mm512_add_epi32(sums, _mm512_mullo_epi32(factor, _mm512_load_si512(factors[k][j])));
                }
            }
            _mm512_store_si512(result.rows[m], sums);
        }
        finish_product(&result, rows, lanes);
    }

    Tile& checked(const char* name, unsigned tile) {
        if (configuration_.palette == 0) fail("%s: no tile configuration is loaded (#UD)", name);
        if (tile >= kTiles) fail("%s: tile %u, and there are 8 (#UD)", name, tile);
        if (configuration_.rows[tile] == 0) fail("%s: tile %u is not configured (#UD)", name, tile);
        return tiles_[tile];
    }

    // Rows must be a multiple of 4 bytes, for all instructions but TILEZERO: the manual says so of products alone, the
    // processor also of loads and stores.
    Tile& checked_rows(const char* name, unsigned tile) {
        Tile& checked_tile = checked(name, tile);
        const int bytes = configuration_.row_bytes[tile];
        if (bytes % 4 != 0) fail("%s: rows of tile %u have %d bytes, no multiple of 4 (#UD)", name, tile, bytes);
        return checked_tile;
    }

    Tile& check_product(const char* name, const Instruction& instruction) {
        const unsigned c = instruction.destination, a = instruction.first, b = instruction.second;
        for (const unsigned tile : {c, a, b}) checked_rows(name, tile);
        if (a == b || a == c || b == c) fail("%s: tiles %u, %u, %u must differ (#UD)", name, c, a, b);
        const int rows_c = configuration_.rows[c], rows_a = configuration_.rows[a], rows_b = configuration_.rows[b];
        const int bytes_c = configuration_.row_bytes[c], bytes_a = configuration_.row_bytes[a];
        const int bytes_b = configuration_.row_bytes[b];
        if (rows_c != rows_a || bytes_c != bytes_b || bytes_a != 4 * rows_b) {
            fail("%s: tile %u (%d rows of %d bytes) is no product of tile %u (%d of %d) and tile %u (%d of %d) (#UD)",
                 name, c, rows_c, bytes_c, a, rows_a, bytes_a, b, rows_b, bytes_b);
        }
        return tiles_[c];
    }

    void finish_product(Tile* result, unsigned rows, unsigned lanes) {
        for (unsigned row = 0; row < rows; ++row) std::memset(result->rows[row] + 4 * lanes, 0, kRowBytes - 4 * lanes);
        if (rows < kRows) std::memset(result->rows[rows], 0, (kRows - rows) * kRowBytes);
        configuration_.start_row = 0;
    }

    Configuration configuration_ = {};  // palette 0: none
    Tile tiles_[kTiles] = {};
};

}  // namespace emulator
