// Part of tokenizer.cpp: tokenize a chunk on a cache miss.
#pragma once
#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "tokenizer/offset_trimming.h"
#include "unicode/tables.h"
#include "unicode/utf8.h"
#include "wordpiece/normalized_text.h"
#include "wordpiece/tokenizer.h"

namespace fastbert::wordpiece {

using unicode::bytes_of;
using unicode::chars;
using unicode::count_characters;

// The tokens of a single chunk, with their offsets in it.
class WordPiece::Reader {
public:
    Reader(const WordPiece& tokenizer, Workspace& workspace)
        : tokenizer_(tokenizer),
          pieces_(workspace.pieces),
          splitter_(tokenizer.tables_, *this),
          trimmer_(tokenizer.trim_, tokenizer.spaces_) {}

    template <class Encoder>
    void encode_segment(Encoder& encoder, std::string_view text, bool) {
        if (tokenizer_.needles_.may_occur_in(text)) {
            encode_normalized(encoder, text);
        } else {
            encoder.encode_run(text);
        }
    }

    // The ids of a chunk of any kind from the text's bytes alone.
    template <class Encoder>
    void append_directly(Encoder& encoder, const std::uint8_t* raw, std::size_t size) {
        IdSink<Encoder> sink{tokenizer_, encoder};
        WordSplitter<IdSink<Encoder>>(tokenizer_.tables_, sink).split({chars(raw), size});
    }

    void keep_strings(tokenizer::AddedStrings&) {}
    void note_match(std::size_t index, std::string_view spelling) { trimmer_.note_match(index, spelling); }
    template <class Encoder>
    void finish_row(Encoder& encoder, std::size_t first, std::size_t end) {
        trimmer_.finish_row(encoder.output(), first, end);
    }

    // `raw` is the text's bytes, `folded` has ASCII in lower case if the tokenizer lower-cases.
    void read(const std::uint8_t* raw, const std::uint8_t* folded, std::size_t size) {
        const NormalizerTables& tables = tokenizer_.tables_;
        const auto is_letter = [&tables](std::uint8_t byte) { return tables.folded[byte] != 0; };
        if ((size == 1 && tables.is_boundary(*raw)) || std::all_of(raw, raw + size, is_letter)) {
            read_ascii({chars(folded), size});
        } else {
            read_general(raw, size);
        }
    }

    void read_giant(const std::uint8_t* raw, std::size_t size) { read_general(raw, size); }

    // Tokenize a chunk of any kind from the text's bytes alone.
    void read_general(const std::uint8_t* raw, std::size_t size) {
        pieces_.clear();
        next_word_ = 0;
        splitter_.split({chars(raw), size});
    }

    // The sink of the splitter.
    void word(const AlignedWord& word) {
        const std::size_t before = pieces_.size();
        const std::uint8_t* at = word.bytes.data();
        std::size_t character = 0;
        const auto append = [&](std::int32_t id) {
            const std::uint8_t* const end = at + tokenizer_.piece_bytes_[static_cast<std::size_t>(id)];
            const std::size_t first = character;
            for (; at != end; ++at) character += (*at & 0xC0) != 0x80;
            pieces_.push_back({id, word.sources[first], word.sources[character - 1] + 1, next_word_});
        };
        if (word.too_long() || !tokenizer_.matcher_.match(word.view(), append)) {
            pieces_.resize(before);
            pieces_.push_back({tokenizer_.unknown_id_, word.sources[0], word.last_source + 1, next_word_});
        }
        ++next_word_;
    }
    bool full() const { return false; }

    // Text that is already normalised.
    void read_normalized(std::span<const NormalizedCharacter> text) {
        pieces_.clear();
        next_word_ = 0;
        AlignedWord current;
        const auto finish = [&] {
            if (current.chars > 0) word(current);
            current.clear();
        };
        for (const NormalizedCharacter& character : text) {
            const unsigned flags = unicode::record_of(character.point).flags;
            if (flags & (unicode::kWhitespace | unicode::kPunctuation)) finish();
            if (flags & unicode::kWhitespace) continue;
            current.add(character.point, character.source);
            if (flags & unicode::kPunctuation) finish();
        }
        finish();
    }

private:
    // Takes words without alignment to ids.
    template <class Encoder>
    struct IdSink {
        const WordPiece& tokenizer;
        Encoder& encoder;

        void word(const Word& word) {
            const std::size_t before = encoder.size();
            const auto append_id = [this](std::int32_t id) { encoder.append_id(id); };
            if (!word.too_long() && tokenizer.matcher_.match(word.view(), append_id)) return;
            encoder.truncate_to(before);
            encoder.append_id(tokenizer.unknown_id_);
        }
        bool full() const { return encoder.full(); }
    };

    // The slow path: added tokens are searched in the normalised text, and the text between them is split into words.
    template <class Encoder>
    void encode_normalized(Encoder& encoder, std::string_view text) {
        const NormalizedText normal(text, tokenizer_.tables_.options);
        const std::string_view bytes = normal.bytes();
        std::size_t last_end = 0;
        for (std::size_t at = 0; at < bytes.size() && !encoder.full();) {
            const AddedTokens::Match match = tokenizer_.normalized_tokens_.find(bytes, at, last_end);
            if (match.begin > last_end) {
                read_normalized(normal.characters(last_end, match.begin));
                encoder.append_read();
            }
            if (match.id != Trie::kNone) {
                const auto characters = normal.characters(match.begin, match.end);
                encoder.append_token(match.id, characters.front().source, characters.back().source + 1,
                                     bytes.substr(match.begin, match.end - match.begin));
            }
            at = match.next;
            last_end = match.end;
        }
        encoder.set_position(encoder.position() + count_characters(text));
    }

    void read_ascii(std::string_view word) {
        pieces_.clear();
        std::uint32_t at = 0;
        const auto append = [&](std::int32_t id) {
            const std::uint32_t end = at + tokenizer_.piece_bytes_[static_cast<std::size_t>(id)];
            pieces_.push_back({id, at, end, 0});
            at = end;
        };
        if (word.size() <= kMaxWordChars && tokenizer_.matcher_.match(word, append)) return;
        pieces_.clear();
        pieces_.push_back({tokenizer_.unknown_id_, 0, static_cast<std::uint32_t>(word.size()), 0});
    }

    const WordPiece& tokenizer_;
    std::vector<Piece>& pieces_;
    WordSplitter<Reader, true> splitter_;
    tokenizer::OffsetTrimmer trimmer_;
    std::uint32_t next_word_ = 0;
};

}  // namespace fastbert::wordpiece
