// Unigram, the tokenizer of XLM-RoBERTa, DeBERTa-v3, ALBERT, CamemBERT and T5: the most probable pieces of words, which
// begin with a visible space.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "normalizer/normalizer.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/tokenizer.h"
#include "unigram/pieces.h"
#include "unigram/pre_tokenizer.h"
#include "unigram/space_scan.h"

namespace fastbert::unigram {

using tokenizer::AddedToken;
using tokenizer::AddedTokens;
using tokenizer::TokenColumns;
using tokenizer::Workspace;

class Unigram final : public tokenizer::Tokenizer {
public:
    // `tokens` by id, distinct and in UTF-8, with their scores; see Pieces. `added` and `split_special` as in
    // wordpiece::WordPiece.
    Unigram(const std::vector<std::string>& tokens, std::vector<double> scores, std::int32_t unknown_id,
            std::vector<std::int32_t> byte_ids, const std::vector<AddedToken>& added, bool split_special,
            normalizer::Normalizer normalizer, PreTokenizer pre_tokenizer, SpaceScan scan = fastest_space_scan());

    void encode(std::span<const std::string_view> texts, std::size_t limit, const tokenizer::Wrapping& wrapping,
                Workspace& workspace, Buffer<std::int32_t>& ids, std::int64_t* ends) const override;
    void encode_aligned(std::span<const std::string_view> texts, std::size_t limit, Workspace& workspace,
                        TokenColumns& tokens, std::int64_t* ends) const override;
    tokenizer::AddedStrings added_strings(std::string_view text) const override;

    // For the encoder; see chunk_encoder.h.
    static constexpr bool kTiles = true, kReadsDirectly = false;
    class Reader;
    const AddedTokens& raw_tokens() const { return raw_tokens_; }
    bool stages(std::string_view staged) const;
    bool stages_prefix() const { return false; }
    void scan(const std::uint8_t* text, std::size_t size, bool, tokenizer::Window& window) const {
        scan_(text, size, spaces_, in_runs_, window);
    }
    std::size_t settle(tokenizer::Window& window, std::size_t size) const;
    const std::uint8_t* chunk_end(const std::uint8_t* text, const std::uint8_t* end) const;

private:
    std::unique_ptr<Workspace> make_workspace() const override;

    void find_spaces();
    void find_hazards();
    void find_vanishing();
    bool is_space(std::uint8_t byte) const { return byte == spaces_[0] || byte == spaces_[1] || byte == spaces_[2]; }
    bool is_hazard(char32_t point) const { return (hazards_[point / 64] >> point % 64 & 1) != 0; }
    bool is_vanishing(char32_t point) const { return (vanishing_[point / 64] >> point % 64 & 1) != 0; }
    bool is_local(std::string_view text) const { return ends_stay(text) && find_hazard(text) == text.size(); }
    bool ends_stay(std::string_view text) const;
    std::size_t find_hazard(std::string_view text) const;
    bool is_safe_cut(std::string_view text, std::size_t at) const;
    bool is_plain(std::string_view text) const;

    Pieces pieces_;
    std::int32_t unknown_id_;
    AddedTokens raw_tokens_, normalized_tokens_;
    normalizer::Normalizer normalizer_;
    // Without the removal of white space at the ends of a text, for chunks.
    normalizer::Normalizer local_normalizer_;
    PreTokenizer pre_tokenizer_;
    SpaceScan scan_;

    // Chunks: whether text may be cut before spaces, which bytes are spaces, and whether a run of them stands together.
    bool cuts_ = false, in_runs_ = false;
    SpaceBytes spaces_{' ', ' ', ' '};
    bool drops_space_ = false;  // white space is removed, or else becomes part of words
    bool strips_left_ = false, strips_right_ = false;
    // Characters beside which text must not be cut, by code point; whether any of them is beyond ASCII, or visible there.
    std::vector<std::uint64_t> hazards_;
    bool has_hazards_ = false, has_wide_hazards_ = false, has_visible_hazards_ = false;
    std::vector<std::uint64_t> vanishing_;  // characters that must not stand at the ends of a text, by code point
    bool first_matters_ = false;  // the beginning of the raw text is treated in another way

    // The usual way from a chunk to a word: `replacement_` before the characters of the chunk.
    bool is_usual_ = false;
    std::string replacement_;
    char32_t replacement_point_ = 0;
};

}  // namespace fastbert::unigram
