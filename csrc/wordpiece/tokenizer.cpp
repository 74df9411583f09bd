#include "wordpiece/tokenizer.h"

#include <algorithm>
#include <utility>

#include "wordpiece/chunk_reader.h"
#include "wordpiece/encoder.h"
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

}  // namespace

WorkspacePool::~WorkspacePool() {
    for (std::atomic<Workspace*>& slot : waiting_) delete slot.load();
}

std::unique_ptr<Workspace> WorkspacePool::take() {
    for (std::atomic<Workspace*>& slot : waiting_) {
        if (slot.load(std::memory_order_relaxed) == nullptr) continue;
        if (Workspace* const taken = slot.exchange(nullptr)) return std::unique_ptr<Workspace>(taken);
    }
    return nullptr;
}

void WorkspacePool::give_back(std::unique_ptr<Workspace> workspace) {
    for (std::atomic<Workspace*>& slot : waiting_) {
        Workspace* none = nullptr;
        if (slot.compare_exchange_strong(none, workspace.get())) {
            (void)workspace.release();
            return;
        }
    }
}

Tokenizer::Tokenizer(std::vector<std::string> tokens, const std::vector<AddedToken>& added, bool split_special,
                     std::int32_t unknown_id, const NormalizerOptions& options, Scan scan)
    : tokens_(std::move(tokens)),
      unknown_id_(unknown_id),
      tables_(options),
      raw_tokens_(chosen(added, options, false), split_special),
      normalized_tokens_(chosen(added, options, true), split_special),
      matcher_(tokens_),
      scan_(scan) {
    piece_bytes_.reserve(tokens_.size());
    for (const std::string& token : tokens_) {
        const std::size_t mark = token.starts_with("##") ? 2 : 0;
        piece_bytes_.push_back(static_cast<std::uint32_t>(token.size() - mark));
    }
    pool_.give_back(make_workspace());
}

std::unique_ptr<Workspace> Tokenizer::take_workspace() const {
    std::unique_ptr<Workspace> workspace = pool_.take();
    return workspace ? std::move(workspace) : make_workspace();
}

// A workspace whose cache holds the vocabulary's whole words. Vocabularies list frequent words first, so these get the
// entries that are probed first.
std::unique_ptr<Workspace> Tokenizer::make_workspace() const {
    auto workspace = std::make_unique<Workspace>();
    ChunkReader reader(*this, workspace->pieces);
    std::array<std::uint8_t, ChunkCache::kLongBytes + 1> chunk{};
    for (const std::string& token : tokens_) {
        if (token.size() > ChunkCache::kLongBytes || !is_chunk(token)) continue;
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
bool Tokenizer::is_chunk(std::string_view token) const {
    const auto at = [&token](std::size_t i) { return static_cast<std::uint8_t>(token[i]); };
    if (token.size() == 1 && tables_.kinds[at(0)] == NormalizerTables::Kind::kPunctuation) return true;
    for (std::size_t i = 0; i < token.size(); ++i) {
        const bool changes = tables_.options.lower_case && at(i) >= 'A' && at(i) <= 'Z';
        if (changes || tables_.is_boundary(at(i))) return false;
    }
    return !token.empty();
}

void Tokenizer::encode(std::span<const std::string_view> texts, std::size_t limit, Workspace& workspace,
                       Buffer<std::int32_t>& ids, std::int64_t* ends) const {
    Encoder<false>(*this, limit, workspace, ids).encode_rows(texts, ends);
}

void Tokenizer::encode_with_special_tokens(std::span<const std::string_view> texts, std::size_t limit,
                                           std::int32_t begin_id, std::int32_t end_id, Workspace& workspace,
                                           Buffer<std::int32_t>& ids, std::int64_t* ends) const {
    Encoder<false> encoder(*this, limit == kNoLimit ? kNoLimit : limit - std::min<std::size_t>(limit, 2), workspace, ids);
    encoder.wrap(begin_id, end_id);
    encoder.encode_rows(texts, ends);
}

void Tokenizer::encode_aligned(std::span<const std::string_view> texts, std::size_t limit, Workspace& workspace,
                               TokenColumns& tokens, std::int64_t* ends) const {
    Encoder<true>(*this, limit, workspace, tokens).encode_rows(texts, ends);
}

std::vector<std::pair<std::size_t, std::string>> Tokenizer::added_strings(std::string_view text) const {
    std::vector<std::pair<std::size_t, std::string>> strings;
    Buffer<std::int32_t> ids;
    std::int64_t end = 0;
    std::unique_ptr<Workspace> workspace = take_workspace();
    Encoder<false> encoder(*this, kNoLimit, *workspace, ids);
    encoder.keep_strings(strings);
    encoder.encode_rows({&text, 1}, &end);
    give_back(std::move(workspace));
    return strings;
}

}  // namespace fastbert::wordpiece
