// Byte-level BPE, the tokenizer of GPT-2, RoBERTa and ModernBERT: the bytes of chunks that an expression cuts, merged.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bpe/merges.h"
#include "bpe/split_scan.h"
#include "normalizer/normalizer.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/offset_trimming.h"
#include "tokenizer/tokenizer.h"

namespace fastbert::bpe {

using tokenizer::AddedToken;
using tokenizer::AddedTokens;
using tokenizer::TokenColumns;
using tokenizer::Workspace;

struct ByteLevelOptions {
    bool prefix_space = false;  // put a space before text that begins without one
    tokenizer::TrimOptions trim;
    bool whole_words = false;  // a chunk in the vocabulary is one token, whatever its merges (`ignore_merges`)
};

class ByteLevelBpe final : public tokenizer::Tokenizer {
public:
    // `tokens`: the vocabulary, by id, as raw bytes; every byte must be a token. `merges`: by rank, the ids of two
    // tokens and that of the token that they make. `added` and `split_special` as in wordpiece::WordPiece.
    ByteLevelBpe(const std::vector<std::string>& tokens, const std::vector<std::array<std::int32_t, 3>>& merges,
                 const std::vector<AddedToken>& added, bool split_special, normalizer::Normalizer normalizer,
                 const ByteLevelOptions& options, SplitScan scan = fastest_split_scan());

    void encode(std::span<const std::string_view> texts, std::size_t limit, const tokenizer::Wrapping& wrapping,
                Workspace& workspace, Buffer<std::int32_t>& ids, std::int64_t* ends) const override;
    void encode_aligned(std::span<const std::string_view> texts, std::size_t limit, Workspace& workspace,
                        TokenColumns& tokens, std::int64_t* ends) const override;
    tokenizer::AddedStrings added_strings(std::string_view text) const override;

    // For the encoder; see chunk_encoder.h.
    static constexpr bool kTiles = true, kReadsDirectly = false;
    class Reader;
    const AddedTokens& raw_tokens() const { return raw_tokens_; }
    bool stages(std::string_view staged) const {
        return !raw_tokens_.occurs_in(staged) && !normalized_tokens_.occurs_in(staged) && normalizer_.is_inert(staged);
    }
    bool stages_prefix() const { return options_.prefix_space; }
    void scan(const std::uint8_t* text, std::size_t size, bool last, tokenizer::Window& window) const;
    std::size_t settle(tokenizer::Window& window, std::size_t size) const;
    const std::uint8_t* chunk_end(const std::uint8_t* text, const std::uint8_t* end) const {
        return text + first_chunk(text, end);
    }

private:
    std::unique_ptr<Workspace> make_workspace() const override;

    std::vector<std::string> tokens_;
    tokenizer::TokenSpaces spaces_;  // if offsets are trimmed
    Merges merges_;
    std::unordered_map<std::string_view, std::int32_t> words_;  // the vocabulary, if `whole_words`
    AddedTokens raw_tokens_, normalized_tokens_;
    bool tokens_stay_apart_;  // no normalized token reaches over a space between visible characters
    normalizer::Normalizer normalizer_;
    ByteLevelOptions options_;
    SplitScan scan_;
};

}  // namespace fastbert::bpe
