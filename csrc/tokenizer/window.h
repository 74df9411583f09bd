// A window of text cut into chunks: runs of bytes whose tokens depend on nothing but these bytes. What a chunk is, is
// decided by the kind of tokenizer; a window is scanned 64 bytes at a time with the processor's widest instructions.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fastbert::tokenizer {

inline constexpr std::size_t kBlock = 64;
inline constexpr std::size_t kWindow = 4096;
inline constexpr std::size_t kBlocks = kWindow / kBlock;
// This many bytes after a chunk are readable (a whole register from its first byte on).
inline constexpr std::size_t kOverread = 64;

// Stands between texts that share a window: a byte that UTF-8 lacks.
inline constexpr std::uint8_t kSeparator = 0xFF;

// Bit i classifies byte i of a block.
struct BlockMasks {
    std::uint64_t inside;        // neither ASCII white space nor ASCII punctuation (WordPiece)
    std::uint64_t punctuation;   // (WordPiece)
    std::uint64_t continuation;  // continues a character
};

// The result of a scan. Positions are offsets from the start of the window.
struct Window {
    std::size_t count = 0;  // chunks
    alignas(64) std::array<std::uint8_t, kWindow + kOverread> bytes{};  // the text, folded if asked for
    // First byte of each chunk, and last one if chunks have gaps; otherwise the starts end with that of what follows. A
    // block's offsets are stored in full registers, which needs slack for one more.
    std::array<std::uint16_t, kWindow + kBlock> starts;
    std::array<std::uint16_t, kWindow + kBlock> lasts;
    std::array<BlockMasks, kBlocks> masks;
    std::array<std::uint64_t, kBlocks + 1> first_bytes{};  // of chunks, by block
    std::array<std::uint16_t, kBlocks + 1> chunks_before;  // each block, and behind the last one
};

inline constexpr std::size_t block_count(std::size_t size) { return (size + kBlock - 1) / kBlock; }

// Block i of the text; the last one is completed with spaces in `padded`.
inline const std::uint8_t* block_at(const std::uint8_t* text, std::size_t size, std::size_t i, std::uint8_t* padded) {
    const std::size_t left = size - i * kBlock;
    if (left >= kBlock) return text + i * kBlock;
    std::memset(padded, ' ', kBlock);
    std::memcpy(padded, text + i * kBlock, left);
    return padded;
}

}  // namespace fastbert::tokenizer
