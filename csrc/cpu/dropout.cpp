#include "cpu/dropout.h"

#include <algorithm>
#include <bit>
#include <cstring>

// GCC compiles the functions below once per instruction set and picks one at load time; elsewhere the portable one serves.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__linux__)
#define FASTBERT_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define FASTBERT_CLONES
#endif

namespace fastbert {
namespace {

constexpr std::size_t kBlocks = 32;  // Philox blocks computed side by side, enough to fill vector registers
constexpr std::size_t kDraws = 8;    // 16-bit draws per block

constexpr int kRounds = 7;            // the fewest that pass the BigCrush tests (Salmon et al. 2011, table 2)

enum class Order { kTokens, kAttention };

// Words of the blocks with counters (first + 0..31, row, head, site): block after block, or for attention four blocks'
// first words, their second words, and so on.
FASTBERT_CLONES
void philox_row(std::uint32_t first, std::uint32_t row, std::uint32_t head, std::uint32_t site, std::uint64_t key,
                Order order, std::uint32_t* words) {
    std::uint32_t c0[kBlocks], c1[kBlocks], c2[kBlocks], c3[kBlocks];
    for (std::size_t i = 0; i < kBlocks; ++i) {
        c0[i] = first + static_cast<std::uint32_t>(i);
        c1[i] = row;
        c2[i] = head;
        c3[i] = site;
    }
    std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < kRounds; ++round) {
        for (std::size_t i = 0; i < kBlocks; ++i) {
            const std::uint64_t a = 0xD2511F53ULL * c0[i], b = 0xCD9E8D57ULL * c2[i];
            const std::uint32_t next0 = static_cast<std::uint32_t>(b >> 32) ^ c1[i] ^ k0;
            const std::uint32_t next2 = static_cast<std::uint32_t>(a >> 32) ^ c3[i] ^ k1;
            c1[i] = static_cast<std::uint32_t>(b);
            c3[i] = static_cast<std::uint32_t>(a);
            c0[i] = next0;
            c2[i] = next2;
        }
        k0 += 0x9E3779B9U;
        k1 += 0xBB67AE85U;
    }
    if (order == Order::kAttention) {
        for (std::size_t i = 0; i < kBlocks; i += 4) {
            std::memcpy(words + 4 * i, c0 + i, 16);
            std::memcpy(words + 4 * i + 4, c1 + i, 16);
            std::memcpy(words + 4 * i + 8, c2 + i, 16);
            std::memcpy(words + 4 * i + 12, c3 + i, 16);
        }
        return;
    }
    for (std::size_t i = 0; i < kBlocks; ++i) {
        words[4 * i] = c0[i];
        words[4 * i + 1] = c1[i];
        words[4 * i + 2] = c2[i];
        words[4 * i + 3] = c3[i];
    }
}

FASTBERT_CLONES
void select16(const std::uint16_t* draws, std::size_t count, std::uint32_t threshold, std::uint16_t keep,
              std::uint16_t* out) {
    for (std::size_t i = 0; i < count; ++i) out[i] = draws[i] >= threshold ? keep : std::uint16_t{0};
}

FASTBERT_CLONES
void select32(const std::uint16_t* draws, std::size_t count, std::uint32_t threshold, std::uint32_t keep,
              std::uint32_t* out) {
    for (std::size_t i = 0; i < count; ++i) out[i] = draws[i] >= threshold ? keep : 0U;
}

inline void select(const std::uint16_t* d, std::size_t n, std::uint32_t t, std::uint16_t keep, std::uint16_t* out) {
    select16(d, n, t, keep, out);
}
inline void select(const std::uint16_t* d, std::size_t n, std::uint32_t t, std::uint32_t keep, std::uint32_t* out) {
    select32(d, n, t, keep, out);
}

template <typename Element>
void fill_row(Element* out, std::size_t width, std::uint32_t row, std::uint32_t head, std::uint32_t site,
              std::uint64_t key, Order order, std::uint32_t threshold, Element keep, std::uint32_t first_block = 0) {
    alignas(64) std::uint32_t words[kBlocks * 4];
    alignas(64) std::uint16_t draws[kBlocks * kDraws];
    for (std::size_t start = 0; start < width; start += kBlocks * kDraws) {
        philox_row(first_block + static_cast<std::uint32_t>(start / kDraws), row, head, site, key, order, words);
        // The draws are the words' low halves and high halves in turn, which is memory order on little-endian machines.
        if constexpr (std::endian::native == std::endian::little) {
            std::memcpy(draws, words, sizeof(words));
        } else {
            for (std::size_t i = 0; i < kBlocks * kDraws; ++i)
                draws[i] = static_cast<std::uint16_t>(words[i / 2] >> (16 * (i % 2)));
        }
        select(draws, std::min(kBlocks * kDraws, width - start), threshold, keep, out + start);
    }
}

}  // namespace

void token_dropout_row(float* out, std::size_t width, std::uint32_t position, std::uint32_t site, std::uint64_t key,
                       std::uint32_t threshold, float keep) {
    fill_row(reinterpret_cast<std::uint32_t*>(out), width, position, 0, site, key, Order::kTokens, threshold,
             std::bit_cast<std::uint32_t>(keep));
}

void attention_dropout_row(float* out, std::size_t first_key, std::size_t count, std::uint32_t query,
                           std::uint32_t head, std::uint32_t site, std::uint64_t key, std::uint32_t threshold,
                           float keep) {
    // 32 keys take four blocks.
    fill_row(reinterpret_cast<std::uint32_t*>(out), count, query, head, site, key, Order::kAttention, threshold,
             std::bit_cast<std::uint32_t>(keep), static_cast<std::uint32_t>(first_key / kDraws));
}

template <typename Element>
void token_dropout_mask(Element* out, std::size_t tokens, std::size_t width, const std::int64_t* keys,
                        const std::int64_t* sequence, const std::int64_t* position, std::uint32_t site,
                        std::uint32_t threshold, Element keep) {
    for (std::size_t t = 0; t < tokens; ++t) {
        fill_row(out + t * width, width, static_cast<std::uint32_t>(position[t]), 0, site,
                 static_cast<std::uint64_t>(keys[sequence[t]]), Order::kTokens, threshold, keep);
    }
}

template <typename Element>
void attention_dropout_mask(Element* out, std::size_t sequences, std::size_t heads, std::size_t queries,
                            std::size_t key_count, const std::int64_t* keys, std::uint32_t site,
                            std::uint32_t threshold, Element keep) {
    for (std::size_t s = 0; s < sequences; ++s) {
        for (std::size_t head = 0; head < heads; ++head) {
            for (std::size_t query = 0; query < queries; ++query, out += key_count) {
                fill_row(out, key_count, static_cast<std::uint32_t>(query), static_cast<std::uint32_t>(head), site,
                         static_cast<std::uint64_t>(keys[s]), Order::kAttention, threshold, keep);
            }
        }
    }
}

template void token_dropout_mask(std::uint16_t*, std::size_t, std::size_t, const std::int64_t*, const std::int64_t*,
                                 const std::int64_t*, std::uint32_t, std::uint32_t, std::uint16_t);
template void token_dropout_mask(std::uint32_t*, std::size_t, std::size_t, const std::int64_t*, const std::int64_t*,
                                 const std::int64_t*, std::uint32_t, std::uint32_t, std::uint32_t);
template void attention_dropout_mask(std::uint16_t*, std::size_t, std::size_t, std::size_t, std::size_t,
                                     const std::int64_t*, std::uint32_t, std::uint32_t, std::uint16_t);
template void attention_dropout_mask(std::uint32_t*, std::size_t, std::size_t, std::size_t, std::size_t,
                                     const std::int64_t*, std::uint32_t, std::uint32_t, std::uint32_t);

}  // namespace fastbert
