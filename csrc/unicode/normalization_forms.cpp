#include "unicode/normalization_forms.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <span>
#include <utility>

#include "unicode/canonical.h"
#include "unicode/properties.h"
#include "unicode/utf8.h"

namespace fastbert::unicode {
namespace {

using Characters = std::vector<NormalizedCharacter>;

// A character of the normalized text, in place of `replaced` characters of the text before; 0 if it was inserted.
struct Part {
    char32_t point;
    std::uint8_t rank;
    std::uint32_t replaced;
};

bool composes(Form form) { return form == Form::kNfc || form == Form::kNfkc; }
bool is_compatible(Form form) { return form == Form::kNfkc || form == Form::kNfkd; }

bool is_inert(Form form, char32_t point) {
    return (properties_of(point) & (kChangesInForm << static_cast<unsigned>(form))) == 0;
}

std::span<const char32_t> compatibility_decomposition(char32_t point) {
    const unsigned block = kCompatibilityBlocks[point >> kBlockBits];
    const auto offset = kCompatibilityOfBlock[(block << kBlockBits) | (point & ((1u << kBlockBits) - 1))];
    return {kCompatibilitySequences + offset + 1, kCompatibilitySequences[offset]};
}

class Normalizer {
public:
    explicit Normalizer(Form form) : form_(form) {}

    // Append the normalized text to `result`. The text must begin at a character that composes with none before it.
    void normalize(std::span<const NormalizedCharacter> text, Characters& result) {
        parts_.clear();
        marks_ = 0;
        for (const NormalizedCharacter& character : text) decompose(character.point);
        order_pending();
        if (composes(form_)) compose();
        std::size_t next = 0;  // index in `text`
        for (const Part& part : parts_) {
            // The first part is never inserted: the marks of a decomposition are in order.
            result.push_back({part.point, text[part.replaced == 0 && next > 0 ? next - 1 : next].source});
            next += part.replaced;
        }
    }

private:
    void add(char32_t point, bool inserted) {
        const std::uint8_t rank = record_of(point).rank;
        if (rank == 0) order_pending();
        parts_.push_back({point, rank, inserted ? 0u : 1u});
        if (rank == 0) marks_ = parts_.size();
    }

    void add(std::span<const char32_t> decomposition) {
        bool inserted = false;
        for (const char32_t part : decomposition) add(part, std::exchange(inserted, true));
    }

    void decompose(char32_t point) {
        if (is_compatible(form_) && (properties_of(point) & kDecomposesCompatibly)) {
            return add(compatibility_decomposition(point));
        }
        const Record& record = record_of(point);
        if (!(record.flags & kDecomposes)) return add(point, false);
        if (record.decomposition != 0) return add(sequence_at(record.decomposition));
        bool inserted = false;
        hangul::decompose(point, [&](char32_t part) { add(part, std::exchange(inserted, true)); });
    }

    // Put the marks since the last starter in canonical order.
    void order_pending() {
        order_marks(parts_.begin() + static_cast<std::ptrdiff_t>(marks_), parts_.end());
        marks_ = parts_.size();
    }

    // Canonical composition of parts_, in place.
    void compose() {
        constexpr auto kNone = static_cast<std::size_t>(-1);
        std::size_t size = 0, starter = kNone;
        unsigned last_rank = 0;  // of the marks kept since the starter, 0 without any
        for (const Part& part : parts_) {
            const bool blocked = size != starter + 1 && last_rank >= part.rank;
            if (starter != kNone && !blocked) {
                if (const char32_t composed = composition_of(parts_[starter].point, part.point)) {
                    parts_[starter].point = composed;
                    parts_[starter].replaced += part.replaced;
                    continue;
                }
            }
            if (part.rank == 0) starter = size;
            last_rank = part.rank;
            parts_[size++] = part;
        }
        parts_.resize(size);
    }

    // Return 0 if the characters do not compose.
    static char32_t composition_of(char32_t first, char32_t second) {
        if (!(properties_of(second) & kComposesWithPrevious)) return 0;
        if (const char32_t syllable = hangul::compose(first, second)) return syllable;
        const auto is_before = [](const Composition& entry, const std::pair<char32_t, char32_t>& characters) {
            return std::pair(entry.second, entry.first) < characters;
        };
        const auto at =
            std::lower_bound(kCompositions.begin(), kCompositions.end(), std::pair(second, first), is_before);
        return at != kCompositions.end() && at->second == second && at->first == first ? at->composed : 0;
    }

    const Form form_;
    std::vector<Part> parts_;
    std::size_t marks_ = 0;  // where the marks since the last starter begin in parts_
};

}  // namespace

// What precedes an inert character is normalized independently of it and of what follows. So only segments that hold
// other characters are processed, each from the inert character before them up to the next one.
void normalize(Form form, Characters& text) {
    const auto inert = [form](const NormalizedCharacter& character) { return is_inert(form, character.point); };
    auto at = std::find_if_not(text.begin(), text.end(), inert);
    if (at == text.end()) return;
    Normalizer normalizer(form);
    Characters result;
    result.reserve(text.size() + text.size() / 8);
    auto copied = text.begin();  // everything before is in `result`
    while (at != text.end()) {
        const auto begin = at == copied ? at : std::prev(at);
        result.insert(result.end(), copied, begin);
        copied = std::find_if(at, text.end(), inert);
        normalizer.normalize({begin, copied}, result);
        at = std::find_if_not(copied, text.end(), inert);
    }
    result.insert(result.end(), copied, text.end());
    text = std::move(result);
}

bool is_inert(Form form, std::string_view text) {
    const auto* at = bytes_of(text);
    const auto* const end = at + text.size();
    while (at < end) {
        // ASCII is inert in every form.
        std::array<std::uint64_t, 4> words;
        while (end - at >= static_cast<std::ptrdiff_t>(sizeof(words))) {
            std::memcpy(words.data(), at, sizeof(words));
            if (((words[0] | words[1] | words[2] | words[3]) & 0x8080808080808080) != 0) break;
            at += sizeof(words);
        }
        for (int i = 0; i < 16 && at < end; ++i) {
            if (*at < 0x80) {
                ++at;
            } else if (!is_inert(form, decode(at))) {
                return false;
            }
        }
    }
    return true;
}

void lowercase(Characters& text) {
    Characters result;
    result.reserve(text.size());
    for (const NormalizedCharacter& character : text) {
        const Record& record = record_of(character.point);
        if (!(record.flags & kLowers)) {
            result.push_back(character);
        } else {
            for (const char32_t part : sequence_at(record.lower)) result.push_back({part, character.source});
        }
    }
    text = std::move(result);
}

void strip_accents(Characters& text) {
    std::erase_if(text, [](const NormalizedCharacter& character) { return is_combining_mark(character.point); });
}

}  // namespace fastbert::unicode
