#include "wordpiece/chunk_cache.h"

#include <algorithm>
#include <new>

#include "common/buffer.h"

namespace fastbert::wordpiece {
namespace {

// Lines of 64 bytes: 4 MB hold the whole words of an English vocabulary twice over, and what texts bring beside them.
constexpr std::size_t kLeastShortLines = std::size_t{1} << 16;
constexpr std::size_t kMostShortLines = std::size_t{1} << 17;
constexpr std::size_t kLongLines = std::size_t{1} << 15;
constexpr std::size_t kHugePage = std::size_t{1} << 21;

std::size_t short_lines_for(std::size_t chunks) {
    return std::clamp(std::bit_ceil(chunks), kLeastShortLines, kMostShortLines);
}

unsigned shift_for(std::size_t lines) { return 64 - static_cast<unsigned>(std::countr_zero(lines)); }

}  // namespace

template <class Line>
ChunkCache::Lines<Line>::Lines(std::size_t count) : count_(count) {
    const std::size_t bytes = count * sizeof(Line);
    lines_ = static_cast<Line*>(::operator new(bytes, std::align_val_t{kHugePage}));
    advise_huge_pages(lines_, bytes);
    std::memset(static_cast<void*>(lines_), 0, bytes);
}

template <class Line>
ChunkCache::Lines<Line>::Lines(const Lines& other) : count_(other.count_) {
    const std::size_t bytes = count_ * sizeof(Line);
    lines_ = static_cast<Line*>(::operator new(bytes, std::align_val_t{kHugePage}));
    advise_huge_pages(lines_, bytes);
    std::memcpy(static_cast<void*>(lines_), other.lines_, bytes);
}

template <class Line>
ChunkCache::Lines<Line>::~Lines() {
    ::operator delete(lines_, std::align_val_t{kHugePage});
}

template class ChunkCache::Lines<ChunkCache::ShortLine>;
template class ChunkCache::Lines<ChunkCache::LongLine>;

ChunkCache::ChunkCache(std::size_t vocabulary_chunks)
    : short_lines_(short_lines_for(vocabulary_chunks)),
      long_lines_(kLongLines),
      short_shift_(shift_for(short_lines_.size())),
      long_shift_(shift_for(long_lines_.size())) {}

ChunkCache::ChunkCache(const ChunkCache& other) = default;

ChunkCache::LongKey ChunkCache::long_key(const std::uint8_t* chunk, std::size_t size) {
    LongKey key;
    for (std::size_t i = 0; i < 4; ++i) {
        const std::size_t in_word = size <= 8 * i ? 0 : std::min<std::size_t>(size - 8 * i, 8);
        key.words[i] = load(chunk + 8 * i) & kFirstBytes[in_word];
    }
    key.words[3] |= static_cast<std::uint64_t>(size) << 56;
    return key;
}

std::size_t ChunkCache::place_of(const LongKey& key) const {
    const std::uint64_t hash = key.words[0] * 0x9E3779B97F4A7C15U + key.words[1] * 0xC2B2AE3D27D4EB4FU +
                               key.words[2] * 0xD6E8FEB86659FD93U + key.words[3] * 0xFF51AFD7ED558CCDU;
    return hash >> long_shift_;
}

void ChunkCache::insert(const std::uint8_t* chunk, std::size_t size, std::span<const Piece> pieces, bool keep) {
    if (size <= kShortBytes && pieces.size() <= ShortPieces::kMax) {
        insert_short(chunk, size, pieces, keep);
    } else if (size <= kLongBytes && pieces.size() <= LongPieces::kMax) {
        insert_long(chunk, size, pieces, keep);
    }
}

void ChunkCache::insert_short(const std::uint8_t* chunk, std::size_t size, std::span<const Piece> pieces, bool keep) {
    ShortPieces value{};
    value.places = static_cast<std::uint32_t>(pieces.size()) << 28 | static_cast<std::uint32_t>(keep) << 27;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        value.ids[i] = pieces[i].id;
        value.places |= (pieces[i].begin | pieces[i].end << 4) << 8 * i;
        if (i > 0) value.places |= pieces[i].word << (23 + i);
    }
    const ShortKey key = short_key(chunk, size);
    const std::size_t place = place_of(key);
    const std::uint32_t random = next_random();
    // A free place, else one that may be given up, else none.
    for (const bool give_up : {false, true}) {
        for (std::uint32_t i = 0; i < 4; ++i) {
            const std::uint32_t choice = give_up ? i ^ (random & 3) : i;
            ShortLine& line = short_lines_[place ^ (choice >> 1)];
            const std::size_t entry = choice & 1;
            const bool is_free = line.keys[entry].high == 0;
            if (!is_free && !(give_up && !line.pieces[entry].kept())) continue;
            line.keys[entry] = key;
            line.pieces[entry] = value;
            return;
        }
    }
}

void ChunkCache::insert_long(const std::uint8_t* chunk, std::size_t size, std::span<const Piece> pieces, bool keep) {
    LongPieces value{};
    value.number = static_cast<std::uint8_t>(pieces.size());
    value.kept = keep;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        value.ids[i] = pieces[i].id;
        value.begins_and_words[i] = static_cast<std::uint8_t>(pieces[i].begin | pieces[i].word << 5);
        value.ends[i] = static_cast<std::uint8_t>(pieces[i].end);
    }
    const LongKey key = long_key(chunk, size);
    const std::size_t place = place_of(key);
    const std::size_t other = place ^ 1;
    const auto is_free = [this](std::size_t at) { return long_lines_[at].key.words[3] == 0; };
    std::size_t at = is_free(place) ? place : is_free(other) ? other : place ^ (next_random() & 1);
    if (!is_free(at) && long_lines_[at].pieces.kept) at ^= 1;
    if (!is_free(at) && long_lines_[at].pieces.kept) return;
    long_lines_[at] = {key, value};
}

// xorshift: which of several chunks has to go matters to nobody, as long as a text cannot count on it.
std::uint32_t ChunkCache::next_random() {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 17;
    random_ ^= random_ << 5;
    return random_;
}

}  // namespace fastbert::wordpiece
