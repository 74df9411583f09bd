#include "bpe/split_scan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "common/cpu_features.h"
#include "unicode/properties.h"
#include "unicode/utf8.h"

namespace fastbert::bpe {
namespace {

using tokenizer::block_count;
using tokenizer::kBlock;
using tokenizer::kBlocks;
using tokenizer::kSeparator;
using unicode::SplitClass;

void classify_portable(const std::uint8_t* text, std::size_t size, std::uint8_t* copy, ByteClasses* blocks) {
    std::uint8_t padded[kBlock];
    for (std::size_t i = 0; i < block_count(size); ++i) {
        const std::uint8_t* const from = tokenizer::block_at(text, size, i, padded);
        std::memcpy(copy + i * kBlock, from, kBlock);
        ByteClasses classes{};
        for (std::size_t j = 0; j < kBlock; ++j) {
            const std::uint8_t byte = from[j];
            const auto set = [j](std::uint64_t& mask, bool is_in) { mask |= std::uint64_t{is_in} << j; };
            set(classes.letter, static_cast<std::uint8_t>((byte | 0x20) - 'a') < 26);
            set(classes.number, static_cast<std::uint8_t>(byte - '0') < 10);
            set(classes.space, byte == ' ' || static_cast<std::uint8_t>(byte - '\t') < 5);
            set(classes.plain_space, byte == ' ');
            set(classes.apostrophe, byte == '\'');
            set(classes.separator, byte == kSeparator);
            set(classes.continuation, (byte & 0xC0) == 0x80);
            set(classes.beyond, byte >= 0x80);
        }
        blocks[i] = classes;
    }
}

// Add the characters beyond ASCII to their classes. Return true if there is white space among them.
bool classify_beyond_ascii(const std::uint8_t* text, std::size_t count, ByteClasses* blocks) {
    bool has_space = false;
    for (std::size_t i = 0; i < count; ++i) {
        std::uint64_t leads = blocks[i].beyond & ~blocks[i].continuation & ~blocks[i].separator;
        for (; leads != 0; leads &= leads - 1) {
            const auto bit = static_cast<unsigned>(std::countr_zero(leads));
            const std::uint8_t* const begin = text + i * kBlock + bit;
            const std::uint8_t* end = begin;
            std::uint64_t ByteClasses::*member;
            switch (unicode::split_class_of(unicode::decode(end))) {
                case SplitClass::kLetter: member = &ByteClasses::letter; break;
                case SplitClass::kNumber: member = &ByteClasses::number; break;
                case SplitClass::kSpace: has_space = true; continue;
                default: continue;
            }
            const auto size = static_cast<unsigned>(end - begin);
            const std::uint64_t bytes = (std::uint64_t{1} << size) - 1;
            blocks[i].*member |= bytes << bit;
            if (bit + size > kBlock) blocks[i + 1].*member |= bytes >> (kBlock - bit);
        }
    }
    return has_space;
}

// The bytes of "'s", "'ll" and the like at an apostrophe, of which at most `left` exist; 0 if there is no contraction.
std::size_t contraction(const std::uint8_t* at, std::size_t left) {
    if (left < 2) return 0;
    switch (at[1]) {
        case 's': case 't': case 'm': case 'd': return 2;
        case 'r': case 'v': return left > 2 && at[2] == 'e' ? 3 : 0;
        case 'l': return left > 2 && at[2] == 'l' ? 3 : 0;
        default: return 0;
    }
}

// The masks of the first bytes of chunks, for text whose white space is ASCII.
void find_starts(const std::uint8_t* text, std::size_t size, const ByteClasses* blocks,
                 std::array<std::uint64_t, kBlocks + 1>& starts) {
    const std::size_t count = block_count(size);
    // The last bytes of the block before.
    std::uint64_t letter = 0, number = 0, other = 0, space = 0, attached = 0;
    std::uint64_t has_apostrophe = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const ByteClasses& classes = blocks[i];
        const std::uint64_t others = ~(classes.letter | classes.number | classes.space | classes.separator);
        const auto begins = [](std::uint64_t mask, std::uint64_t before) { return mask & ~(mask << 1 | before); };
        // White space goes on, or the text ends.
        std::uint64_t ends = classes.space | classes.separator;
        const bool is_last = i + 1 == count;
        std::uint64_t next = is_last ? 1 : (blocks[i + 1].space | blocks[i + 1].separator) & 1;
        if (is_last && size % kBlock != 0) ends |= ~std::uint64_t{0} << size % kBlock;
        const std::uint64_t last_space = classes.space & ~(ends >> 1 | next << 63);
        const std::uint64_t attaching = last_space & classes.plain_space;
        const std::uint64_t runs =
            begins(classes.letter, letter) | begins(classes.number, number) | begins(others, other);
        starts[i] = (runs & ~(attaching << 1 | attached)) | begins(classes.space, space) | last_space |
                    classes.separator;
        letter = classes.letter >> 63;
        number = classes.number >> 63;
        other = others >> 63;
        space = classes.space >> 63;
        attached = attaching >> 63;
        has_apostrophe |= classes.apostrophe & starts[i];
    }
    if (size % kBlock != 0) starts[count - 1] &= (std::uint64_t{1} << size % kBlock) - 1;
    if (has_apostrophe == 0) return;
    for (std::size_t i = 0; i < count; ++i) {
        for (std::uint64_t mask = blocks[i].apostrophe & starts[i]; mask != 0; mask &= mask - 1) {
            const std::size_t at = i * kBlock + static_cast<std::size_t>(std::countr_zero(mask));
            // What follows is a letter, so the apostrophe is the whole of its run.
            const std::size_t bytes = contraction(text + at, size - at);
            if (bytes == 0) continue;
            starts[(at + 1) / kBlock] &= ~(std::uint64_t{1} << (at + 1) % kBlock);
            const std::size_t end = at + bytes;
            if (end < size) starts[end / kBlock] |= std::uint64_t{1} << end % kBlock;
        }
    }
}

// Character by character.
void scan_slowly(const std::uint8_t* text, std::size_t size, std::array<std::uint64_t, kBlocks + 1>& starts) {
    starts.fill(0);
    const std::uint8_t* const end = text + size;
    const std::uint8_t* text_end = std::find(text, end, kSeparator);
    for (const std::uint8_t* at = text; at < end;) {
        const auto offset = static_cast<std::size_t>(at - text);
        starts[offset / kBlock] |= std::uint64_t{1} << offset % kBlock;
        if (at == text_end) {
            text_end = std::find(++at, end, kSeparator);
        } else {
            at += first_chunk(at, text_end);
        }
    }
}

SplitClass class_at(const std::uint8_t*& at) { return unicode::split_class_of(unicode::decode(at)); }

const std::uint8_t* run_end(const std::uint8_t* at, const std::uint8_t* end, SplitClass of) {
    for (const std::uint8_t* next = at; at < end && class_at(next) == of;) at = next;
    return at;
}

}  // namespace

void SplitScan::operator()(const std::uint8_t* text, std::size_t size, tokenizer::Window& window) const {
    const std::size_t count = block_count(size);
    std::array<ByteClasses, kBlocks + 1> blocks;
    blocks[count] = {};
    std::array<std::uint64_t, kBlocks + 1> starts;
    classify(text, size, window.bytes.data(), blocks.data());
    std::uint64_t beyond = 0;
    for (std::size_t i = 0; i < count; ++i) {
        window.masks[i].continuation = blocks[i].continuation;
        beyond |= blocks[i].beyond & ~blocks[i].separator;
    }
    if (beyond != 0 && classify_beyond_ascii(text, count, blocks.data())) {
        scan_slowly(text, size, starts);
    } else {
        find_starts(text, size, blocks.data(), starts);
    }
    set_chunks(starts.data(), size, window);
}

std::size_t first_chunk(const std::uint8_t* text, const std::uint8_t* end) {
    const auto size_to = [text](const std::uint8_t* at) { return static_cast<std::size_t>(at - text); };
    if (*text == '\'') {
        if (const std::size_t size = contraction(text, static_cast<std::size_t>(end - text)); size != 0) return size;
    }
    const std::uint8_t* next = text;
    const SplitClass first = class_at(next);
    if (first != SplitClass::kSpace) return size_to(run_end(next, end, first));
    if (*text == ' ' && next < end) {
        const std::uint8_t* behind = next;
        const SplitClass second = class_at(behind);
        if (second != SplitClass::kSpace) return size_to(run_end(behind, end, second));
    }
    const std::uint8_t* last = text;
    const std::uint8_t* at = next;
    while (at < end) {
        const std::uint8_t* behind = at;
        if (class_at(behind) != SplitClass::kSpace) break;
        last = at;
        at = behind;
    }
    // White space before something else leaves its last character to the next chunk.
    return size_to(at == end || last == text ? at : last);
}

SplitScan portable_split_scan() { return {"portable", classify_portable, tokenizer::positions::portable}; }

SplitScan fastest_split_scan() {
    const CpuFeatures& has = cpu_features();
    const tokenizer::SetChunks set_chunks = tokenizer::fastest_set_chunks();
    if (scans::avx512 && has.avx512bw && has.avx512vl && has.avx512_vbmi2) return {"avx512", scans::avx512, set_chunks};
    if (scans::avx2 && has.avx2) return {"avx2", scans::avx2, set_chunks};
    return {"portable", classify_portable, set_chunks};
}

}  // namespace fastbert::bpe
