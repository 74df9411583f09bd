// Tokenizers against plain implementations of the same rules: no windows, no cache, no trie, no instructions beyond C++.
// Shared by the fuzz targets and by the stand-alone program.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace fastbert::checks {

// `input` is any bytes: the first ones choose the options, the rest is made valid UTF-8. Each prints the first difference
// and aborts if there is one.
void check_wordpiece(std::string_view input);
void check_byte_level(std::string_view input);
void check_unigram(std::string_view input);

// A character map of any bytes is refused, or safe to use.
void check_charsmap(std::string_view input);

// Encodes the same texts on several threads at once, with tokenizers shared and new, and compares the results.
void check_threads(std::string_view input, unsigned threads);

// For the checks themselves.

struct Token {
    std::int32_t id;
    std::uint32_t begin, end, word;
    bool operator==(const Token&) const = default;
};
using Tokens = std::vector<Token>;

// What cannot be UTF-8 becomes U+FFFD, one byte at a time.
std::string make_valid(std::string_view input);
std::vector<std::string_view> lines_of(std::string_view text);

[[noreturn]] void fail(const char* what, std::string_view text, unsigned choice, std::size_t version);

// Compare all ways to encode rows with the expected tokens of each, which are not truncated: with and without positions,
// with a limit, and between other ids.
void check_rows(const tokenizer::Tokenizer& subject, tokenizer::Workspace& workspace,
                const std::vector<std::string_view>& rows, const std::vector<Tokens>& expected, std::size_t limit,
                unsigned choice, std::size_t version);

// The place of the first of some special tokens in a text; `id` counts from that of the first one, -1: there is none.
struct Special {
    std::size_t begin, size;
    std::int32_t index;
};
Special first_special(std::string_view text, const std::vector<std::string>& contents);

}  // namespace fastbert::checks
