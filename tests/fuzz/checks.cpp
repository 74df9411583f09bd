#include "checks.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "unicode/utf8.h"

namespace fastbert::checks {

using tokenizer::TokenColumns;

std::string make_valid(std::string_view input) {
    std::string output;
    for (std::size_t i = 0; i < input.size();) {
        const auto byte = [&](std::size_t at) { return at < input.size() ? static_cast<unsigned char>(input[at]) : 0u; };
        const unsigned lead = byte(i);
        const std::size_t size = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
        bool valid = size > 0;
        for (std::size_t j = 1; j < size; ++j) valid = valid && (byte(i + j) & 0xC0) == 0x80;
        if (valid && size == 3) valid = !(lead == 0xE0 && byte(i + 1) < 0xA0) && !(lead == 0xED && byte(i + 1) > 0x9F);
        if (valid && size == 4) valid = !(lead == 0xF0 && byte(i + 1) < 0x90) && !(lead == 0xF4 && byte(i + 1) > 0x8F);
        if (valid) output.append(input.substr(i, size));
        else output += "\uFFFD";
        i += valid ? size : 1;
    }
    return output;
}

std::vector<std::string_view> lines_of(std::string_view text) {
    std::vector<std::string_view> lines;
    for (std::size_t at = 0; at <= text.size();) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        lines.push_back(text.substr(at, end - at));
        at = end + 1;
    }
    return lines;
}

void fail(const char* what, std::string_view text, unsigned choice, std::size_t version) {
    std::fprintf(stderr, "%s differ for options %u, scan %zu, text", what, choice, version);
    for (const char byte : text.substr(0, 2000)) std::fprintf(stderr, " %02x", static_cast<unsigned char>(byte));
    std::fputc('\n', stderr);
    std::abort();
}

std::size_t limit_of(char byte) {
    return byte & 8 ? tokenizer::Tokenizer::kNoLimit : (static_cast<unsigned char>(byte) >> 4) + 1u;
}

void Versions::add(std::unique_ptr<tokenizer::Tokenizer> version) {
    workspaces.push_back(version->take_workspace());
    tokenizers.push_back(std::move(version));
}

namespace {

// All ways to encode rows, against the tokens of each.
void check_rows(const tokenizer::Tokenizer& subject, tokenizer::Workspace& workspace,
                const std::vector<std::string_view>& rows, const std::vector<Tokens>& expected, std::size_t limit,
                unsigned choice, std::size_t version) {
    static constexpr std::int32_t kBegin = 1'000'000, kEnd = 1'000'001;
    Buffer<std::int32_t> ids, wrapped;
    TokenColumns columns;
    std::vector<std::int64_t> ends(rows.size()), wrapped_ends(rows.size()), aligned_ends(rows.size());
    const std::size_t wrapped_limit = limit == tokenizer::Tokenizer::kNoLimit ? limit : limit + 2;
    subject.encode(rows, limit, {}, workspace, ids, ends.data());
    subject.encode(rows, wrapped_limit, {{&kBegin, 1}, {&kEnd, 1}}, workspace, wrapped, wrapped_ends.data());
    subject.encode_aligned(rows, limit, workspace, columns, aligned_ends.data());
    if (ends != aligned_ends) fail("row ends", rows[0], choice, version);
    std::size_t at = 0;
    for (std::size_t row = 0; row < rows.size(); ++row) {
        const std::size_t count = std::min(expected[row].size(), limit);
        if (static_cast<std::size_t>(ends[row]) != at + count) fail("counts", rows[row], choice, version);
        const std::size_t shift = 2 * row + 1;  // ids of wrapped rows before the first of this one
        if (static_cast<std::size_t>(wrapped_ends[row]) != at + count + shift + 1) fail("wrapped counts", rows[row], choice, version);
        if (wrapped[at + shift - 1] != kBegin || wrapped[at + shift + count] != kEnd) fail("ends", rows[row], choice, version);
        for (std::size_t i = 0; i < count; ++i, ++at) {
            const Token& token = expected[row][i];
            const Token got{columns.ids[at], static_cast<std::uint32_t>(columns.begins[at]),
                            static_cast<std::uint32_t>(columns.ends[at]), static_cast<std::uint32_t>(columns.words[at])};
            if (ids[at] != token.id || wrapped[at + shift] != token.id) fail("ids", rows[row], choice, version);
            if (got != token) fail("positions", rows[row], choice, version);
        }
    }
}

}  // namespace

void check_versions(const Versions& versions, const std::string& text, std::size_t limit, unsigned choice,
                    const std::function<Tokens(std::string_view)>& plain) {
    for (const std::vector<std::string_view>& rows : {std::vector<std::string_view>{text}, lines_of(text)}) {
        std::vector<Tokens> expected;
        for (const std::string_view row : rows) expected.push_back(plain(row));
        for (std::size_t version = 0; version < versions.tokenizers.size(); ++version) {
            check_rows(*versions.tokenizers[version], *versions.workspaces[version], rows, expected, limit, choice,
                       version);
        }
    }
}

std::vector<tokenizer::AddedToken> Specials::added() const {
    std::vector<tokenizer::AddedToken> tokens;
    for (const std::string& content : contents) {
        const auto id = first_id + static_cast<std::int32_t>(tokens.size());
        tokens.push_back({.content = content, .id = id, .special = true});
    }
    return tokens;
}

Tokens around_specials(std::string_view text, const Specials& specials, const EncodeSegment& encode) {
    Tokens tokens;
    std::uint32_t position = 0, word = 0;
    while (!text.empty()) {
        std::size_t begin = std::string_view::npos, size = 0;
        std::int32_t id = -1;
        for (std::size_t i = 0; i < specials.contents.size(); ++i) {
            const std::string& content = specials.contents[i];
            if (const std::size_t at = text.find(content); at < begin) {
                begin = at, size = content.size(), id = specials.first_id + static_cast<std::int32_t>(i);
            }
        }
        const std::string_view segment = text.substr(0, begin);
        encode(segment, position, word, tokens);
        position += static_cast<std::uint32_t>(unicode::count_characters(segment));
        if (id < 0) break;
        tokens.push_back({id, position, position + static_cast<std::uint32_t>(size), word++});
        position += static_cast<std::uint32_t>(size);
        text.remove_prefix(begin + size);
    }
    return tokens;
}

}  // namespace fastbert::checks
