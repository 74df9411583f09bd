// BERT's tokenizer: raw text in, token ids out. Immutable after construction, so any number of threads can share one.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/buffer.h"
#include "wordpiece/added_tokens.h"
#include "wordpiece/chunk_cache.h"
#include "wordpiece/piece_matcher.h"
#include "wordpiece/scanner.h"
#include "wordpiece/word_splitter.h"

namespace fastbert::wordpiece {

// Tokens and their alignment, by column: the range of code points in the text, and the index of the word (of the text
// before WordPiece; an added token counts as one).
struct TokenColumns {
    Buffer<std::int32_t> ids, begins, ends, words;
};

// The per-thread state of encoding; its cache adapts to the text's words.
struct Workspace {
    ChunkCache cache;
    Window window;
    std::vector<Piece> pieces;
    // By chunk of the window: its slot in the cache, then the number of tokens up to its end.
    std::array<std::uint32_t, kWindow> chunk_values;
    std::array<std::uint8_t, kWindow> stage;    // short texts, side by side
};

// A pool of idle workspaces. Lock-free, so that a process forked at any moment can continue: it may lose workspaces in
// use, and creates new ones.
class WorkspacePool {
public:
    ~WorkspacePool();
    std::unique_ptr<Workspace> take();  // null if there is none
    void give_back(std::unique_ptr<Workspace> workspace);

private:
    std::array<std::atomic<Workspace*>, 64> waiting_{};
};

class Tokenizer {
public:
    static constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

    // `tokens`: the vocabulary, by id, without duplicates. `added`: tokens recognised before text is split into words;
    // their ids may be inside or after the vocabulary, and no content may be empty, normalised or not. With
    // `split_special`, special tokens are treated as text.
    Tokenizer(std::vector<std::string> tokens, const std::vector<AddedToken>& added, bool split_special,
              std::int32_t unknown_id, const NormalizerOptions& options, Scan scan = fastest_scan());

    // Append the ids of each text (valid UTF-8), at most `limit` per text, and write the output's size after each.
    void encode(std::span<const std::string_view> texts, std::size_t limit, Workspace& workspace,
                Buffer<std::int32_t>& ids, std::int64_t* ends) const;
    // Like encode(), with `begin_id` before and `end_id` after the ids of each text; these two count towards the limit.
    void encode_with_special_tokens(std::span<const std::string_view> texts, std::size_t limit, std::int32_t begin_id,
                                    std::int32_t end_id, Workspace& workspace, Buffer<std::int32_t>& ids,
                                    std::int64_t* ends) const;
    // Like encode(), with alignment.
    void encode_aligned(std::span<const std::string_view> texts, std::size_t limit, Workspace& workspace,
                        TokenColumns& tokens, std::int64_t* ends) const;

    // Return the added tokens in a text: each one's index among the tokens, and its spelling, including the white space
    // it consumed.
    std::vector<std::pair<std::size_t, std::string>> added_strings(std::string_view text) const;

    // A workspace for a thread's calls of encode().
    std::unique_ptr<Workspace> take_workspace() const;
    void give_back(std::unique_ptr<Workspace> workspace) const { pool_.give_back(std::move(workspace)); }

    // Return the words of `text` as looked up in the vocabulary; added tokens are not recognised.
    template <class Sink>
    void split_words(std::string_view text, Sink& sink) const {
        WordSplitter<Sink>(tables_, sink).split(text);
    }

private:
    template <bool kAligned>
    class Encoder;
    class ChunkReader;

    bool is_chunk(std::string_view token) const;
    std::unique_ptr<Workspace> make_workspace() const;

    std::vector<std::string> tokens_;
    std::vector<std::uint32_t> piece_bytes_;  // of each token, without its "##"
    std::int32_t unknown_id_;
    NormalizerTables tables_;
    AddedTokens raw_tokens_, normalized_tokens_;
    PieceMatcher matcher_;
    Scan scan_;
    mutable WorkspacePool pool_;
};

}  // namespace fastbert::wordpiece
