// BERT's tokenizer: raw text in, ids of WordPiece tokens out.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/offset_trimming.h"
#include "tokenizer/tokenizer.h"
#include "wordpiece/piece_matcher.h"
#include "wordpiece/scanner.h"
#include "wordpiece/token_needles.h"
#include "wordpiece/word_splitter.h"

namespace fastbert::wordpiece {

using tokenizer::AddedToken;
using tokenizer::AddedTokens;
using tokenizer::Piece;
using tokenizer::TokenColumns;
using tokenizer::Workspace;

class WordPiece final : public tokenizer::Tokenizer {
public:
    // `tokens`: the vocabulary, by id, without duplicates. `added`: tokens recognised before text is split into words;
    // their ids may be inside or after the vocabulary, and no content may be empty, normalised or not. With
    // `split_special`, special tokens are treated as text.
    WordPiece(std::vector<std::string> tokens, const std::vector<AddedToken>& added, bool split_special,
              std::int32_t unknown_id, const NormalizerOptions& options, const tokenizer::TrimOptions& trim = {},
              Scan scan = fastest_scan());

    void encode(std::span<const std::string_view> texts, std::size_t limit, const tokenizer::Wrapping& wrapping,
                Workspace& workspace, Buffer<std::int32_t>& ids, std::int64_t* ends) const override;
    void encode_aligned(std::span<const std::string_view> texts, std::size_t limit, Workspace& workspace,
                        TokenColumns& tokens, std::int64_t* ends) const override;
    tokenizer::AddedStrings added_strings(std::string_view text) const override;

    // Return the words of `text` as looked up in the vocabulary; added tokens are not recognised.
    template <class Sink>
    void split_words(std::string_view text, Sink& sink) const {
        WordSplitter<Sink>(tables_, sink).split(text);
    }

    // For the encoder; see chunk_encoder.h.
    static constexpr bool kTiles = false, kReadsDirectly = true;
    class Reader;
    const AddedTokens& raw_tokens() const { return raw_tokens_; }
    bool stages(std::string_view staged) const {
        return !raw_tokens_.occurs_in(staged) && !needles_.may_occur_in(staged);
    }
    bool stages_prefix() const { return false; }
    void scan(const std::uint8_t* text, std::size_t size, bool, tokenizer::Window& window) const {
        scan_(text, size, tables_.options.lower_case, window);
    }
    std::size_t settle(tokenizer::Window& window, std::size_t size) const;
    const std::uint8_t* chunk_end(const std::uint8_t* text, const std::uint8_t* end) const;

private:
    bool is_chunk(std::string_view token) const;
    std::unique_ptr<Workspace> make_workspace() const override;

    std::vector<std::string> tokens_;
    std::vector<std::uint32_t> piece_bytes_;  // of each token, without its "##"
    std::int32_t unknown_id_;
    NormalizerTables tables_;
    tokenizer::TrimOptions trim_;
    tokenizer::TokenSpaces spaces_;  // if offsets are trimmed
    AddedTokens raw_tokens_, normalized_tokens_;
    TokenNeedles needles_;  // of normalized_tokens_
    PieceMatcher matcher_;
    Scan scan_;
};

}  // namespace fastbert::wordpiece
