#include "cpu/rowwise/embedding_gradient.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cpu/runtime/parallel.h"
#include "cpu/rowwise/scratch.h"
#include "cpu/simd/target.h"

#if FASTBERT_X86
#include <emmintrin.h>
#endif

namespace fastbert {
namespace {

constexpr std::size_t kBlock = 64;                    // tokens per partial sum
constexpr std::size_t kCachedTableBytes = std::size_t{8}
                                          << 20;  // tables up to this size may stay in cache

// Tokens sorted by id, stably.
struct TokensById {
    std::vector<std::size_t> tokens;
    std::vector<std::size_t> begin;  // (rows + 1,): offset of each id's tokens

    TokensById(const Ids& ids, std::size_t count, std::size_t rows) : tokens(count), begin(rows + 2) {
        // Read once: another thread may modify the ids.
        std::vector<std::size_t> copy(count);
        for (std::size_t token = 0; token < count; ++token) {
            copy[token] = static_cast<std::size_t>(ids[token]);
            if (copy[token] < rows) ++begin[copy[token] + 2];
        }
        for (std::size_t row = 2; row < begin.size(); ++row) begin[row] += begin[row - 1];
        for (std::size_t token = 0; token < count; ++token)
            if (copy[token] < rows) tokens[begin[copy[token] + 1]++] = token;
    }
    std::size_t count(std::size_t row) const { return begin[row + 1] - begin[row]; }
};

// A block of the tokens of one frequent id.
struct Block {
    std::size_t first, last;  // in Sorted::tokens
};

// Write zeros, with non-temporal stores for a table larger than the near caches: most rows of a vocabulary's gradient
// are zero, and ordinary stores would read the lines first.
void zero(std::byte* begin, std::size_t size, [[maybe_unused]] bool large) {
#if FASTBERT_X86
    if (!large) return void(std::memset(begin, 0, size));
    const std::size_t ahead = std::min(size, (16 - reinterpret_cast<std::uintptr_t>(begin) % 16) % 16);
    std::memset(begin, 0, ahead);
    begin += ahead;
    size -= ahead;
    for (; size >= 64; size -= 64, begin += 64)
        for (std::size_t i = 0; i < 64; i += 16)
            _mm_stream_si128(reinterpret_cast<__m128i*>(begin + i), _mm_setzero_si128());
#endif
    std::memset(begin, 0, size);
}

void add(float* sum, const float* x, std::size_t width) {
    for (std::size_t i = 0; i < width; ++i) sum[i] += x[i];
}

void add_tokens(const EmbeddingBackwardCall& call, const TokensById& sorted, std::size_t first, std::size_t last,
                float* sum) {
    std::memcpy(sum, call.dsum + sorted.tokens[first] * call.width, call.width * sizeof(float));
    for (std::size_t i = first + 1; i < last; ++i) add(sum, call.dsum + sorted.tokens[i] * call.width, call.width);
}

// Write rows first..last of the gradient; `partial` holds block sums, those of row r from first_partial[r] on.
void write_rows(const EmbeddingBackwardCall& call, const TokensById& sorted,
                const std::vector<std::size_t>& first_partial, const float* partial, std::size_t first,
                std::size_t last, float* scratch) {
    const std::size_t width = call.width, size = width * size_of(call.dtype);
    const bool large = static_cast<std::size_t>(call.rows) * size > kCachedTableBytes;
    auto* gradient = static_cast<std::byte*>(call.gradient);
    for (std::size_t row = first; row < last; ++row) {
        const std::size_t count = sorted.count(row);
        if (count == 0) {
            std::size_t end = row + 1;
            while (end < last && sorted.count(end) == 0) ++end;
            zero(gradient + row * size, (end - row) * size, large);
            row = end - 1;
            continue;
        }
        auto* sum = call.dtype == Dtype::fp32 ? reinterpret_cast<float*>(gradient + row * size) : scratch;
        if (count <= kBlock) {
            add_tokens(call, sorted, sorted.begin[row], sorted.begin[row + 1], sum);
        } else {
            const float* blocks = partial + first_partial[row] * width;
            std::memcpy(sum, blocks, width * sizeof(float));
            for (std::size_t i = 1; i < (count + kBlock - 1) / kBlock; ++i) add(sum, blocks + i * width, width);
        }
        if (call.dtype == Dtype::fp32) continue;
        auto* narrow = reinterpret_cast<BFloat16*>(gradient + row * size);
        for (std::size_t i = 0; i < width; ++i) narrow[i] = to_bfloat16(sum[i]);
    }
#if FASTBERT_X86
    _mm_sfence();
#endif
}

// Split the table into parts of about equal work: writing a row costs as much as adding a token.
std::vector<std::size_t> partition(const TokensById& sorted, std::size_t rows, std::size_t threads) {
    const auto work = [&](std::size_t row) { return 1 + std::min(sorted.count(row), kBlock); };
    std::size_t all = 0, done = 0;
    for (std::size_t row = 0; row < rows; ++row) all += work(row);
    std::vector<std::size_t> begin{0};
    for (std::size_t row = 0; row < rows && begin.size() < threads; ++row) {
        done += work(row);
        while (begin.size() < threads && done * threads >= all * begin.size()) begin.push_back(row + 1);
    }
    begin.resize(threads + 1, rows);
    return begin;
}

}  // namespace

void embedding_backward(const EmbeddingBackwardCall& call) {
    const auto rows = static_cast<std::size_t>(call.rows);
    const TokensById sorted(call.ids, call.tokens, rows);
    std::vector<Block> blocks;
    std::vector<std::size_t> first_partial(rows);
    for (std::size_t row = 0; row < rows; ++row) {
        if (sorted.count(row) <= kBlock) continue;
        first_partial[row] = blocks.size();
        for (std::size_t first = sorted.begin[row]; first < sorted.begin[row + 1]; first += kBlock)
            blocks.push_back({first, std::min(sorted.begin[row + 1], first + kBlock)});
    }
    const AlignedFloats partial(blocks.size() * call.width);
    parallel_ranges(blocks.size(), 1 + 32768 / (kBlock * call.width), [&](std::size_t first, std::size_t last) {
        for (std::size_t i = first; i < last; ++i)
            add_tokens(call, sorted, blocks[i].first, blocks[i].last, partial.data() + i * call.width);
    });
    const auto threads = static_cast<std::size_t>(threads_for(rows + call.tokens, call.width));
    const std::vector<std::size_t> begin = partition(sorted, rows, threads);
    const std::size_t each = scratch_stride(call.width);
    const AlignedFloats floats(each * threads);
    const auto write = [&](std::size_t part) {
        write_rows(call, sorted, first_partial, partial.data(), begin[part], begin[part + 1],
                   floats.data() + each * part);
    };
    if (threads == 1) return write(0);
    parallel(static_cast<int>(threads), [&](int thread, int running) {
        // If fewer threads run than requested, each processes several parts.
        for (auto part = static_cast<std::size_t>(thread); part < threads; part += static_cast<std::size_t>(running))
            write(part);
    });
}

}  // namespace fastbert
