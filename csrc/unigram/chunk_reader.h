// Part of unigram.cpp: the tokens of a chunk that the cache does not hold, and of texts that cannot be cut into chunks.
#pragma once
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/piece_positions.h"
#include "unicode/properties.h"
#include "unicode/utf8.h"
#include "unigram/unigram.h"

namespace fastbert::unigram {

using tokenizer::Piece;
using tokenizer::Trie;
using unicode::bytes_of;
using unicode::count_characters;

struct UnigramScratch final : tokenizer::Scratch {
    Lattice lattice;
    std::string word;
    std::vector<Word> words;
    std::vector<std::uint32_t> sources;  // by character of the word
};

class Unigram::Reader {
public:
    Reader(const Unigram& kind, Workspace& workspace) : kind_(kind), pieces_(workspace.pieces) {
        if (!workspace.scratch) workspace.scratch = std::make_unique<UnigramScratch>();
        scratch_ = static_cast<UnigramScratch*>(workspace.scratch.get());
    }

    template <class Encoder>
    void encode_segment(Encoder& encoder, std::string_view text, bool is_first) {
        if (!kind_.normalized_tokens_.empty() && !kind_.normalizer_.is_inert(text)) {
            return encode_normalized(encoder, text, is_first);
        }
        if (kind_.normalized_tokens_.empty()) return encode_part(encoder, text, is_first);
        tokenizer::encode_between(encoder, kind_.normalized_tokens_, text, [&](std::string_view part) {
            encode_part(encoder, part, is_first && part.data() == text.data());
        });
    }

    void read(const std::uint8_t* raw, const std::uint8_t*, std::size_t size) {
        const std::string_view chunk(unicode::chars(raw), size);
        if (!read_usual(chunk)) read_with(kind_.local_normalizer_, chunk, false);
    }
    void read_giant(const std::uint8_t* raw, std::size_t size) {
        read(raw, raw, size);
        trim();
    }

    void keep_strings(tokenizer::AddedStrings& strings) { strings_ = &strings; }
    void note_match(std::size_t, std::string_view) {}
    template <class Encoder>
    void finish_row(Encoder&, std::size_t, std::size_t) {}

private:
    template <class Encoder>
    void encode_part(Encoder& encoder, std::string_view text, bool is_first) {
        const std::uint32_t position = encoder.position();
        const std::string_view whole = text;
        // White space at the ends that is stripped, as far as it is certain.
        const auto is_space = [this](char byte) { return kind_.is_space(static_cast<std::uint8_t>(byte)); };
        if (kind_.strips_left_) while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
        if (kind_.strips_right_) while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
        const bool first_matters = is_first && kind_.first_matters_ && text.data() == whole.data();
        if (text.empty() || strings_ != nullptr || !kind_.ends_stay(text) ||
            (first_matters && kind_.find_hazard(text) < text.size())) {
            first_index_ = encoder.size();
            read_with(kind_.normalizer_, whole, is_first);
            encoder.append_read();
            trim();
        } else {
            encoder.set_position(position + static_cast<std::size_t>(text.data() - whole.data()));
            if (first_matters) {
                const std::uint8_t* const begin = bytes_of(text);
                const auto size = static_cast<std::size_t>(kind_.chunk_end(begin, begin + text.size()) - begin);
                append_chunks(encoder, text.substr(0, size), true);
                text.remove_prefix(size);
            }
            encode_around_hazards(encoder, text);
        }
        encoder.set_position(position + count_characters(whole));
    }

    // Chunk by chunk, but for the surroundings of hazards.
    template <class Encoder>
    void encode_around_hazards(Encoder& encoder, std::string_view text) {
        while (!text.empty() && !encoder.full()) {
            const std::size_t hazard = kind_.find_hazard(text);
            std::size_t cut = hazard;
            if (hazard < text.size()) {
                while (cut > 0 && !kind_.is_safe_cut(text, cut)) --cut;
            }
            if (cut > 0) encoder.encode_run(text.substr(0, cut));
            text.remove_prefix(cut);
            if (text.empty()) break;
            std::size_t end = hazard - cut + 1;
            while (end < text.size() && !kind_.is_safe_cut(text, end)) ++end;
            append_chunks(encoder, text.substr(0, end), false);
            text.remove_prefix(end);
        }
    }

    // A text that is read at once, without what is done to the ends of the whole text.
    template <class Encoder>
    void append_chunks(Encoder& encoder, std::string_view text, bool is_first) {
        read_with(kind_.local_normalizer_, text, is_first);
        encoder.append_read();
        encoder.set_position(encoder.position() + count_characters(text));
        trim();
    }

    // Added tokens are searched in the normalised text, and the text between them is split.
    template <class Encoder>
    void encode_normalized(Encoder& encoder, std::string_view text, bool is_first) {
        normalizer::Characters normal = kind_.normalizer_.normalize(text);
        const std::string bytes = normalizer::bytes_of(normal);
        if (!kind_.normalized_tokens_.occurs_in(bytes)) return encode_part(encoder, text, is_first);
        const std::string_view view = bytes;
        // By character, where it begins: counting from the start for every token would be quadratic.
        std::vector<std::size_t> begins;
        for (std::size_t byte = 0; byte < view.size(); ++byte) {
            if ((view[byte] & 0xC0) != 0x80) begins.push_back(byte);
        }
        const std::uint32_t position = encoder.position();
        std::size_t last_end = 0;
        for (std::size_t at = 0; at < view.size() && !encoder.full();) {
            const AddedTokens::Match match = kind_.normalized_tokens_.find(view, at, last_end);
            const auto in_text = [&](std::size_t byte) {
                return normal.begin() + (std::lower_bound(begins.begin(), begins.end(), byte) - begins.begin());
            };
            if (match.begin > last_end) {
                pieces_.clear();
                first_index_ = encoder.size();
                split_words({in_text(last_end), in_text(match.begin)}, is_first);
                encoder.append_read();
            }
            if (match.id != Trie::kNone) {
                encoder.append_token(match.id, in_text(match.begin)->source, (in_text(match.end) - 1)->source + 1,
                                     view.substr(match.begin, match.end - match.begin));
            }
            at = match.next;
            last_end = match.end;
        }
        encoder.set_position(position + count_characters(text));
    }

    // A chunk that no step changes, but for its space, which is put before every chunk. Return false for others.
    bool read_usual(std::string_view chunk) {
        if (!kind_.is_usual_) return false;
        const bool has_space = chunk.front() == ' ';
        const std::string_view rest = chunk.substr(has_space);
        if (rest.empty() || !kind_.is_plain(rest)) return false;
        std::string& word = scratch_->word;
        word = kind_.replacement_;
        word += rest;
        pieces_.clear();
        kind_.pieces_.split(word, scratch_->lattice, [this](std::int32_t id, std::uint32_t begin, std::uint32_t end) {
            pieces_.push_back({id, begin, end, 0});
        });
        tokenizer::count_in_characters(bytes_of(word), word.size(), pieces_);
        // The first character is that of the space, or has the place of the next one.
        const std::uint32_t shift = has_space ? 0 : 1;
        const std::uint32_t first = has_space && kind_.drops_space_ ? 1 : 0;
        for (Piece& piece : pieces_) {
            piece.begin = piece.begin == 0 ? first : piece.begin - shift;
            piece.end = std::max(piece.end - shift, first + 1);
        }
        return true;
    }

    void read_with(const normalizer::Normalizer& normalizer, std::string_view text, bool is_first) {
        normalizer::Characters characters = normalizer.normalize(text);
        pieces_.clear();
        split_words(std::move(characters), is_first);
    }

    // The usual steps at once: white space is dropped or becomes the replacement, with which every word begins.
    void split_usual(normalizer::Characters text) {
        std::string& word = scratch_->word;
        std::vector<std::uint32_t>& sources = scratch_->sources;
        std::uint32_t index = 0;
        const auto start = [&](std::uint32_t source) {
            word = kind_.replacement_;
            sources.assign(1, source);
        };
        const auto finish = [&] {
            if (word.empty()) return;
            append_word(index++);
            word.clear();
        };
        std::uint8_t encoded[unicode::kMaxUtf8Bytes];
        word.clear();
        for (const unicode::NormalizedCharacter& character : text) {
            const bool is_replacement = character.point == kind_.replacement_point_;
            if (is_replacement || (!kind_.drops_space_ && character.point == ' ')) {
                finish();
                start(character.source);
            } else if (kind_.drops_space_ && unicode::is_whitespace(character.point)) {
                finish();
            } else {
                if (word.empty()) start(character.source);
                word.append(unicode::chars(encoded), unicode::encode(character.point, encoded));
                sources.push_back(character.source);
            }
        }
        text = {};  // a long word needs memory of its own
        finish();
    }

    // The pieces of scratch_->word, each character of which has a source.
    void append_word(std::uint32_t index) {
        const std::string& word = scratch_->word;
        const std::vector<std::uint32_t>& sources = scratch_->sources;
        std::size_t byte = 0, characters = 0;  // that begin before `byte`
        kind_.pieces_.split(word, scratch_->lattice, [&](std::int32_t id, std::uint32_t begin, std::uint32_t end) {
            if (begin < byte) byte = characters = 0;  // another byte of an unknown character
            for (; byte < begin; ++byte) characters += (word[byte] & 0xC0) != 0x80;
            if (strings_ != nullptr && id == kind_.unknown_id_) {
                strings_->emplace_back(first_index_ + pieces_.size(), word.substr(begin, end - begin));
            }
            const std::size_t first = characters;
            for (; byte < end; ++byte) characters += (word[byte] & 0xC0) != 0x80;
            pieces_.push_back({id, sources[first], sources[characters - 1] + 1, index});
        });
    }

    // `is_first`: of the part of the text with which it begins.
    void split_words(normalizer::Characters characters, bool is_first) {
        if (characters.empty()) return;
        if (kind_.is_usual_) return split_usual(std::move(characters));
        std::vector<Word>& words = scratch_->words;
        words.clear();
        const bool at_start = is_first && characters.front().source == 0;
        words.push_back({std::move(characters), at_start});
        kind_.pre_tokenizer_.split(words);
        for (std::size_t index = 0; index < words.size(); ++index) {
            scratch_->word = normalizer::bytes_of(words[index].text);
            scratch_->sources.clear();
            for (const auto& character : words[index].text) scratch_->sources.push_back(character.source);
            append_word(static_cast<std::uint32_t>(index));
        }
    }

    // Memory of a very long text is not kept.
    void trim() {
        constexpr std::size_t kKept = 1 << 16;
        if (scratch_->lattice.links.capacity() <= kKept) return;
        *scratch_ = UnigramScratch();
    }

    const Unigram& kind_;
    std::vector<Piece>& pieces_;
    UnigramScratch* scratch_;
    tokenizer::AddedStrings* strings_ = nullptr;
    std::size_t first_index_ = 0;  // of the pieces in the output, while strings are kept
};

}  // namespace fastbert::unigram
