#include "unigram/space_scan.h"

#include <algorithm>
#include <cstring>

#include "common/cpu_features.h"

namespace fastbert::unigram {
namespace {

using tokenizer::block_count;
using tokenizer::kBlock;
using tokenizer::kBlocks;

void classify_portable(const std::uint8_t* text, std::size_t size, const SpaceBytes& spaces, std::uint8_t* copy,
                       SpaceMasks* blocks) {
    std::uint8_t padded[kBlock];
    for (std::size_t i = 0; i < block_count(size); ++i) {
        const std::uint8_t* const from = tokenizer::block_at(text, size, i, padded);
        std::memcpy(copy + i * kBlock, from, kBlock);
        SpaceMasks masks{};
        for (std::size_t j = 0; j < kBlock; ++j) {
            const std::uint8_t byte = from[j];
            const auto set = [j](std::uint64_t& mask, bool is_in) { mask |= std::uint64_t{is_in} << j; };
            set(masks.space, std::find(spaces.begin(), spaces.end(), byte) != spaces.end());
            set(masks.separator, byte == tokenizer::kSeparator);
            set(masks.continuation, (byte & 0xC0) == 0x80);
        }
        blocks[i] = masks;
    }
}

}  // namespace

void SpaceScan::operator()(const std::uint8_t* text, std::size_t size, const SpaceBytes& spaces, bool in_runs,
                           tokenizer::Window& window) const {
    const std::size_t count = block_count(size);
    std::array<SpaceMasks, kBlocks> blocks;
    std::array<std::uint64_t, kBlocks> starts;
    classify(text, size, spaces, window.bytes.data(), blocks.data());
    std::uint64_t space = 0, separator = 1;  // of the byte before; a text begins like behind a separator
    for (std::size_t i = 0; i < count; ++i) {
        const SpaceMasks& masks = blocks[i];
        window.masks[i].continuation = masks.continuation;
        const std::uint64_t first = in_runs ? masks.space & ~(masks.space << 1 | space) : masks.space;
        starts[i] = first | masks.separator | masks.separator << 1 | separator;
        space = masks.space >> 63;
        separator = masks.separator >> 63;
    }
    if (size % kBlock != 0) starts[count - 1] &= (std::uint64_t{1} << size % kBlock) - 1;
    set_chunks(starts.data(), size, window);
}

SpaceScan portable_space_scan() { return {"portable", classify_portable, tokenizer::positions::portable}; }

SpaceScan fastest_space_scan() {
    const CpuFeatures& has = cpu_features();
    const tokenizer::SetChunks set_chunks = tokenizer::fastest_set_chunks();
    if (scans::avx512 && has.avx512bw && has.avx512vl && has.avx512_vbmi2) return {"avx512", scans::avx512, set_chunks};
    if (scans::avx2 && has.avx2) return {"avx2", scans::avx2, set_chunks};
    return {"portable", classify_portable, set_chunks};
}

}  // namespace fastbert::unigram
