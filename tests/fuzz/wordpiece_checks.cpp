#include "checks.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "tokenizer/batch.h"
#include "unicode/utf8.h"
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

std::vector<AddedToken> specials() {
    std::vector<AddedToken> tokens;
    for (std::int32_t id = 0; id < 5; ++id) {
        tokens.push_back({.content = vocabulary()[static_cast<std::size_t>(id)], .id = id, .special = true});
    }
    return tokens;
}

NormalizerOptions options_of(unsigned choice) { return {(choice & 1) != 0, (choice & 2) != 0, (choice & 4) != 0}; }

// The same options with each version of the scan that this processor runs, and without a scan.
struct Subject {
    std::vector<std::unique_ptr<WordPiece>> tokenizers;
    std::vector<std::unique_ptr<Workspace>> workspaces;  // kept, so that the caches fill
};

Subject& subject(unsigned choice) {
    static std::map<unsigned, Subject> subjects;
    Subject& entry = subjects[choice];
    if (entry.tokenizers.empty()) {
        for (const ScanVersion& version : scan_versions()) {
            if (!version.usable) continue;
            entry.tokenizers.push_back(std::make_unique<WordPiece>(
                vocabulary(), specials(), false, kUnknown, options_of(choice), TrimOptions{}, version.scan));
            entry.workspaces.push_back(entry.tokenizers.back()->take_workspace());
        }
        // Tokens that no text holds make others go the slow way, over the normalised text as a whole: for every text,
        // or for those with "<" or a character that becomes one.
        for (const char* content : {"\U000E0FFF\U000E0FFE\U000E0FFF", "<\U000E0FFF\U000E0FFE"}) {
            std::vector<AddedToken> added = specials();
            added.push_back({.content = content, .id = 5, .normalized = true});
            entry.tokenizers.push_back(
                std::make_unique<WordPiece>(vocabulary(), added, false, kUnknown, options_of(choice)));
            entry.workspaces.push_back(entry.tokenizers.back()->take_workspace());
        }
    }
    return entry;
}

// Greedy longest match with a map, one word at a time.
class PlainSink {
public:
    PlainSink(Tokens& tokens, std::uint32_t position, std::uint32_t word) : tokens_(tokens), position_(position), word_(word) {
        for (std::size_t id = 0; id < vocabulary().size(); ++id) ids_[vocabulary()[id]] = static_cast<std::int32_t>(id);
    }
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
    Tokens& tokens_;
    std::uint32_t position_, word_;
    std::map<std::string, std::int32_t, std::less<>> ids_;
};

std::uint32_t characters(std::string_view text) {
    std::uint32_t count = 0;
    for (const char byte : text) count += (byte & 0xC0) != 0x80;
    return count;
}

Tokens plain(std::string_view text, const NormalizerTables& tables) {
    Tokens tokens;
    std::uint32_t position = 0, word = 0;
    while (!text.empty()) {
        std::size_t begin = std::string_view::npos, size = 0;
        std::int32_t id = -1;
        for (std::int32_t special = 0; special < 5; ++special) {
            const std::string& content = vocabulary()[static_cast<std::size_t>(special)];
            if (const std::size_t at = text.find(content); at < begin) begin = at, size = content.size(), id = special;
        }
        const std::string_view segment = text.substr(0, begin);
        PlainSink sink(tokens, position, word);
        WordSplitter<PlainSink, true>(tables, sink).split(segment);
        word = sink.next_word();
        position += characters(segment);
        if (id < 0) break;
        tokens.push_back({id, position, position + static_cast<std::uint32_t>(size), word++});
        position += static_cast<std::uint32_t>(size);
        text.remove_prefix(begin + size);
    }
    return tokens;
}

// The same ids, each row between [CLS] and [SEP].
void check_wrapped(const std::vector<std::string_view>& rows, std::size_t limit, const Buffer<std::int32_t>& ids,
                   const std::vector<std::int64_t>& ends, unsigned choice, std::size_t version) {
    static constexpr std::int32_t kBegin = 2, kEnd = 3;
    std::vector<std::int32_t> expected;
    std::vector<std::int64_t> expected_ends;
    for (std::size_t row = 0; row < rows.size(); ++row) {
        expected.push_back(kBegin);
        expected.insert(expected.end(), ids.data() + (row == 0 ? 0 : ends[row - 1]), ids.data() + ends[row]);
        expected.push_back(kEnd);
        expected_ends.push_back(static_cast<std::int64_t>(expected.size()));
    }
    Buffer<std::int32_t> got;
    std::vector<std::int64_t> got_ends(rows.size());
    const Subject& all = subject(choice);
    all.tokenizers[version]->encode(rows, limit == Tokenizer::kNoLimit ? limit : limit + 2, {{&kBegin, 1}, {&kEnd, 1}},
                                    *all.workspaces[version], got, got_ends.data());
    if (!std::equal(got.begin(), got.end(), expected.begin(), expected.end()) || got_ends != expected_ends) {
        fail("wrapped rows", rows[0], choice, version);
    }
}

void check_rows(const std::vector<std::string_view>& rows, std::size_t limit, unsigned choice) {
    const NormalizerTables tables(options_of(choice));
    Subject& all = subject(choice);
    std::vector<Tokens> expected;
    for (const std::string_view row : rows) {
        expected.push_back(plain(row, tables));
        if (expected.back().size() > limit) expected.back().resize(limit);
    }
    for (std::size_t version = 0; version < all.tokenizers.size(); ++version) {
        Buffer<std::int32_t> ids;
        TokenColumns columns;
        std::vector<std::int64_t> ends(rows.size()), aligned_ends(rows.size());
        all.tokenizers[version]->encode(rows, limit, {}, *all.workspaces[version], ids, ends.data());
        all.tokenizers[version]->encode_aligned(rows, limit, *all.workspaces[version], columns, aligned_ends.data());
        if (ends != aligned_ends) fail("row ends", rows[0], choice, version);
        check_wrapped(rows, limit, ids, ends, choice, version);
        std::size_t at = 0;
        for (std::size_t row = 0; row < rows.size(); ++row) {
            if (static_cast<std::size_t>(ends[row]) != at + expected[row].size()) fail("counts", rows[row], choice, version);
            for (const Token& token : expected[row]) {
                const Token got{columns.ids[at], static_cast<std::uint32_t>(columns.begins[at]),
                                static_cast<std::uint32_t>(columns.ends[at]), static_cast<std::uint32_t>(columns.words[at])};
                if (ids[at] != token.id) fail("ids", rows[row], choice, version);
                if (got != token) fail("positions", rows[row], choice, version);
                ++at;
            }
        }
    }
}

}  // namespace

void check_wordpiece(std::string_view input) {
    if (input.empty()) return;
    const unsigned choice = static_cast<unsigned char>(input[0]) % kOptions;
    const std::size_t limit = input[0] & 8 ? Tokenizer::kNoLimit : (static_cast<unsigned char>(input[0]) >> 4) + 1u;
    const std::string text = make_valid(input.substr(1));
    check_rows({text}, limit, choice);
    check_rows(lines_of(text), limit, choice);
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
