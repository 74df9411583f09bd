// From texts to tokens through windows, chunks and the cache. Longer than 400 lines: one class whose hot loop is inlined
// through all of its steps and shares their state.
//
// `Kind` is a tokenizer, which decides what a chunk is and what its tokens are:
//
//     static constexpr bool kTiles;     // chunks cover a window without gaps, and kSeparator is one of its own
//     static constexpr bool kReadsDirectly;  // append_directly() exists: ids of a chunk without alignment
//     const AddedTokens& raw_tokens() const;      // recognised in raw text
//     bool stages(std::string_view staged) const; // the texts of a window need no treatment as a whole
//     bool stages_prefix() const;       // a text that begins without a space is staged behind one
//     void scan(const std::uint8_t* text, std::size_t size, bool last, Window& window) const;
//     std::size_t settle(Window& window, std::size_t size) const;  // see encode_window()
//     const std::uint8_t* chunk_end(const std::uint8_t* text, const std::uint8_t* end) const;  // of a long first chunk
//     class Reader {                    // per call; fills workspace.pieces with the tokens of a chunk
//         Reader(const Kind& kind, Workspace& workspace);
//         template <class Encoder> void encode_segment(Encoder& encoder, std::string_view text, bool is_first);
//         void read(const std::uint8_t* raw, const std::uint8_t* folded, std::size_t size);
//         void read_giant(const std::uint8_t* raw, std::size_t size);  // longer than a window
//         template <class Encoder> bool append_directly(Encoder& encoder, const std::uint8_t* raw, std::size_t size);
//         void keep_strings(AddedStrings& strings);  // record tokens whose spelling is that of the text
//         void note_match(std::size_t index, std::string_view spelling);  // aligned: an added token
//         template <class Encoder> void finish_row(Encoder& encoder, std::size_t first, std::size_t end);  // aligned
//     };
#pragma once
#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

#include "tokenizer/added_tokens.h"
#include "tokenizer/tokenizer.h"
#include "unicode/utf8.h"

namespace fastbert::tokenizer {

using unicode::bytes_of;
using unicode::chars;
using unicode::count_characters;

// Inline: without a target flag, std::popcount is a function call.
inline std::size_t count_bits(std::uint64_t bits) {
    if (bits == 0) return 0;
    bits -= bits >> 1 & 0x5555555555555555U;
    bits = (bits & 0x3333333333333333U) + (bits >> 2 & 0x3333333333333333U);
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F0F0F0F0FU;
    return bits * 0x0101010101010101U >> 56;
}

// Encode texts, window by window, chunk by chunk. Without kIsAligned, only ids are made.
template <class Kind, bool kIsAligned>
class ChunkEncoder {
public:
    static constexpr bool kAligned = kIsAligned;
    using Output = std::conditional_t<kAligned, TokenColumns, Buffer<std::int32_t>>;

    ChunkEncoder(const Kind& kind, std::size_t limit, Workspace& workspace, Output& output)
        : kind_(kind), workspace_(workspace), reader_(kind, workspace), output_(output), limit_(limit) {}

    // Record each token whose spelling is not that of the vocabulary, with its index in the output: added tokens, and
    // what a kind adds.
    void keep_strings(AddedStrings& strings) {
        strings_ = &strings;
        reader_.keep_strings(strings);
    }

    // Wrap each row in other ids; the limit applies to the ids between them.
    void wrap(const Wrapping& wrapping) {
        static_assert(!kAligned);
        wrapping_ = wrapping;
        limit_ = limit_ == Tokenizer::kNoLimit ? limit_ : limit_ - std::min<std::size_t>(limit_, wrapping.size());
    }

    // Short texts share windows, to amortise the fixed cost per window.
    void encode_rows(std::span<const std::string_view> texts, std::int64_t* ends) {
        if (texts.empty()) return;
        const bool stages = texts.size() > 1 && can_stage();
        // The output ends with what stands before the next row.
        ids_append(wrapping_.before);
        for (std::size_t row = 0; row < texts.size();) {
            const std::size_t staged = stages ? stage(texts.subspan(row)) : 1;
            if (staged > 1 && kind_.stages(staged_text())) {
                encode_stage(staged, ends + row);
                row += staged;
                continue;
            }
            for (const std::size_t end = row + std::max<std::size_t>(staged, 1); row < end; ++row) {
                encode_row(texts[row]);
                ids_append(wrapping_.behind);
                ends[row] = static_cast<std::int64_t>(ids().size());
                ids_append(wrapping_.before);
            }
        }
        ids().resize(ids().size() - wrapping_.before.size());
    }

    // For readers: the output so far, and the text of a row in parts.

    bool full() const { return ids().size() >= full_size_; }
    std::size_t size() const { return ids().size(); }
    Output& output() { return output_; }
    void append_id(std::int32_t id) { ids().push_back(id); }
    void truncate_to(std::size_t size) { resize(size); }

    // Encode text without added tokens, chunk by chunk.
    void encode_run(std::string_view text) {
        const std::uint8_t* at = bytes_of(text);
        const std::uint8_t* const end = at + text.size();
        while (at < end && !full()) at = encode_window(at, end);
    }

    // Append the workspace's pieces, at their positions behind position().
    void append_read() { append_pieces(0); }

    void append_match(const AddedTokens::Match& match, std::string_view text, std::size_t last_end) {
        const auto count = [&](std::size_t begin, std::size_t end) {
            return static_cast<std::uint32_t>(count_characters(text.substr(begin, end - begin)));
        };
        // White space after a token may also belong to the next one.
        if (match.begin < last_end) position_ -= count(match.begin, last_end);
        const std::uint32_t size = count(match.begin, match.end);
        const std::string_view spelling = text.substr(match.begin, match.end - match.begin);
        note_string(spelling);
        if constexpr (kAligned) reader_.note_match(ids().size(), spelling);
        append({match.id, 0, size, 0});
        position_ += size;
        word_ += 1;
    }
    void append_token(std::int32_t id, std::uint32_t begin, std::uint32_t end, std::string_view spelling) {
        note_string(spelling);
        if constexpr (kAligned) reader_.note_match(ids().size(), spelling);
        append({id, begin, end, 0});
        word_ += 1;
    }

    // Characters of the row's text before what is encoded next.
    std::uint32_t position() const { return position_; }
    void set_position(std::size_t position) { position_ = static_cast<std::uint32_t>(position); }

private:
    // Slack of the output in tokens: cache entries are copied whole.
    static constexpr std::size_t kRoom = LongPieces::kMax;
    static constexpr bool kMarked = Kind::kTiles;
    static constexpr std::size_t kGroup = 128;           // chunks whose entries are prefetched together
    static constexpr std::size_t kPrefetchedTexts = 4;  // before the one that is read

    // The number of characters of the window before a byte.
    class CharacterCounter {
    public:
        explicit CharacterCounter(const Window& window) : window_(window) {
            if constexpr (!kAligned) return;
            std::uint32_t before = 0;
            for (std::size_t i = 0; i < kWindow / kBlock; ++i) {
                before_[i] = before;
                before += static_cast<std::uint32_t>(kBlock - count_bits(window.masks[i].continuation));
            }
        }
        std::uint32_t before(std::size_t byte) const {
            const std::size_t block = byte / kBlock, bit = byte % kBlock;
            const std::uint64_t earlier = window_.masks[block].continuation & ((std::uint64_t{1} << bit) - 1);
            return before_[block] + static_cast<std::uint32_t>(bit - count_bits(earlier));
        }

    private:
        const Window& window_;
        std::array<std::uint32_t, kWindow / kBlock> before_;
    };

    Buffer<std::int32_t>& ids() const {
        if constexpr (kAligned) {
            return output_.ids;
        } else {
            return output_;
        }
    }

    void reserve(std::size_t chunks) {
        const std::size_t capacity = ids().size() + (chunks + 1) * kRoom;
        ids().reserve(capacity);
        if constexpr (kAligned) {
            for (auto* column : {&output_.begins, &output_.ends, &output_.words}) column->reserve(capacity);
        }
    }

    void resize(std::size_t size) {
        ids().resize(size);
        if constexpr (kAligned) {
            for (auto* column : {&output_.begins, &output_.ends, &output_.words}) column->resize(size);
        }
    }

    void encode_row(std::string_view text) {
        const std::size_t first = ids().size();
        full_size_ = limit_ == Tokenizer::kNoLimit ? limit_ : first + limit_;
        position_ = word_ = 0;
        // Text between added tokens is treated part by part: nothing is reordered or joined across a token.
        const AddedTokens& raw_tokens = kind_.raw_tokens();
        std::size_t last_end = 0;
        for (std::size_t at = 0; at < text.size() && !full();) {
            const AddedTokens::Match match = raw_tokens.find(text, at, last_end);
            if (match.begin > last_end) {
                reader_.encode_segment(*this, text.substr(last_end, match.begin - last_end), last_end == 0);
            }
            if (match.id != Trie::kNone) append_match(match, text, last_end);
            at = match.next;
            last_end = match.end;
        }
        if (ids().size() > full_size_) resize(full_size_);
        if constexpr (kAligned) reader_.finish_row(*this, first, ids().size());
    }

    void note_string(std::string_view text) {
        if (strings_ != nullptr) strings_->emplace_back(ids().size(), text);
    }

    void ids_append(std::span<const std::int32_t> values) {
        for (const std::int32_t id : values) ids().push_back(id);
    }

    // A chunk of the separator marks the end of a row and the beginning of the next. Bytes behind it, so that reads past
    // a chunk stay in bounds.
    static const std::uint8_t* row_mark() {
        static constexpr std::array<std::uint8_t, ChunkCache::kShortBytes + 1> kMark = {kSeparator};
        return kMark.data();
    }
    // Texts share windows if the ids between them are found like those of a chunk.
    bool can_stage() {
        if (!kMarked && wrapping_.size() == 0) return true;
        if (wrapping_.size() > ShortPieces::kMax) return false;
        std::array<Piece, ShortPieces::kMax> pieces{};
        std::size_t count = 0;
        for (const auto& ids : {wrapping_.behind, wrapping_.before}) {
            for (const std::int32_t id : ids) pieces[count++] = {id, 0, 0, 0};
        }
        ChunkCache& cache = workspace_.cache;
        cache.insert(row_mark(), 1, {pieces.data(), count}, true);
        const ShortPieces* const mark = cache.find_short(row_mark(), 1);
        bool stored = mark != nullptr && mark->count() == count;
        for (std::size_t i = 0; stored && i < count; ++i) stored = mark->ids[i] == pieces[i].id;
        return stored;
    }

    // Copy short texts to the stage, separated from each other, until a long text or the end of the stage. Return their
    // number.
    std::size_t stage(std::span<const std::string_view> texts) {
        constexpr std::size_t kShort = kWindow / 4, kBetween = 4;
        const bool marks = kMarked || wrapping_.size() > 0;
        std::uint8_t* const to = workspace_.stage.data();
        std::size_t size = 0, count = 0;
        for (; count < texts.size() && count < row_ends_.size(); ++count) {
            const std::string_view text = texts[count];
            if (text.size() > kShort || size + text.size() + kBetween > kWindow) break;
            if (count + kPrefetchedTexts < texts.size()) prefetch(texts[count + kPrefetchedTexts]);
            if (kMarked && kind_.stages_prefix() && !text.empty() && text[0] != ' ') {
                if constexpr (kAligned) return 0;  // the positions are those of the text without it
                to[size++] = ' ';
            }
            if (!text.empty()) std::memcpy(to + size, text.data(), text.size());
            size += text.size();
            if (!kMarked) to[size++] = ' ';
            if (marks) to[size++] = kSeparator;
            if (!kMarked && marks) to[size++] = ' ';
            row_ends_[count] = static_cast<std::uint16_t>(size);
        }
        staged_size_ = size;
        return count;
    }

    std::string_view staged_text() const { return {chars(workspace_.stage.data()), staged_size_}; }

    // Texts of a batch are scattered in memory: prefetch a text's first bytes while copying those before it.
    static void prefetch(std::string_view text) {
        constexpr std::size_t kLine = 64, kMost = 256;
        for (std::size_t at = 0; at < std::min(text.size(), kMost); at += kLine) __builtin_prefetch(text.data() + at);
    }

    void encode_stage(std::size_t rows, std::int64_t* ends) {
        const Window& window = workspace_.window;
        full_size_ = Tokenizer::kNoLimit;
        position_ = word_ = 0;
        kind_.scan(workspace_.stage.data(), staged_size_, true, workspace_.window);
        const std::size_t before = ids().size();
        const CharacterCounter characters(window);
        encode_chunks<true>(workspace_.stage.data(), characters);
        std::size_t first = before, to = before;
        for (std::size_t row = 0; row < rows; ++row) {
            const std::size_t chunks = chunks_before(window, row_ends_[row]);
            const std::size_t last = chunks == 0 ? before : before + workspace_.chunk_counts[chunks - 1];
            const std::size_t count = std::min(last - first - wrapping_.size(), limit_);
            move_row(first, count, to, row == 0 ? 0 : characters.before(row_ends_[row - 1]));
            to += count;
            first = last;
            if constexpr (kAligned) reader_.finish_row(*this, to - count, to);
            for (const std::int32_t id : wrapping_.behind) ids()[to++] = id;
            ends[row] = static_cast<std::int64_t>(to);
            for (const std::int32_t id : wrapping_.before) ids()[to++] = id;
        }
        resize(to);
    }

    // The number of chunks that start before a byte.
    static std::size_t chunks_before(const Window& window, std::size_t byte) {
        const std::uint64_t earlier = (std::uint64_t{1} << byte % kBlock) - 1;
        return window.chunks_before[byte / kBlock] + count_bits(window.first_bytes[byte / kBlock] & earlier);
    }

    // Move a row's tokens towards the front if rows before it were truncated, and make its offsets relative to its own
    // start.
    void move_row(std::size_t from, std::size_t count, std::size_t to, [[maybe_unused]] std::uint32_t row_start) {
        const auto move = [&](Buffer<std::int32_t>& column, std::int32_t base) {
            for (std::size_t i = 0; i < count; ++i) column[to + i] = column[from + i] - base;
        };
        if (from != to) move(ids(), 0);
        if constexpr (kAligned) {
            move(output_.begins, static_cast<std::int32_t>(row_start));
            move(output_.ends, static_cast<std::int32_t>(row_start));
            if (count > 0) move(output_.words, output_.words[from]);
        }
    }

    // Encode as much as fits into one window, but at least one chunk. Return the start of the rest.
    const std::uint8_t* encode_window(const std::uint8_t* text, const std::uint8_t* end) {
        Window& window = workspace_.window;
        const auto left = static_cast<std::size_t>(end - text);
        std::size_t size = std::min(left, window_size());
        kind_.scan(text, size, size == left, window);
        if (size < left) {
            // Chunks that depend on what follows are left to the next window.
            size = kind_.settle(window, size);
            if (size == 0) return encode_giant(text, end);
        }
        encode_chunks<false>(text, CharacterCounter(window));
        if constexpr (kAligned) position_ += static_cast<std::uint32_t>(count_characters({chars(text), size}));
        return text + size;
    }

    // Scan few bytes if few ids are requested.
    std::size_t window_size() const {
        const std::size_t missing = full_size_ - ids().size();
        return missing >= kWindow / 8 ? kWindow : std::max<std::size_t>(8 * missing, kBlock);
    }

    // Encode all chunks of the window over `text`. `kCounts`: store the running number of tokens after each in the
    // workspace's chunk_counts.
    template <bool kCounts>
    void encode_chunks(const std::uint8_t* text, const CharacterCounter& characters) {
        const Window& window = workspace_.window;
        const ChunkCache& cache = workspace_.cache;
        reserve(window.count);
        const std::size_t before = ids().size();
        std::size_t at = before;
        for (std::size_t first = 0; first < window.count; first += kGroup) {
            const std::size_t count = std::min(kGroup, window.count - first);
            std::array<ChunkCache::ShortKey, kGroup> keys;
            std::array<std::uint32_t, kGroup> slots;
            // Compute what is looked up, and have it brought from memory meanwhile.
            for (std::size_t i = 0; i < count; ++i) {
                const std::size_t size = chunk_size(first + i);
                const std::uint8_t* const chunk = window.bytes.data() + window.starts[first + i];
                if (size <= ChunkCache::kShortBytes) [[likely]] {
                    keys[i] = ChunkCache::short_key(chunk, size);
                    const std::size_t slot = ChunkCache::short_slot(keys[i]);
                    cache.prefetch(slot);
                    slots[i] = static_cast<std::uint32_t>(slot);
                } else {
                    const std::size_t slot = size <= ChunkCache::kMiddleBytes ? cache.middle_slot(chunk, size) : 0;
                    cache.prefetch_middle(slot);
                    keys[i] = ChunkCache::no_key(slot);
                    slots[i] = 0;
                }
            }
            for (std::size_t i = 0; i < count; ++i) {
                const ShortPieces* const pieces = cache.find_first(keys[i], slots[i]);
                if (pieces != nullptr && !pieces->elsewhere()) [[likely]] {
                    at = write(*pieces, at, characters, window.starts[first + i]);
                } else {
                    at = encode_rarer(text, first + i, keys[i], at, characters);
                }
                if constexpr (kCounts) workspace_.chunk_counts[first + i] = static_cast<std::uint32_t>(at - before);
            }
        }
        resize(at);
    }

    std::size_t chunk_size(std::size_t i) const {
        const Window& window = workspace_.window;
        if constexpr (Kind::kTiles) {
            return static_cast<std::size_t>(window.starts[i + 1] - window.starts[i]);
        } else {
            return window.lasts[i] - window.starts[i] + 1U;
        }
    }

    // Encode a chunk that is not in the line of its slot, as one of few tokens.
    [[gnu::noinline]] std::size_t encode_rarer(const std::uint8_t* text, std::size_t i,
                                               const ChunkCache::ShortKey& key, std::size_t at,
                                               const CharacterCounter& characters) {
        const Window& window = workspace_.window;
        const ChunkCache& cache = workspace_.cache;
        const std::size_t start = window.starts[i], size = chunk_size(i);
        const std::uint8_t* const chunk = window.bytes.data() + start;
        bool look_further = size <= ChunkCache::kLongBytes;
        if (size <= ChunkCache::kShortBytes) {
            const ShortPieces* const pieces = cache.find_short(key, ChunkCache::short_slot(key));
            if (pieces != nullptr && !pieces->elsewhere()) return write(*pieces, at, characters, start);
            look_further = pieces != nullptr;
        }
        if (look_further && size <= ChunkCache::kMiddleBytes) {
            const std::size_t place = size <= ChunkCache::kShortBytes ? ChunkCache::middle_slot(key) : key.low;
            if (const auto* const pieces = cache.find_middle(chunk, size, place)) {
                return write(*pieces, at, characters, start);
            }
        }
        if (look_further) {
            if (const auto* const pieces = cache.find_long(chunk, size)) return write(*pieces, at, characters, start);
        }
        resize(at);
        const bool is_new = size <= ChunkCache::kShortBytes && !look_further;
        encode_unknown(text + start, chunk, size, is_new, characters, start);
        reserve(window.count - i);
        return ids().size();
    }

    // Copy the tokens of a chunk to offset `at` of the output, plus some that are overwritten or truncated later.
    template <class Pieces>
    std::size_t write(const Pieces& pieces, std::size_t at, const CharacterCounter& characters, std::size_t start) {
        std::memcpy(ids().data() + at, &pieces, Pieces::kCopied);
        const std::size_t count = pieces.count();
        if constexpr (kAligned) {
            const std::uint32_t position = position_ + characters.before(start);
            const std::size_t written = count == 1 ? 1 : Pieces::kMax;
            for (std::size_t i = 0; i < written; ++i) {
                output_.begins[at + i] = static_cast<std::int32_t>(position + pieces.begin(i));
                output_.ends[at + i] = static_cast<std::int32_t>(position + pieces.end(i));
                output_.words[at + i] = static_cast<std::int32_t>(word_ + pieces.word(i));
            }
            word_ += count == 0 ? 0 : pieces.word(count - 1) + 1;
        }
        return at + count;
    }

    // Encode a chunk on a cache miss.
    void encode_unknown(const std::uint8_t* raw, const std::uint8_t* folded, std::size_t size, bool is_new,
                        const CharacterCounter& characters, std::size_t start) {
        if constexpr (!kAligned && Kind::kReadsDirectly) {
            if (size > ChunkCache::kLongBytes) return reader_.append_directly(*this, raw, size);
            if (is_new && !std::all_of(raw, raw + size, [](std::uint8_t byte) { return byte < 128; })) {
                // Most non-ASCII chunks occur once: their alignment is computed at the second occurrence.
                workspace_.cache.note(folded, size);
                return reader_.append_directly(*this, raw, size);
            }
        }
        reader_.read(raw, folded, size);
        if (size <= ChunkCache::kLongBytes) workspace_.cache.insert(folded, size, workspace_.pieces, false);
        append_pieces(kAligned ? characters.before(start) : 0);
    }

    // Encode a chunk longer than a window.
    const std::uint8_t* encode_giant(const std::uint8_t* text, const std::uint8_t* end) {
        const std::uint8_t* const chunk_end = kind_.chunk_end(text, end);
        const auto size = static_cast<std::size_t>(chunk_end - text);
        if constexpr (!kAligned && Kind::kReadsDirectly) {
            reader_.append_directly(*this, text, size);
        } else {
            reader_.read_giant(text, size);
            append_pieces(0);
            position_ += static_cast<std::uint32_t>(count_characters({chars(text), size}));
        }
        return chunk_end;
    }

    void append_pieces(std::uint32_t offset) {
        for (Piece piece : workspace_.pieces) {
            piece.begin += offset;
            piece.end += offset;
            append(piece);
        }
        if (!workspace_.pieces.empty()) word_ += workspace_.pieces.back().word + 1;
    }

    void append(const Piece& piece) {
        ids().push_back(piece.id);
        if constexpr (kAligned) {
            output_.begins.push_back(static_cast<std::int32_t>(position_ + piece.begin));
            output_.ends.push_back(static_cast<std::int32_t>(position_ + piece.end));
            output_.words.push_back(static_cast<std::int32_t>(word_ + piece.word));
        }
    }

    const Kind& kind_;
    Workspace& workspace_;
    typename Kind::Reader reader_;
    Output& output_;
    AddedStrings* strings_ = nullptr;
    std::size_t limit_;      // ids of a row
    std::size_t full_size_ = 0;  // of the output, when the row at hand has enough
    std::size_t staged_size_ = 0;
    std::array<std::uint16_t, 64> row_ends_;  // of the staged texts
    Wrapping wrapping_;
    std::uint32_t position_ = 0;  // characters of the text before the window
    std::uint32_t word_ = 0;   // words so far
};

// Return the added tokens in a text, for Tokenizer::added_strings().
template <class Kind>
AddedStrings added_strings(const Kind& kind, std::string_view text) {
    AddedStrings strings;
    Buffer<std::int32_t> ids;
    std::int64_t end = 0;
    std::unique_ptr<Workspace> workspace = kind.take_workspace();
    ChunkEncoder<Kind, false> encoder(kind, Tokenizer::kNoLimit, *workspace, ids);
    encoder.keep_strings(strings);
    encoder.encode_rows({&text, 1}, &end);
    kind.give_back(std::move(workspace));
    return strings;
}

}  // namespace fastbert::tokenizer
