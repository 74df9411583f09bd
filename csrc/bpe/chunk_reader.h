// Part of byte_level.cpp: the tokens of a chunk that the cache does not hold, and what is done to a text as a whole.
#pragma once
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "bpe/byte_level.h"
#include "tokenizer/offset_trimming.h"
#include "tokenizer/piece_positions.h"
#include "unicode/utf8.h"

namespace fastbert::bpe {

using tokenizer::Piece;
using tokenizer::Trie;
using unicode::bytes_of;
using unicode::count_characters;

// Kept between calls, with the memory of the longest words.
struct MergerScratch final : tokenizer::Scratch {
    explicit MergerScratch(const Merges& merges) : merger(merges) {}
    Merger merger;
};

class ByteLevelBpe::Reader {
public:
    Reader(const ByteLevelBpe& kind, Workspace& workspace)
        : kind_(kind), workspace_(workspace), trimmer_(kind.options_.trim, kind.spaces_) {
        if (!workspace.scratch) workspace.scratch = std::make_unique<MergerScratch>(kind.merges_);
    }

    // Added tokens are searched in the normalised text; sources lead back from there.
    template <class Encoder>
    void encode_segment(Encoder& encoder, std::string_view text, bool) {
        if (kind_.normalizer_.is_inert(text)) return encode_parts(encoder, text);
        if (!kind_.tokens_stay_apart_ || !kind_.normalizer_.has_only_forms()) return encode_normalized(encoder, text);
        // Forms do not reach over ASCII, so that only some of a long text has to be normalised.
        constexpr std::size_t kBlock = 4096;
        while (!text.empty() && !encoder.full()) {
            std::size_t size = std::min(kBlock, text.size());
            while (size < text.size() && !is_safe_cut(text, size)) ++size;
            const std::string_view block = text.substr(0, size);
            if (kind_.normalizer_.is_inert(block)) {
                encode_parts(encoder, block);
            } else {
                encode_normalized(encoder, block);
            }
            text.remove_prefix(size);
        }
    }

    void read(const std::uint8_t* raw, const std::uint8_t*, std::size_t size) {
        std::vector<Piece>& pieces = workspace_.pieces;
        pieces.clear();
        if (kind_.options_.whole_words) {
            const auto word = kind_.words_.find({unicode::chars(raw), size});
            if (word != kind_.words_.end()) {
                pieces.push_back({word->second, 0, static_cast<std::uint32_t>(size), 0});
                return tokenizer::count_in_characters(raw, size, pieces);
            }
        }
        static_cast<MergerScratch&>(*workspace_.scratch).merger.merge(
            raw, size, [&pieces](std::int32_t id, std::size_t begin, std::size_t end) {
                pieces.push_back({id, static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end), 0});
            });
        tokenizer::count_in_characters(raw, size, pieces);
    }
    void read_giant(const std::uint8_t* raw, std::size_t size) { read(raw, raw, size); }

    void keep_strings(tokenizer::AddedStrings&) {}
    void note_match(std::size_t index, std::string_view spelling) { trimmer_.note_match(index, spelling); }
    template <class Encoder>
    void finish_row(Encoder& encoder, std::size_t first, std::size_t end) {
        trimmer_.finish_row(encoder.output(), first, end);
    }

private:
    // A single space between visible ASCII characters begins a chunk.
    static bool is_safe_cut(std::string_view text, std::size_t at) {
        const auto is_visible = [text](std::size_t i) { return text[i] > ' ' && text[i] < 0x7F; };
        return text[at] == ' ' && at + 1 < text.size() && is_visible(at - 1) && is_visible(at + 1);
    }

    template <class Encoder>
    void encode_normalized(Encoder& encoder, std::string_view text) {
        const normalizer::Characters normal = kind_.normalizer_.normalize(text);
        tokenizer::encode_with_sources(encoder, normal, count_characters(text),
                                       [&](std::string_view bytes) { encode_parts(encoder, bytes); });
    }

    template <class Encoder>
    void encode_parts(Encoder& encoder, std::string_view text) {
        tokenizer::encode_between(encoder, kind_.normalized_tokens_, text,
                                  [&](std::string_view part) { encode_part(encoder, part); });
    }

    template <class Encoder>
    void encode_part(Encoder& encoder, std::string_view text) {
        if (!kind_.options_.prefix_space || text[0] == ' ') return encoder.encode_run(text);
        // The first chunk as it is behind a space.
        constexpr std::size_t kFew = 64, kLookahead = 8;
        prefixed_ = ' ';
        std::size_t copied = std::min(text.size(), kFew);
        while (copied < text.size() && (text[copied] & 0xC0) == 0x80) ++copied;
        prefixed_.append(text.substr(0, copied));
        const auto chunk_size = [this] {
            const std::uint8_t* const begin = bytes_of(prefixed_);
            return first_chunk(begin, begin + prefixed_.size());
        };
        std::size_t size = chunk_size();
        if (copied < text.size() && size + kLookahead > prefixed_.size()) {
            prefixed_.append(text.substr(copied));
            size = chunk_size();
        }
        read_cached(size);
        // Its characters have the sources of the text without the space, whose source is that of the next one.
        for (Piece& piece : workspace_.pieces) {
            piece.begin = std::max(piece.begin, 1U) - 1;
            piece.end = std::max(piece.end - 1, 1U);
        }
        encoder.append_read();
        const std::string_view read = text.substr(0, size - 1);
        encoder.set_position(encoder.position() + count_characters(read));
        encoder.encode_run(text.substr(read.size()));
    }

    // Read the first `size` bytes of prefixed_ through the cache.
    void read_cached(std::size_t size) {
        using tokenizer::ChunkCache;
        if (size > ChunkCache::kShortBytes) return read(bytes_of(prefixed_), nullptr, size);
        std::array<std::uint8_t, ChunkCache::kShortBytes + 1> chunk{};
        std::copy_n(prefixed_.data(), size, chunk.begin());
        ChunkCache& cache = workspace_.cache;
        const auto* const known = cache.find_short(chunk.data(), size);
        if (known != nullptr && !known->elsewhere()) {
            workspace_.pieces.clear();
            for (std::size_t i = 0; i < known->count(); ++i) {
                workspace_.pieces.push_back({known->ids[i], known->begin(i), known->end(i), known->word(i)});
            }
            return;
        }
        read(chunk.data(), chunk.data(), size);
        cache.insert(chunk.data(), size, workspace_.pieces, false);
    }

    const ByteLevelBpe& kind_;
    Workspace& workspace_;
    std::string prefixed_;
    tokenizer::OffsetTrimmer trimmer_;
};

}  // namespace fastbert::bpe
