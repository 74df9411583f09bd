#include "tokenizer/piece_positions.h"

namespace fastbert::tokenizer {

void count_in_characters(const std::uint8_t* text, std::size_t size, std::vector<Piece>& pieces) {
    std::size_t byte = 0;
    std::uint32_t characters = 0;  // that begin before `byte`
    const auto count_to = [&](std::size_t end) {
        for (; byte < end; ++byte) characters += (text[byte] & 0xC0) != 0x80;
        return characters;
    };
    std::uint32_t last_begin = 0, last_end = 0;  // in bytes
    const Piece* last = nullptr;
    for (Piece& piece : pieces) {
        const std::uint32_t begin = piece.begin, end = piece.end;
        if (last != nullptr && begin == last_begin && end == last_end) {
            // Another byte of the same characters.
            piece.begin = last->begin;
            piece.end = last->end;
        } else {
            const bool is_inside = begin < size && (text[begin] & 0xC0) == 0x80;
            piece.begin = count_to(begin) - is_inside;
            piece.end = count_to(end);
        }
        last = &piece;
        last_begin = begin;
        last_end = end;
    }
}

}  // namespace fastbert::tokenizer
