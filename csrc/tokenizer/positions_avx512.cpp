#include "tokenizer/positions_avx512.h"

#include "tokenizer/positions.h"

namespace fastbert::tokenizer::positions {

#if defined(__x86_64__)
namespace {

FASTBERT_SCAN_AVX512 void set_chunks(const std::uint64_t* starts, std::size_t size, Window& window) {
    std::uint16_t* to = window.starts.data();
    for (std::size_t i = 0; i < block_count(size); ++i) {
        window.chunks_before[i] = static_cast<std::uint16_t>(to - window.starts.data());
        window.first_bytes[i] = starts[i];
        to = append(starts[i], i * kBlock, to);
    }
    finish(to, size, window);
}

}  // namespace

const SetChunks avx512 = set_chunks;
#else
const SetChunks avx512 = nullptr;
#endif

}  // namespace fastbert::tokenizer::positions
