#include "bpe/byte_level.h"

#include <algorithm>
#include <stdexcept>

#include "bpe/chunk_reader.h"
#include "tokenizer/chunk_encoder.h"

namespace fastbert::bpe {
namespace {

std::array<std::int32_t, 256> ids_of_bytes(const std::vector<std::string>& tokens) {
    std::array<std::int32_t, 256> ids;
    ids.fill(-1);
    for (std::size_t id = 0; id < tokens.size(); ++id) {
        if (tokens[id].size() == 1) ids[static_cast<std::uint8_t>(tokens[id][0])] = static_cast<std::int32_t>(id);
    }
    // UTF-8 never has C0, C1 and those from F5 on.
    for (unsigned byte = 0; byte < 0xF5; ++byte) {
        if (ids[byte] < 0 && byte != 0xC0 && byte != 0xC1) {
            throw std::invalid_argument("the byte " + std::to_string(byte) + " is not a token");
        }
    }
    return ids;
}

// Of white space, only a space is spelled as one in the vocabulary.
tokenizer::TokenSpaces spaces_of_bytes(const std::vector<std::string>& tokens) {
    std::vector<tokenizer::Spaces> spaces;
    for (const std::string& token : tokens) {
        spaces.push_back({std::min(token.find_first_not_of(' '), token.size()),
                          token.size() - (token.find_last_not_of(' ') + 1)});
    }
    return tokenizer::TokenSpaces(spaces);
}

bool stay_apart(const std::vector<AddedToken>& added) {
    return std::all_of(added.begin(), added.end(), [](const AddedToken& token) {
        if (!token.normalized) return true;
        for (std::size_t i = 1; i + 1 < token.content.size(); ++i) {
            if (token.content[i] == ' ' && token.content[i - 1] != ' ' && token.content[i + 1] != ' ') return false;
        }
        return !token.rstrip;
    });
}

}  // namespace

ByteLevelBpe::ByteLevelBpe(const std::vector<std::string>& tokens,
                           const std::vector<std::array<std::int32_t, 3>>& merges, const std::vector<AddedToken>& added,
                           bool split_special, normalizer::Normalizer normalizer, const ByteLevelOptions& options,
                           SplitScan scan)
    : tokens_(tokens),
      spaces_(options.trim.enabled ? spaces_of_bytes(tokens_) : tokenizer::TokenSpaces()),
      merges_(merges, ids_of_bytes(tokens_)),
      raw_tokens_(normalizer::searched(added, nullptr), split_special),
      normalized_tokens_(normalizer::searched(added, &normalizer), split_special),
      tokens_stay_apart_(stay_apart(added)),
      normalizer_(std::move(normalizer)),
      options_(options),
      scan_(scan) {
    if (options_.whole_words) {
        for (std::size_t id = 0; id < tokens_.size(); ++id) words_.emplace(tokens_[id], static_cast<std::int32_t>(id));
    }
    give_back(make_workspace());
}

// A workspace whose cache holds the words of the vocabulary that are chunks of text and a single token.
std::unique_ptr<Workspace> ByteLevelBpe::make_workspace() const {
    auto workspace = std::make_unique<Workspace>();
    Reader reader(*this, *workspace);
    std::array<std::uint8_t, tokenizer::ChunkCache::kShortBytes + 1> chunk{};
    for (const std::string& token : tokens_) {
        if (token.empty() || token.size() >= chunk.size() || !unicode::is_valid_utf8(token)) continue;
        std::copy(token.begin(), token.end(), chunk.begin());
        if (first_chunk(chunk.data(), chunk.data() + token.size()) != token.size()) continue;
        reader.read(chunk.data(), chunk.data(), token.size());
        if (workspace->pieces.size() == 1) workspace->cache.insert(chunk.data(), token.size(), workspace->pieces, true);
    }
    return workspace;
}

void ByteLevelBpe::scan(const std::uint8_t* text, std::size_t size, bool last, tokenizer::Window& window) const {
    // Whole characters.
    while (!last && size > 0 && (text[size] & 0xC0) == 0x80) --size;
    scan_(text, size, window);
}

// The last chunk may go on, and what is one depends on up to three bytes behind it ("'l" of "'ll").
std::size_t ByteLevelBpe::settle(tokenizer::Window& window, std::size_t size) const {
    constexpr std::size_t kBehind = 3 + unicode::kMaxUtf8Bytes;
    std::size_t certain = 0;
    while (window.count > 0 && window.starts[window.count] + kBehind > size) certain = window.starts[--window.count];
    return window.count == 0 ? 0 : certain == 0 ? size : certain;
}

void ByteLevelBpe::encode(std::span<const std::string_view> texts, std::size_t limit,
                          const tokenizer::Wrapping& wrapping, Workspace& workspace, Buffer<std::int32_t>& ids,
                          std::int64_t* ends) const {
    tokenizer::ChunkEncoder<ByteLevelBpe, false> encoder(*this, limit, workspace, ids);
    encoder.wrap(wrapping);
    encoder.encode_rows(texts, ends);
}

void ByteLevelBpe::encode_aligned(std::span<const std::string_view> texts, std::size_t limit, Workspace& workspace,
                                  TokenColumns& tokens, std::int64_t* ends) const {
    tokenizer::ChunkEncoder<ByteLevelBpe, true>(*this, limit, workspace, tokens).encode_rows(texts, ends);
}

tokenizer::AddedStrings ByteLevelBpe::added_strings(std::string_view text) const {
    return tokenizer::added_strings(*this, text);
}

}  // namespace fastbert::bpe
