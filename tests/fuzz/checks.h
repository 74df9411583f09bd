// The parsers and cores that read untrusted bytes: tokenizers against plain implementations of the same rules (no windows,
// no cache, no trie, no instructions beyond C++), the others against their definitions. Shared by the fuzz targets and by
// the stand-alone program.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/tokenizer.h"

namespace fastbert::checks {

// `input` is any bytes: the first ones choose the options, the rest is made valid UTF-8. Each prints the first difference
// and aborts if there is one.
void check_wordpiece(std::string_view input);
void check_byte_level(std::string_view input);
void check_unigram(std::string_view input);

// The same with a vocabulary, merges or pieces that the input draws, too.
void check_vocabulary(std::string_view input);
void check_merges(std::string_view input);
void check_pieces(std::string_view input);

// A character map of any bytes is refused, or safe to use.
void check_charsmap(std::string_view input);

// JSON's structure and numbers, decimals as the reference reads them, and checksums at every CPU capability.
void check_json(std::string_view input);
void check_decimal(std::string_view input);
void check_crc32c(std::string_view input);

// Sentences do not depend on the pieces in which a text arrives; shards of any numbers are refused, or give samples that
// lie in them.
void check_sentences(std::string_view input);
void check_shards(std::string_view input);

struct Target {
    const char* name;
    void (*check)(std::string_view);
};
inline constexpr Target kTargets[] = {
    {"wordpiece", check_wordpiece}, {"byte_level", check_byte_level}, {"unigram", check_unigram},
    {"vocabulary", check_vocabulary}, {"merges", check_merges}, {"pieces", check_pieces}, {"charsmap", check_charsmap},
    {"json", check_json}, {"decimal", check_decimal}, {"crc32c", check_crc32c}, {"sentences", check_sentences},
    {"shards", check_shards},
};

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

// A tokenizer in several versions with the same result, and their workspaces, kept so that the caches fill.
struct Versions {
    std::vector<std::unique_ptr<tokenizer::Tokenizer>> tokenizers;
    std::vector<std::unique_ptr<tokenizer::Workspace>> workspaces;

    void add(std::unique_ptr<tokenizer::Tokenizer> version);
};

// The limit that a byte of the input chooses.
std::size_t limit_of(char byte);

// Compare all ways to encode a text, as one row and its lines as rows, with the tokens of `plain`, which are not
// truncated: with and without positions, with a limit, and between other ids.
void check_versions(const Versions& versions, const std::string& text, std::size_t limit, unsigned choice,
                    const std::function<Tokens(std::string_view)>& plain);

// Special tokens that stand for themselves in a text, with ids from `first_id` on.
struct Specials {
    std::vector<std::string> contents;
    std::int32_t first_id = 0;

    std::vector<tokenizer::AddedToken> added() const;
};
inline const std::vector<std::string> kSpecials = {"[MASK]", "<s>", "[SEP]"};

// The tokens of a text: special tokens, and between them what `encode` appends for a segment that begins at a character
// with the next word's number, which it advances.
using EncodeSegment = std::function<void(std::string_view, std::uint32_t position, std::uint32_t& word, Tokens&)>;
Tokens around_specials(std::string_view text, const Specials& specials, const EncodeSegment& encode);

}  // namespace fastbert::checks
