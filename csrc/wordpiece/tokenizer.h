// BERT's tokenizer: raw text in, token ids out. Immutable after construction, so any number of threads can share one.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/buffer.h"
#include "wordpiece/chunk_cache.h"
#include "wordpiece/piece_matcher.h"
#include "wordpiece/scanner.h"
#include "wordpiece/special_tokens.h"
#include "wordpiece/word_splitter.h"

namespace fastbert::wordpiece {

// Tokens and where they come from, column by column: the range of code points of the text, and the index of the word (of
// the text before WordPiece; a special token counts as one).
struct TokenColumns {
    Buffer<std::int32_t> ids, begins, ends, words;
};

// What one thread needs while it encodes; it gets better with use, as the cache learns the text's words.
struct Workspace {
    explicit Workspace(const ChunkCache& seeded) : cache(seeded) {}

    ChunkCache cache;
    Window window;
    std::vector<Piece> pieces;
};

// Workspaces that wait for the next call. Without locks, so that a process forked at any moment can go on: it may lose
// workspaces that were in use, and makes new ones.
class WorkspacePool {
public:
    explicit WorkspacePool(const ChunkCache& seeded) : seeded_(seeded) {}
    ~WorkspacePool();

    std::unique_ptr<Workspace> take();
    void give_back(std::unique_ptr<Workspace> workspace);

private:
    const ChunkCache& seeded_;
    std::array<std::atomic<Workspace*>, 64> waiting_{};
};

class Tokenizer {
public:
    static constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

    // `tokens`: the vocabulary, by id, without duplicates. `special_ids`: tokens recognised in raw text.
    Tokenizer(std::vector<std::string> tokens, const std::vector<std::int32_t>& special_ids, std::int32_t unknown_id,
              const NormalizerOptions& options, Scan scan = fastest_scan());

    // Appends the ids of `text` (valid UTF-8), at most `limit` of them.
    void encode(std::string_view text, std::size_t limit, Workspace& workspace, Buffer<std::int32_t>& ids) const;
    // The same, with places.
    void encode_aligned(std::string_view text, std::size_t limit, Workspace& workspace, TokenColumns& tokens) const;

    // Working memory for a thread's calls of encode().
    std::unique_ptr<Workspace> take_workspace() const { return pool_.take(); }
    void give_back(std::unique_ptr<Workspace> workspace) const { pool_.give_back(std::move(workspace)); }

    // The words of `text` as the vocabulary is looked up for them; special tokens are not recognised.
    template <class Sink>
    void split_words(std::string_view text, Sink& sink) const {
        WordSplitter<Sink>(tables_, sink).split(text);
    }

private:
    template <bool kAligned>
    class Encoder;
    class ChunkReader;

    template <bool kAligned>
    void encode_segments(std::string_view text, Encoder<kAligned>& encoder) const;
    bool is_chunk(std::string_view token) const;
    void seed();

    std::vector<std::string> tokens_;
    std::vector<std::uint32_t> piece_bytes_;  // of each token, without its "##"
    std::int32_t unknown_id_;
    NormalizerTables tables_;
    SpecialTokens specials_;
    PieceMatcher matcher_;
    Scan scan_;
    ChunkCache seeded_;  // knows the vocabulary's whole words
    mutable WorkspacePool pool_;
};

}  // namespace fastbert::wordpiece
