// Part of tokenizer.cpp: from texts to tokens through windows, chunks and the cache. Longer than 400 lines: one class
// whose hot loop is inlined through all of its steps and shares their state.
#pragma once
#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <type_traits>

#include "unicode/utf8.h"
#include "wordpiece/chunk_reader.h"
#include "wordpiece/normalized_text.h"
#include "wordpiece/tokenizer.h"

namespace fastbert::wordpiece {

// Inline: without a target flag, std::popcount is a function call.
inline std::size_t count_bits(std::uint64_t bits) {
    if (bits == 0) return 0;
    bits -= bits >> 1 & 0x5555555555555555U;
    bits = (bits & 0x3333333333333333U) + (bits >> 2 & 0x3333333333333333U);
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F0F0F0F0FU;
    return bits * 0x0101010101010101U >> 56;
}

// Encode texts, window by window, chunk by chunk. Without kAligned, only ids are made.
template <bool kAligned>
class Tokenizer::Encoder {
public:
    using Output = std::conditional_t<kAligned, TokenColumns, Buffer<std::int32_t>>;

    Encoder(const Tokenizer& tokenizer, std::size_t limit, Workspace& workspace, Output& output)
        : tokenizer_(tokenizer),
          workspace_(workspace),
          reader_(tokenizer, workspace.pieces),
          splitter_(tokenizer.tables_, *this),
          output_(output),
          limit_(limit) {}

    // Record each added token as spelled in the text, with its index in the output.
    void keep_strings(std::vector<std::pair<std::size_t, std::string>>& strings) { strings_ = &strings; }

    // Wrap each row in `begin` and `end` ids; the limit applies to the ids between them.
    void wrap(std::int32_t begin_id, std::int32_t end_id) {
        static_assert(!kAligned);
        wrapping_ = true;
        begin_id_ = begin_id;
        end_id_ = end_id;
        // A chunk of a byte that UTF-8 lacks marks the end of a row and the beginning of the next.
        const Piece pieces[] = {{end_id, 0, 1, 0}, {begin_id, 0, 1, 0}};
        if (find_row_mark() == nullptr) workspace_.cache.insert(row_mark(), 1, pieces, true);
        const ShortPieces* const mark = find_row_mark();
        can_stage_ = mark != nullptr && mark->ids[0] == end_id && mark->ids[1] == begin_id;
    }

    // Short texts share windows, to amortise the fixed cost per window.
    void encode_rows(std::span<const std::string_view> texts, std::int64_t* ends) {
        if (texts.empty()) return;
        // While rows are wrapped, the output ends with the begin id of the next row.
        if (wrapping_) ids().push_back(begin_id_);
        const bool stages = can_stage_ && tokenizer_.normalized_tokens_.empty();
        for (std::size_t row = 0; row < texts.size();) {
            const std::size_t staged = stages ? stage(texts.subspan(row)) : 1;
            if (staged > 1 && !tokenizer_.raw_tokens_.occurs_in(staged_text())) {
                encode_stage(staged, ends + row);
                row += staged;
                continue;
            }
            for (const std::size_t end = row + std::max<std::size_t>(staged, 1); row < end; ++row) {
                encode_row(texts[row]);
                ends[row] = static_cast<std::int64_t>(ids().size()) + wrapping_;
                if (wrapping_) append_row_mark();
            }
        }
        if (wrapping_) ids().resize(ids().size() - 1);
    }

    bool full() const { return ids().size() >= full_size_; }

    // The sink of the splitter, for chunks without alignment.
    void word(const Word& word) {
        const std::size_t before = ids().size();
        const auto append_id = [this](std::int32_t id) { ids().push_back(id); };
        if (!word.too_long() && tokenizer_.matcher_.match(word.view(), append_id)) return;
        ids().resize(before);
        ids().push_back(tokenizer_.unknown_id_);
    }

private:
    // Slack of the output in tokens: cache entries are copied whole.
    static constexpr std::size_t kRoom = LongPieces::kMax;
    // Prefetch distances: cache lines in chunks, bytes in texts.
    static constexpr std::size_t kPrefetched = 32;
    static constexpr std::size_t kPrefetchedTexts = 4;

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
        full_size_ = limit_ == kNoLimit ? kNoLimit : ids().size() + limit_;
        position_ = word_ = 0;
        // Text between added tokens is normalised piece by piece: nothing is reordered or joined across a token.
        std::size_t last_end = 0;
        for (std::size_t at = 0; at < text.size() && !full();) {
            const AddedTokens::Match match = tokenizer_.raw_tokens_.find(text, at, last_end);
            if (match.begin > last_end) encode_segment(text.substr(last_end, match.begin - last_end));
            if (match.id != Trie::kNone) append_match(match, text, last_end);
            at = match.next;
            last_end = match.end;
        }
        if (ids().size() > full_size_) resize(full_size_);
    }

    // Text without added tokens that are searched in raw text.
    void encode_segment(std::string_view text) {
        if (!tokenizer_.normalized_tokens_.empty()) return encode_normalized(text);
        const std::uint8_t* at = bytes_of(text);
        const std::uint8_t* const end = at + text.size();
        while (at < end && !full()) at = encode_window(at, end);
    }

    void append_match(const AddedTokens::Match& match, std::string_view text, std::size_t last_end) {
        const auto count = [&](std::size_t begin, std::size_t end) {
            return static_cast<std::uint32_t>(count_characters(text.substr(begin, end - begin)));
        };
        // White space after a token may also belong to the next one.
        if (match.begin < last_end) position_ -= count(match.begin, last_end);
        const std::uint32_t size = count(match.begin, match.end);
        note_string(text.substr(match.begin, match.end - match.begin));
        append({match.id, 0, size, 0});
        position_ += size;
        word_ += 1;
    }

    void note_string(std::string_view text) {
        if (strings_ != nullptr) strings_->emplace_back(ids().size(), text);
    }

    // The slow path: added tokens are searched in the normalised text, and the text between them is split into words.
    void encode_normalized(std::string_view text) {
        const NormalizedText normal(text, tokenizer_.tables_.options);
        const std::string_view bytes = normal.bytes();
        std::size_t last_end = 0;
        for (std::size_t at = 0; at < bytes.size() && !full();) {
            const AddedTokens::Match match = tokenizer_.normalized_tokens_.find(bytes, at, last_end);
            if (match.begin > last_end) {
                reader_.read_normalized(normal.characters(last_end, match.begin));
                append_pieces(0);
            }
            if (match.id != Trie::kNone) {
                const auto characters = normal.characters(match.begin, match.end);
                note_string(bytes.substr(match.begin, match.end - match.begin));
                append({match.id, characters.front().source, characters.back().source + 1, 0});
                word_ += 1;
            }
            at = match.next;
            last_end = match.end;
        }
        position_ += static_cast<std::uint32_t>(count_characters(text));
    }

    // Two bytes, so that reads past a chunk stay in bounds.
    static const std::uint8_t* row_mark() {
        static constexpr std::array<std::uint8_t, ChunkCache::kShortBytes + 1> kMark = {0xFF};
        return kMark.data();
    }
    const ShortPieces* find_row_mark() const {
        const ChunkCache& cache = workspace_.cache;
        return cache.find_short(row_mark(), 1, cache.short_slot(row_mark(), 1));
    }
    void append_row_mark() {
        ids().push_back(end_id_);
        ids().push_back(begin_id_);
    }

    // Copy short texts to the stage, each followed by a space (and a row mark if rows are wrapped), until a long text
    // or the end of the stage. Return their number.
    std::size_t stage(std::span<const std::string_view> texts) {
        constexpr std::size_t kShort = kWindow / 4, kBehind = 3;
        std::size_t size = 0, count = 0;
        for (; count < texts.size() && count < row_ends_.size(); ++count) {
            const std::string_view text = texts[count];
            if (text.size() > kShort || size + text.size() + kBehind > kWindow) break;
            if (count + kPrefetchedTexts < texts.size()) prefetch(texts[count + kPrefetchedTexts]);
            std::copy(text.begin(), text.end(), workspace_.stage.data() + size);
            size += text.size();
            workspace_.stage[size++] = ' ';
            if (wrapping_) {
                workspace_.stage[size++] = *row_mark();
                workspace_.stage[size++] = ' ';
            }
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
        full_size_ = kNoLimit;
        position_ = word_ = 0;
        tokenizer_.scan_(workspace_.stage.data(), staged_size_, tokenizer_.tables_.options.lower_case,
                         workspace_.window);
        const std::size_t before = ids().size();
        const CharacterCounter characters(window);
        encode_chunks(workspace_.stage.data(), characters);
        // encode_chunks has stored the number of tokens after each chunk in `chunk_values`.
        std::size_t first = before, to = before;
        for (std::size_t row = 0; row < rows; ++row) {
            const std::size_t chunks = chunks_before(window, row_ends_[row]);
            const std::size_t last = chunks == 0 ? before : before + workspace_.chunk_values[chunks - 1];
            const std::size_t marks = wrapping_ ? 2 : 0;
            const std::size_t count = std::min(last - first - marks, limit_);
            move_row(first, count, to, row == 0 ? 0 : characters.before(row_ends_[row - 1]));
            to += count;
            first = last;
            ends[row] = static_cast<std::int64_t>(to) + wrapping_;
            if (wrapping_) {
                ids()[to++] = end_id_;
                ids()[to++] = begin_id_;
            }
        }
        resize(to);
    }

    // The number of chunks that start before a byte.
    static std::size_t chunks_before(const Window& window, std::size_t byte) {
        std::size_t count = window.chunks_before[byte / kBlock];
        while (count < window.count && window.starts[count] < byte) ++count;
        return count;
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
        tokenizer_.scan_(text, size, tokenizer_.tables_.options.lower_case, window);
        if (size < left && window.count > 0 && window.lasts[window.count - 1] == size - 1u) {
            // The last chunk may continue after the window, so it is left to the next one.
            size = window.starts[--window.count];
            if (size == 0) return encode_giant(text, end);
        }
        encode_chunks(text, CharacterCounter(window));
        if constexpr (kAligned) position_ += static_cast<std::uint32_t>(count_characters({chars(text), size}));
        return text + size;
    }

    // Scan few bytes if few ids are requested.
    std::size_t window_size() const {
        const std::size_t missing = full_size_ - ids().size();
        return missing >= kWindow / 8 ? kWindow : std::max<std::size_t>(8 * missing, kBlock);
    }

    // Encode all chunks of the window over `text`, storing the running number of tokens after each in the workspace's
    // chunk_values.
    void encode_chunks(const std::uint8_t* text, const CharacterCounter& characters) {
        const Window& window = workspace_.window;
        const ChunkCache& cache = workspace_.cache;
        reserve(window.count);
        const std::size_t before = ids().size();
        std::size_t at = before;
        std::uint32_t* const values = workspace_.chunk_values.data();
        const auto fetch = [&](std::size_t i) {
            const std::size_t size = window.lasts[i] - window.starts[i] + 1u;
            const std::size_t slot =
                cache.short_slot(window.bytes.data() + window.starts[i], std::min(size, ChunkCache::kShortBytes));
            cache.prefetch(slot);
            values[i] = static_cast<std::uint32_t>(slot);
        };
        for (std::size_t i = 0; i < std::min(kPrefetched, window.count); ++i) fetch(i);
        for (std::size_t i = 0; i < window.count; ++i) {
            if (i + kPrefetched < window.count) fetch(i + kPrefetched);
            const std::size_t start = window.starts[i];
            const std::size_t size = window.lasts[i] - start + 1u;
            const std::uint8_t* const chunk = window.bytes.data() + start;
            bool look_further = size <= ChunkCache::kLongBytes;
            if (size <= ChunkCache::kShortBytes) [[likely]] {
                const ShortPieces* const pieces = cache.find_short(chunk, size, values[i]);
                if (pieces != nullptr && !pieces->elsewhere()) [[likely]] {
                    at = write(*pieces, at, characters, start);
                    values[i] = static_cast<std::uint32_t>(at - before);
                    continue;
                }
                look_further = pieces != nullptr;
            }
            const LongPieces* const pieces = look_further ? cache.find_long(chunk, size) : nullptr;
            if (pieces != nullptr) {
                at = write(*pieces, at, characters, start);
            } else {
                resize(at);
                const bool is_new = size <= ChunkCache::kShortBytes && !look_further;
                encode_unknown(text + start, chunk, size, is_new, characters, start);
                reserve(window.count - i);
                at = ids().size();
            }
            values[i] = static_cast<std::uint32_t>(at - before);
        }
        resize(at);
    }

    // Copy the tokens of a chunk to offset `at` of the output, plus some that are overwritten or truncated later.
    template <class Pieces>
    std::size_t write(const Pieces& pieces, std::size_t at, const CharacterCounter& characters, std::size_t start) {
        std::copy_n(pieces.ids.data(), Pieces::kMax, ids().data() + at);
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
        if (!kAligned && size > ChunkCache::kLongBytes) return split(raw, size);
        if (!kAligned && is_new && !std::all_of(raw, raw + size, [](std::uint8_t byte) { return byte < 128; })) {
            // Most non-ASCII chunks occur once: their alignment is computed at the second occurrence.
            workspace_.cache.note(folded, size);
            return split(raw, size);
        }
        reader_.read(raw, folded, size);
        if (size <= ChunkCache::kLongBytes) workspace_.cache.insert(folded, size, workspace_.pieces, false);
        append_pieces(kAligned ? characters.before(start) : 0);
    }

    // Encode a chunk longer than a window.
    const std::uint8_t* encode_giant(const std::uint8_t* text, const std::uint8_t* end) {
        const auto is_boundary = [this](std::uint8_t byte) { return tokenizer_.tables_.is_boundary(byte); };
        const std::uint8_t* const chunk_end = std::find_if(text + 1, end, is_boundary);
        const auto size = static_cast<std::size_t>(chunk_end - text);
        if constexpr (kAligned) {
            reader_.read_general(text, size);
            append_pieces(0);
            position_ += static_cast<std::uint32_t>(count_characters({chars(text), size}));
        } else {
            split(text, size);
        }
        return chunk_end;
    }

    void split(const std::uint8_t* raw, std::size_t size) { splitter_.split({chars(raw), size}); }

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

    const Tokenizer& tokenizer_;
    Workspace& workspace_;
    ChunkReader reader_;
    WordSplitter<Encoder> splitter_;
    Output& output_;
    std::vector<std::pair<std::size_t, std::string>>* strings_ = nullptr;
    std::size_t limit_;      // ids of a row
    std::size_t full_size_ = 0;  // of the output, when the row at hand has enough
    std::size_t staged_size_ = 0;
    std::array<std::uint16_t, 64> row_ends_;  // of the staged texts
    bool can_stage_ = true, wrapping_ = false;
    std::int32_t begin_id_ = 0, end_id_ = 0;  // around each row, if wrapping
    std::uint32_t position_ = 0;  // characters of the text before the window
    std::uint32_t word_ = 0;   // words so far
};

}  // namespace fastbert::wordpiece
