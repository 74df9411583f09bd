#include "wordpiece/tokenizer.h"

#include <algorithm>
#include <utility>

#include "tokenizer/chunk_encoder.h"
#include "wordpiece/chunk_reader.h"
#include "wordpiece/normalized_text.h"

namespace fastbert::wordpiece {
namespace {

// The tokens searched in normalised text, with normalised contents, or those searched in raw text.
std::vector<AddedToken> chosen(const std::vector<AddedToken>& tokens, const NormalizerOptions& options,
                               bool normalized) {
    std::vector<AddedToken> result;
    for (const AddedToken& token : tokens) {
        if (token.normalized != normalized) continue;
        result.push_back(token);
        if (normalized) result.back().content = NormalizedText(token.content, options).bytes();
    }
    return result;
}

tokenizer::TokenSpaces spaces_of_tokens(const std::vector<std::string>& tokens) {
    std::vector<tokenizer::Spaces> spaces;
    for (const std::string& token : tokens) spaces.push_back(tokenizer::spaces_of(token));
    return tokenizer::TokenSpaces(spaces);
}

}  // namespace

WordPiece::WordPiece(std::vector<std::string> tokens, const std::vector<AddedToken>& added, bool split_special,
                     std::int32_t unknown_id, const NormalizerOptions& options, const tokenizer::TrimOptions& trim,
                     Scan scan)
    : tokens_(std::move(tokens)),
      unknown_id_(unknown_id),
      tables_(options),
      trim_(trim),
      spaces_(trim.enabled ? spaces_of_tokens(tokens_) : tokenizer::TokenSpaces()),
      raw_tokens_(chosen(added, options, false), split_special),
      normalized_tokens_(chosen(added, options, true), split_special),
      needles_(chosen(added, options, true), options),
      matcher_(tokens_),
      scan_(scan) {
    piece_bytes_.reserve(tokens_.size());
    for (const std::string& token : tokens_) {
        const std::size_t mark = token.starts_with("##") ? 2 : 0;
        piece_bytes_.push_back(static_cast<std::uint32_t>(token.size() - mark));
    }
    give_back(make_workspace());
}

// A workspace whose cache holds the vocabulary's whole words. Vocabularies list frequent words first, so these get the
// entries that are probed first.
std::unique_ptr<Workspace> WordPiece::make_workspace() const {
    auto workspace = std::make_unique<Workspace>();
    Reader reader(*this, *workspace);
    std::array<std::uint8_t, tokenizer::ChunkCache::kLongBytes + 1> chunk{};
    for (const std::string& token : tokens_) {
        if (token.size() > tokenizer::ChunkCache::kLongBytes || !is_chunk(token)) continue;
        std::copy(token.begin(), token.end(), chunk.begin());
        if (tables_.keeps_as_word(token)) {
            // Such a word is a single piece.
            const Piece whole{static_cast<std::int32_t>(&token - tokens_.data()), 0,
                              static_cast<std::uint32_t>(count_characters(token)), 0};
            workspace->pieces.assign(1, whole);
        } else {
            reader.read(chunk.data(), chunk.data(), token.size());
        }
        workspace->cache.insert(chunk.data(), token.size(), workspace->pieces, true);
    }
    return workspace;
}

// Return true if the scan can produce this chunk.
bool WordPiece::is_chunk(std::string_view token) const {
    const auto at = [&token](std::size_t i) { return static_cast<std::uint8_t>(token[i]); };
    if (token.size() == 1 && tables_.kinds[at(0)] == NormalizerTables::Kind::kPunctuation) return true;
    for (std::size_t i = 0; i < token.size(); ++i) {
        const bool changes = tables_.options.lower_case && at(i) >= 'A' && at(i) <= 'Z';
        if (changes || tables_.is_boundary(at(i))) return false;
    }
    return !token.empty();
}

// Without the last chunk if it may continue after the window.
std::size_t WordPiece::settle(tokenizer::Window& window, std::size_t size) const {
    if (window.count == 0 || window.lasts[window.count - 1] != size - 1u) return size;
    return window.starts[--window.count];
}

const std::uint8_t* WordPiece::chunk_end(const std::uint8_t* text, const std::uint8_t* end) const {
    return std::find_if(text + 1, end, [this](std::uint8_t byte) { return tables_.is_boundary(byte); });
}

void WordPiece::encode(std::span<const std::string_view> texts, std::size_t limit, const tokenizer::Wrapping& wrapping,
                       Workspace& workspace, Buffer<std::int32_t>& ids, std::int64_t* ends) const {
    tokenizer::ChunkEncoder<WordPiece, false> encoder(*this, limit, workspace, ids);
    encoder.wrap(wrapping);
    encoder.encode_rows(texts, ends);
}

void WordPiece::encode_aligned(std::span<const std::string_view> texts, std::size_t limit, Workspace& workspace,
                               TokenColumns& tokens, std::int64_t* ends) const {
    tokenizer::ChunkEncoder<WordPiece, true>(*this, limit, workspace, tokens).encode_rows(texts, ends);
}

tokenizer::AddedStrings WordPiece::added_strings(std::string_view text) const {
    return tokenizer::added_strings(*this, text);
}

}  // namespace fastbert::wordpiece
