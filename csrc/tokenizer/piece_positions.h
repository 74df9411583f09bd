// Shared by readers: positions in characters, and texts that were changed before they are encoded.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "normalizer/normalizer.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/chunk_cache.h"

namespace fastbert::tokenizer {

// Turn the byte ranges of pieces, which cover `text` in order, into ranges of characters: those that a piece has any byte
// of. Several pieces in a row may cover the same range.
void count_in_characters(const std::uint8_t* text, std::size_t size, std::vector<Piece>& pieces);

// Encode the bytes of normalised text by encode(bytes), and lead positions back to the raw text of `characters`
// characters.
template <class Encoder, class Encode>
void encode_with_sources(Encoder& encoder, const normalizer::Characters& normal, std::size_t characters, Encode encode) {
    const std::string bytes = normalizer::bytes_of(normal);
    const std::uint32_t base = encoder.position();
    const std::size_t first = encoder.size();
    encoder.set_position(0);
    encode(std::string_view(bytes));
    if constexpr (Encoder::kAligned) {
        auto& tokens = encoder.output();
        for (std::size_t i = first; i < encoder.size(); ++i) {
            const auto begin = static_cast<std::size_t>(tokens.begins[i]);
            const auto last = static_cast<std::size_t>(tokens.ends[i] - 1);
            tokens.begins[i] = static_cast<std::int32_t>(base + normal[begin].source);
            tokens.ends[i] = static_cast<std::int32_t>(base + normal[last].source + 1);
        }
    }
    encoder.set_position(base + characters);
}

// Encode a text part by part: added tokens, and what stands between them by encode_part(text).
template <class Encoder, class EncodePart>
void encode_between(Encoder& encoder, const AddedTokens& tokens, std::string_view text, EncodePart encode_part) {
    std::size_t last_end = 0;
    for (std::size_t at = 0; at < text.size() && !encoder.full();) {
        const AddedTokens::Match match = tokens.find(text, at, last_end);
        if (match.begin > last_end) encode_part(text.substr(last_end, match.begin - last_end));
        if (match.id != Trie::kNone) encoder.append_match(match, text, last_end);
        at = match.next;
        last_end = match.end;
    }
}

}  // namespace fastbert::tokenizer
