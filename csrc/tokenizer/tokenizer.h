// A tokenizer of any kind: raw text in, token ids out. Immutable after construction, so any number of threads can share
// one.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/buffer.h"
#include "tokenizer/chunk_cache.h"
#include "tokenizer/window.h"

namespace fastbert::tokenizer {

// Tokens and their alignment, by column: the range of code points in the text, and the index of the word (of the text
// before it is cut into pieces; an added token counts as one).
struct TokenColumns {
    Buffer<std::int32_t> ids, begins, ends, words;
};

// What a kind of tokenizer keeps between calls beside the cache.
struct Scratch {
    virtual ~Scratch() = default;
};

// The per-thread state of encoding; its cache adapts to the text's words.
struct Workspace {
    ChunkCache cache;
    Window window;
    std::vector<Piece> pieces;
    std::array<std::uint32_t, kWindow> chunk_counts;  // by chunk of staged texts: the tokens up to its end
    std::array<std::uint8_t, kWindow> stage;    // short texts, side by side
    std::unique_ptr<Scratch> scratch;
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

// Ids before and behind those of each text.
struct Wrapping {
    std::span<const std::int32_t> before{}, behind{};

    std::size_t size() const { return before.size() + behind.size(); }
};

// Tokens by their index in a result, as spelled in the text.
using AddedStrings = std::vector<std::pair<std::size_t, std::string>>;

class Tokenizer {
public:
    static constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

    virtual ~Tokenizer() = default;

    // Append the ids of each text (valid UTF-8), wrapped in others that count towards the limit, at most `limit` per
    // text, and write the output's size after each.
    virtual void encode(std::span<const std::string_view> texts, std::size_t limit, const Wrapping& wrapping,
                        Workspace& workspace, Buffer<std::int32_t>& ids, std::int64_t* ends) const = 0;
    // Like encode(), with alignment and without wrapping.
    virtual void encode_aligned(std::span<const std::string_view> texts, std::size_t limit, Workspace& workspace,
                                TokenColumns& tokens, std::int64_t* ends) const = 0;
    // Return the tokens of a text whose spelling is not that of the vocabulary: added tokens, each with the white space
    // it consumed, and unknown ones where the text counts as their spelling.
    virtual AddedStrings added_strings(std::string_view text) const = 0;

    // A workspace for a thread's calls of encode().
    std::unique_ptr<Workspace> take_workspace() const {
        std::unique_ptr<Workspace> workspace = pool_.take();
        return workspace ? std::move(workspace) : make_workspace();
    }
    void give_back(std::unique_ptr<Workspace> workspace) const { pool_.give_back(std::move(workspace)); }

protected:
    virtual std::unique_ptr<Workspace> make_workspace() const = 0;

private:
    mutable WorkspacePool pool_;
};

}  // namespace fastbert::tokenizer
