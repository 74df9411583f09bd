#include "checks.h"
#include "draws.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "tokenizer/batch.h"
#include "wordpiece/normalized_text.h"
#include "wordpiece/tokenizer.h"

namespace fastbert::checks {
namespace {

using namespace tokenizer;
using namespace wordpiece;

constexpr unsigned kOptions = 8;
constexpr std::int32_t kUnknown = 1;

// Pieces of every script class, many of them beginnings of each other, so that matches often have to be taken back.
const std::vector<std::string>& vocabulary() {
    static const std::vector<std::string> tokens = [] {
        std::vector<std::string> result = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
        std::set<std::string> seen(result.begin(), result.end());
        const auto add = [&](const std::string& token) {
            if (seen.insert(token).second) result.push_back(token);
        };
        for (char c = 33; c < 127; ++c) {
            add(std::string(1, c));
            if ((c >= 'a' && c <= 'p') || c == '1') add(std::string("##") + c);
        }
        for (const char* piece : {"ab", "abc", "abcd", "abcde", "abab", "the", "ing", "bcde", "de", "aaa", "aaaaa", "é",
                                  "éa", "ß", "中", "中国", "ᄒ", "ᅡ", "ᆫ", "한", "и", "ий", "я", "\u093e", "क", "கா", "𝒳", "。",
                                  "\u0301", "\u0302", "\u0345", "i\u0307", "Ab", "É", "aaaaaaaaaaaaaaaaaaaa"}) {
            add(piece);
            add(std::string("##") + piece);
        }
        add("##");
        add("an-entry-of-more-than-sixty-three-bytes-which-no-chunk-of-a-text-can-equal");
        return result;
    }();
    return tokens;
}

const Specials& specials() {
    static const Specials specials{{vocabulary().begin(), vocabulary().begin() + 5}};
    return specials;
}

NormalizerOptions options_of(unsigned choice) { return {(choice & 1) != 0, (choice & 2) != 0, (choice & 4) != 0}; }

// The same options with each version of the scan that this processor runs, and without a scan.
Versions& subject(unsigned choice) {
    static std::map<unsigned, Versions> subjects;
    Versions& entry = subjects[choice];
    if (entry.tokenizers.empty()) {
        for (const ScanVersion& version : scan_versions()) {
            if (!version.usable) continue;
            entry.add(std::make_unique<WordPiece>(vocabulary(), specials().added(), false, kUnknown,
                                                  options_of(choice), TrimOptions{}, version.scan));
        }
        // Tokens that no text holds make others go the slow way, over the normalised text as a whole: for every text,
        // or for those with "<" or a character that becomes one.
        for (const char* content : {"\U000E0FFF\U000E0FFE\U000E0FFF", "<\U000E0FFF\U000E0FFE"}) {
            std::vector<AddedToken> added = specials().added();
            added.push_back({.content = content, .id = 5, .normalized = true});
            entry.add(std::make_unique<WordPiece>(vocabulary(), added, false, kUnknown, options_of(choice)));
        }
    }
    return entry;
}

using Ids = std::map<std::string, std::int32_t, std::less<>>;

Ids ids_of(const std::vector<std::string>& tokens) {
    Ids ids;
    for (std::size_t id = 0; id < tokens.size(); ++id) ids[tokens[id]] = static_cast<std::int32_t>(id);
    return ids;
}

// Greedy longest match with a map, one word at a time.
class PlainSink {
public:
    PlainSink(const Ids& ids, Tokens& tokens, std::uint32_t position, std::uint32_t word)
        : ids_(ids), tokens_(tokens), position_(position), word_(word) {}
    void word(const AlignedWord& word) {
        Tokens pieces;
        const std::string text(word.view());
        for (std::size_t at = 0, character = 0; at < text.size();) {
            std::size_t size = text.size() - at;
            auto match = ids_.end();
            for (; size > 0; --size) {
                match = ids_.find((at > 0 ? "##" : "") + text.substr(at, size));
                if (match != ids_.end()) break;
            }
            if (match == ids_.end() || word.too_long()) {
                pieces = {{kUnknown, position_ + word.sources[0], position_ + word.last_source + 1, word_}};
                break;
            }
            const std::size_t first = character;
            for (std::size_t i = at; i < at + size; ++i) character += (text[i] & 0xC0) != 0x80;
            pieces.push_back({match->second, position_ + word.sources[first], position_ + word.sources[character - 1] + 1, word_});
            at += size;
        }
        tokens_.insert(tokens_.end(), pieces.begin(), pieces.end());
        ++word_;
    }
    bool full() const { return false; }
    std::uint32_t next_word() const { return word_; }

private:
    const Ids& ids_;
    Tokens& tokens_;
    std::uint32_t position_, word_;
};

Tokens plain(const NormalizerTables& tables, const Ids& ids, std::string_view text) {
    const auto encode = [&](std::string_view segment, std::uint32_t position, std::uint32_t& word, Tokens& tokens) {
        PlainSink sink(ids, tokens, position, word);
        WordSplitter<PlainSink, true>(tables, sink).split(segment);
        word = sink.next_word();
    };
    return around_specials(text, specials(), encode);
}

}  // namespace

void check_wordpiece(std::string_view input) {
    if (input.empty()) return;
    static const Ids ids = ids_of(vocabulary());
    const unsigned choice = static_cast<unsigned char>(input[0]) % kOptions;
    static std::map<unsigned, NormalizerTables> tables;
    const NormalizerTables& own = tables.try_emplace(choice, options_of(choice)).first->second;
    check_versions(subject(choice), make_valid(input.substr(1)), limit_of(input[0]), choice,
                   std::bind_front(plain, std::cref(own), std::cref(ids)));
}

namespace {

// Pieces of the input, and "##" before some; special tokens come first.
std::vector<std::string> draw_vocabulary(Draws& draws) {
    std::vector<std::string> tokens(vocabulary().begin(), vocabulary().begin() + 5);
    std::set<std::string> seen(tokens.begin(), tokens.end());
    for (std::size_t count = draws.below(64); count > 0; --count) {
        const std::uint8_t size = draws.byte();
        const std::string token = (size & 128 ? "##" : "") + make_valid(draws.take(1 + size % 12));
        if (seen.insert(token).second) tokens.push_back(token);
    }
    return tokens;
}

// Tokens with all flags, some of the vocabulary.
std::vector<AddedToken> draw_added(Draws& draws, const std::vector<std::string>& tokens, const NormalizerOptions& options) {
    std::vector<AddedToken> added = specials().added();
    for (std::size_t count = draws.below(4); count > 0; --count) {
        const std::uint8_t flags = draws.byte();
        AddedToken token{.content = make_valid(draws.take(1 + draws.below(6))),
                         .id = static_cast<std::int32_t>(draws.below(tokens.size() + 3)),
                         .special = (flags & 1) != 0, .lstrip = (flags & 2) != 0, .rstrip = (flags & 4) != 0,
                         .single_word = (flags & 8) != 0, .normalized = (flags & 16) != 0};
        // As the bindings and the readers of files refuse them.
        if (token.content.empty() || (token.normalized && NormalizedText(token.content, options).bytes().empty())) continue;
        added.push_back(std::move(token));
    }
    return added;
}

}  // namespace

void check_vocabulary(std::string_view input) {
    Draws draws(input);
    const unsigned choice = draws.byte() % kOptions;
    const std::size_t limit = limit_of(static_cast<char>(draws.byte()));
    const std::vector<std::string> tokens = draw_vocabulary(draws);
    const NormalizerOptions options = options_of(choice);
    const std::vector<AddedToken> added = draw_added(draws, tokens, options);
    const bool has_flags = added.size() > specials().added().size();
    const std::string text = make_valid(draws.rest());
    Versions versions;
    for (const ScanVersion& version : scan_versions()) {
        if (!version.usable) continue;
        versions.add(std::make_unique<WordPiece>(tokens, added, false, kUnknown, options, TrimOptions{}, version.scan));
    }
    const Ids ids = ids_of(tokens);
    const NormalizerTables tables(options);
    const WordPiece alone(tokens, added, false, kUnknown, options);
    const auto workspace = alone.take_workspace();
    // The rules of added tokens with flags are compared with the reference in Python; here only the versions.
    const auto encode_alone = [&](std::string_view row) {
        TokenColumns columns;
        std::int64_t end = 0;
        alone.encode_aligned({&row, 1}, Tokenizer::kNoLimit, *workspace, columns, &end);
        Tokens result;
        for (std::size_t i = 0; i < columns.ids.size(); ++i) {
            result.push_back({columns.ids[i], static_cast<std::uint32_t>(columns.begins[i]),
                              static_cast<std::uint32_t>(columns.ends[i]), static_cast<std::uint32_t>(columns.words[i])});
        }
        return result;
    };
    const auto by_definition = std::bind_front(plain, std::cref(tables), std::cref(ids));
    if (has_flags) check_versions(versions, text, limit, choice, encode_alone);
    else check_versions(versions, text, limit, choice, by_definition);
}

void check_threads(std::string_view input, unsigned threads) {
    const std::string text = make_valid(input);
    std::vector<std::string_view> rows;
    // More than a run of the batch for every thread.
    while (rows.size() < 4096 || rows.size() * text.size() < std::size_t{threads} << 20) {
        for (const std::string_view line : lines_of(text)) rows.push_back(line);
    }
    const Tokenizer& tokenizer = *subject(7).tokenizers[0];
    const Sequences expected = encode_batch(tokenizer, rows, Tokenizer::kNoLimit, {}, 1);
    std::vector<std::jthread> callers;
    for (unsigned caller = 0; caller < threads; ++caller) {
        callers.emplace_back([&] {
            const Sequences got = encode_batch_aligned(tokenizer, rows, Tokenizer::kNoLimit, threads);
            const bool same = std::equal(got.tokens.ids.begin(), got.tokens.ids.end(), expected.tokens.ids.begin(),
                                         expected.tokens.ids.end()) &&
                              std::equal(got.offsets.begin(), got.offsets.end(), expected.offsets.begin(),
                                         expected.offsets.end());
            if (!same) fail("ids of threads", text, 7, 0);
        });
    }
}

}  // namespace fastbert::checks
