#include "wordpiece/tokenizer.h"

#include <algorithm>
#include <bit>
#include <type_traits>
#include <utility>

namespace fastbert::wordpiece {
namespace {

std::vector<std::pair<std::string, std::int32_t>> named(const std::vector<std::string>& tokens,
                                                        const std::vector<std::int32_t>& ids) {
    std::vector<std::pair<std::string, std::int32_t>> result;
    for (const std::int32_t id : ids) result.emplace_back(tokens[static_cast<std::size_t>(id)], id);
    return result;
}

const std::uint8_t* bytes_of(std::string_view text) { return reinterpret_cast<const std::uint8_t*>(text.data()); }
const char* chars(const std::uint8_t* bytes) { return reinterpret_cast<const char*>(bytes); }

std::size_t count_characters(std::string_view text) {
    return static_cast<std::size_t>(
        std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; }));
}

}  // namespace

WorkspacePool::~WorkspacePool() {
    for (std::atomic<Workspace*>& place : waiting_) delete place.load();
}

std::unique_ptr<Workspace> WorkspacePool::take() {
    for (std::atomic<Workspace*>& place : waiting_) {
        if (place.load(std::memory_order_relaxed) == nullptr) continue;
        if (Workspace* const taken = place.exchange(nullptr)) return std::unique_ptr<Workspace>(taken);
    }
    return std::make_unique<Workspace>(seeded_);
}

void WorkspacePool::give_back(std::unique_ptr<Workspace> workspace) {
    for (std::atomic<Workspace*>& place : waiting_) {
        Workspace* none = nullptr;
        if (place.compare_exchange_strong(none, workspace.get())) {
            (void)workspace.release();
            return;
        }
    }
}

// The tokens of a single chunk, with their places in it.
class Tokenizer::ChunkReader {
public:
    ChunkReader(const Tokenizer& tokenizer, std::vector<Piece>& pieces)
        : tokenizer_(tokenizer), pieces_(pieces), splitter_(tokenizer.tables_, *this) {}

    // `raw` as it stands in the text, `folded` with ASCII in lower case where the tokenizer asks for it.
    void read(const std::uint8_t* raw, const std::uint8_t* folded, std::size_t size) {
        const NormalizerTables& tables = tokenizer_.tables_;
        const auto is_letter = [&tables](std::uint8_t byte) { return tables.folded[byte] != 0; };
        if ((size == 1 && tables.is_boundary(*raw)) || std::all_of(raw, raw + size, is_letter)) {
            read_ascii({chars(folded), size});
        } else {
            read_general(raw, size);
        }
    }

    // A chunk of any kind, from its bytes in the text alone.
    void read_general(const std::uint8_t* raw, std::size_t size) {
        pieces_.clear();
        next_word_ = 0;
        splitter_.split({chars(raw), size});
    }

    // The splitter's sink.
    void word(const AlignedWord& word) {
        const std::size_t before = pieces_.size();
        const std::uint8_t* at = word.bytes.data();
        std::size_t character = 0;
        const auto append = [&](std::int32_t id) {
            const std::uint8_t* const end = at + tokenizer_.piece_bytes_[static_cast<std::size_t>(id)];
            const std::size_t first = character;
            for (; at != end; ++at) character += (*at & 0xC0) != 0x80;
            pieces_.push_back({id, word.sources[first], word.sources[character - 1] + 1, next_word_});
        };
        if (word.too_long() || !tokenizer_.matcher_.match(word.view(), append)) {
            pieces_.resize(before);
            pieces_.push_back({tokenizer_.unknown_id_, word.sources[0], word.last_source + 1, next_word_});
        }
        ++next_word_;
    }
    bool full() const { return false; }

private:
    void read_ascii(std::string_view word) {
        pieces_.clear();
        std::uint32_t at = 0;
        const auto append = [&](std::int32_t id) {
            const std::uint32_t end = at + tokenizer_.piece_bytes_[static_cast<std::size_t>(id)];
            pieces_.push_back({id, at, end, 0});
            at = end;
        };
        if (word.size() <= kMaxWordChars && tokenizer_.matcher_.match(word, append)) return;
        pieces_.clear();
        pieces_.push_back({tokenizer_.unknown_id_, 0, static_cast<std::uint32_t>(word.size()), 0});
    }

    const Tokenizer& tokenizer_;
    std::vector<Piece>& pieces_;
    WordSplitter<ChunkReader, true> splitter_;
    std::uint32_t next_word_ = 0;
};

// Encodes one text, window by window, chunk by chunk. Without kAligned, only ids are made.
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

    bool full() const { return ids().size() >= limit_; }

    // Text without special tokens.
    void encode(std::string_view text) {
        const std::uint8_t* at = bytes_of(text);
        const std::uint8_t* const end = at + text.size();
        while (at < end && !full()) at = encode_window(at, end);
    }

    void special(std::int32_t id, std::string_view text) {
        const auto size = static_cast<std::uint32_t>(count_characters(text));
        append({id, 0, size, 0});
        place_ += size;
        word_ += 1;
    }

    // The splitter's sink, for chunks of which no places are wanted.
    void word(const Word& word) {
        const std::size_t before = ids().size();
        const auto append_id = [this](std::int32_t id) { ids().push_back(id); };
        if (!word.too_long() && tokenizer_.matcher_.match(word.view(), append_id)) return;
        ids().resize(before);
        ids().push_back(tokenizer_.unknown_id_);
    }

private:
    // So many tokens more may be written than a chunk has: the cache's entries are copied whole.
    static constexpr std::size_t kRoom = LongPieces::kMax;

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

    // As much as one window holds, but at least one chunk. Returns where the rest begins.
    const std::uint8_t* encode_window(const std::uint8_t* text, const std::uint8_t* end) {
        Window& window = workspace_.window;
        const auto left = static_cast<std::size_t>(end - text);
        std::size_t size = std::min(left, window_size());
        tokenizer_.scan_(text, size, tokenizer_.tables_.options.lower_case, window);
        if (size < left && window.count > 0 && window.lasts[window.count - 1] == size - 1u) {
            // The last chunk may go on behind the window, so it is left to the next one.
            size = window.starts[--window.count];
            if (size == 0) return encode_giant(text, end);
        }
        encode_chunks(text);
        if constexpr (kAligned) place_ += static_cast<std::uint32_t>(count_characters({chars(text), size}));
        return text + size;
    }

    // Few bytes where few ids are wanted.
    std::size_t window_size() const {
        const std::size_t wanted = limit_ - ids().size();
        return wanted >= kWindow / 8 ? kWindow : std::max<std::size_t>(8 * wanted, kBlock);
    }

    void encode_chunks(const std::uint8_t* text) {
        const Window& window = workspace_.window;
        const ChunkCache& cache = workspace_.cache;
        reserve(window.count);
        std::size_t at = ids().size();
        CharacterCounter characters(window);
        for (std::size_t i = 0; i < window.count; ++i) {
            const std::size_t start = window.starts[i];
            const std::size_t size = window.lasts[i] - start + 1u;
            const std::uint8_t* const chunk = window.bytes.data() + start;
            if (size <= ChunkCache::kShortBytes) [[likely]] {
                if (const ShortPieces* const found = cache.find_short(chunk, size)) [[likely]] {
                    at = write(*found, at, characters, start);
                    continue;
                }
            }
            if (size <= ChunkCache::kLongBytes) {
                if (const LongPieces* const found = cache.find_long(chunk, size)) {
                    at = write(*found, at, characters, start);
                    continue;
                }
            }
            resize(at);
            encode_unknown(text + start, chunk, size, characters, start);
            reserve(window.count - i);
            at = ids().size();
        }
        resize(at);
    }

    // How many characters of the window stand before a byte.
    class CharacterCounter {
    public:
        explicit CharacterCounter(const Window& window) : window_(window) {
            if constexpr (!kAligned) return;
            std::uint32_t before = 0;
            for (std::size_t i = 0; i < kWindow / kBlock; ++i) {
                before_[i] = before;
                before += static_cast<std::uint32_t>(kBlock - std::popcount(window.masks[i].continuation));
            }
        }
        std::uint32_t before(std::size_t byte) const {
            const std::size_t block = byte / kBlock, bit = byte % kBlock;
            const std::uint64_t earlier = window_.masks[block].continuation & ((std::uint64_t{1} << bit) - 1);
            return before_[block] + static_cast<std::uint32_t>(bit - std::popcount(earlier));
        }

    private:
        const Window& window_;
        std::array<std::uint32_t, kWindow / kBlock> before_;
    };

    // Copies the tokens of a chunk to place `at` of the output, and some more that are overwritten or cut off later.
    template <class Pieces>
    std::size_t write(const Pieces& found, std::size_t at, const CharacterCounter& characters, std::size_t start) {
        std::copy_n(found.ids.data(), Pieces::kMax, ids().data() + at);
        const std::size_t count = found.count();
        if constexpr (kAligned) {
            const std::uint32_t place = place_ + characters.before(start);
            for (std::size_t i = 0; i < Pieces::kMax; ++i) {
                output_.begins[at + i] = static_cast<std::int32_t>(place + found.begin(i));
                output_.ends[at + i] = static_cast<std::int32_t>(place + found.end(i));
                output_.words[at + i] = static_cast<std::int32_t>(word_ + found.word(i));
            }
            word_ += count == 0 ? 0 : found.word(count - 1) + 1;
        }
        return at + count;
    }

    // A chunk that the cache does not know.
    void encode_unknown(const std::uint8_t* raw, const std::uint8_t* folded, std::size_t size,
                        const CharacterCounter& characters, std::size_t start) {
        if (!kAligned && size > ChunkCache::kLongBytes) return split(raw, size);
        reader_.read(raw, folded, size);
        if (size <= ChunkCache::kLongBytes) workspace_.cache.insert(folded, size, workspace_.pieces, false);
        append_pieces(kAligned ? characters.before(start) : 0);
    }

    // A chunk that fills more than a window.
    const std::uint8_t* encode_giant(const std::uint8_t* text, const std::uint8_t* end) {
        const auto is_boundary = [this](std::uint8_t byte) { return tokenizer_.tables_.is_boundary(byte); };
        const std::uint8_t* const chunk_end = std::find_if(text + 1, end, is_boundary);
        const auto size = static_cast<std::size_t>(chunk_end - text);
        if constexpr (kAligned) {
            reader_.read_general(text, size);
            append_pieces(0);
            place_ += static_cast<std::uint32_t>(count_characters({chars(text), size}));
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
            output_.begins.push_back(static_cast<std::int32_t>(place_ + piece.begin));
            output_.ends.push_back(static_cast<std::int32_t>(place_ + piece.end));
            output_.words.push_back(static_cast<std::int32_t>(word_ + piece.word));
        }
    }

    const Tokenizer& tokenizer_;
    Workspace& workspace_;
    ChunkReader reader_;
    WordSplitter<Encoder> splitter_;
    Output& output_;
    std::size_t limit_;
    std::uint32_t place_ = 0;  // characters of the text before the window
    std::uint32_t word_ = 0;   // words so far
};

Tokenizer::Tokenizer(std::vector<std::string> tokens, const std::vector<std::int32_t>& special_ids,
                     std::int32_t unknown_id, const NormalizerOptions& options, Scan scan)
    : tokens_(std::move(tokens)),
      unknown_id_(unknown_id),
      tables_(options),
      specials_(named(tokens_, special_ids)),
      matcher_(tokens_),
      scan_(scan),
      seeded_(tokens_.size()),
      pool_(seeded_) {
    piece_bytes_.reserve(tokens_.size());
    for (const std::string& token : tokens_) {
        const std::size_t mark = token.starts_with("##") ? 2 : 0;
        piece_bytes_.push_back(static_cast<std::uint32_t>(token.size() - mark));
    }
    seed();
}

// Vocabularies list frequent words first, and these get the places that are looked at first.
void Tokenizer::seed() {
    std::vector<Piece> pieces;
    ChunkReader reader(*this, pieces);
    std::array<std::uint8_t, ChunkCache::kLongBytes + 1> chunk{};
    for (const std::string& token : tokens_) {
        const std::uint8_t* const raw = bytes_of(token);
        if (token.size() > ChunkCache::kLongBytes || !is_chunk(token)) continue;
        std::copy(token.begin(), token.end(), chunk.begin());
        reader.read(raw, raw, token.size());
        seeded_.insert(chunk.data(), token.size(), pieces, true);
    }
}

// Could this be what the scan makes of a chunk of some text?
bool Tokenizer::is_chunk(std::string_view token) const {
    const auto at = [&token](std::size_t i) { return static_cast<std::uint8_t>(token[i]); };
    if (token.size() == 1 && tables_.kinds[at(0)] == NormalizerTables::Kind::kPunctuation) return true;
    for (std::size_t i = 0; i < token.size(); ++i) {
        const bool changes = tables_.options.lower_case && at(i) >= 'A' && at(i) <= 'Z';
        if (changes || tables_.is_boundary(at(i))) return false;
    }
    return !token.empty();
}

template <bool kAligned>
void Tokenizer::encode_segments(std::string_view text, Encoder<kAligned>& encoder) const {
    // Text between special tokens is normalised piece by piece: nothing is reordered or joined across one.
    for (std::size_t at = 0; at < text.size() && !encoder.full();) {
        const SpecialTokens::Match special = specials_.find(text, at);
        encoder.encode(text.substr(at, special.begin - at));
        if (special.id != Trie::kNone) encoder.special(special.id, text.substr(special.begin, special.end - special.begin));
        at = special.end;
    }
}

void Tokenizer::encode(std::string_view text, std::size_t limit, Workspace& workspace, Buffer<std::int32_t>& ids) const {
    const std::size_t full_size = limit == kNoLimit ? kNoLimit : ids.size() + limit;
    Encoder<false> encoder(*this, full_size, workspace, ids);
    encode_segments(text, encoder);
    if (ids.size() > full_size) ids.resize(full_size);
}

void Tokenizer::encode_aligned(std::string_view text, std::size_t limit, Workspace& workspace,
                               TokenColumns& tokens) const {
    const std::size_t full_size = limit == kNoLimit ? kNoLimit : tokens.ids.size() + limit;
    Encoder<true> encoder(*this, full_size, workspace, tokens);
    encode_segments(text, encoder);
    if (tokens.ids.size() <= full_size) return;
    for (auto* column : {&tokens.ids, &tokens.begins, &tokens.ends, &tokens.words}) column->resize(full_size);
}

}  // namespace fastbert::wordpiece
