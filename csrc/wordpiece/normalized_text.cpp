#include "wordpiece/normalized_text.h"

#include <algorithm>
#include <array>

#include "unicode/tables.h"
#include "unicode/utf8.h"

namespace fastbert::wordpiece {
namespace {

using Characters = std::vector<NormalizedCharacter>;
using unicode::record_of;

// Remove control characters and normalise white space.
Characters clean(std::string_view raw) {
    Characters result;
    const auto* at = reinterpret_cast<const std::uint8_t*>(raw.data());
    const auto* const end = at + raw.size();
    for (std::uint32_t source = 0; at < end; ++source) {
        const char32_t point = unicode::decode(at);
        const unsigned flags = record_of(point).flags;
        if (flags & unicode::kDeleted) continue;
        result.push_back({flags & unicode::kCleanedToSpace ? U' ' : point, source});
    }
    return result;
}

Characters isolate_chinese(const Characters& text) {
    Characters result;
    for (const NormalizedCharacter& character : text) {
        const bool chinese = record_of(character.point).flags & unicode::kChinese;
        if (chinese) result.push_back({U' ', character.source});
        result.push_back(character);
        if (chinese) result.push_back({U' ', character.source});
    }
    return result;
}

// A character of a canonical decomposition. All but the first are inserted: they have no position in the text.
struct Part {
    char32_t point;
    std::uint8_t rank;
    bool inserted;
};

void decompose(char32_t point, std::vector<Part>& parts) {
    const unicode::Record& record = record_of(point);
    const auto add = [&](char32_t part, bool inserted) { parts.push_back({part, record_of(part).rank, inserted}); };
    if (!(record.flags & unicode::kDecomposes)) return add(point, false);
    if (record.decomposition != 0) {
        bool inserted = false;
        for (const char32_t part : unicode::sequence_at(record.decomposition)) {
            add(part, inserted);
            inserted = true;
        }
        return;
    }
    // Unicode standard, section 3.12: a Hangul syllable is leading + vowel + optional trailing consonant.
    const char32_t index = point - 0xAC00, trailing = index % 28;
    add(0x1100 + index / 588, false);
    add(0x1161 + index % 588 / 28, true);
    if (trailing != 0) add(0x11A7 + trailing, true);
}

// Canonical decomposition (NFD). Reordered marks keep the sequence of source positions.
Characters decompose(const Characters& text) {
    std::vector<Part> parts;
    for (const NormalizedCharacter& character : text) decompose(character.point, parts);
    const auto starts = [](const Part& part) { return part.rank == 0; };
    for (auto at = parts.begin(); at != parts.end();) {
        const auto marks = std::find_if_not(at, parts.end(), starts);
        at = std::find_if(marks, parts.end(), starts);
        std::stable_sort(marks, at, [](const Part& a, const Part& b) { return a.rank < b.rank; });
    }
    Characters result;
    std::size_t next = 0;
    for (const Part& part : parts) {
        if (!part.inserted) ++next;
        result.push_back({part.point, text[next == 0 ? 0 : next - 1].source});
    }
    return result;
}

void strip_marks(Characters& text) {
    std::erase_if(text, [](const NormalizedCharacter& character) {
        return (record_of(character.point).flags & unicode::kStripped) != 0;
    });
}

Characters lower(const Characters& text) {
    Characters result;
    for (const NormalizedCharacter& character : text) {
        const unicode::Record& record = record_of(character.point);
        if (!(record.flags & unicode::kLowers)) {
            result.push_back(character);
        } else {
            for (const char32_t part : unicode::sequence_at(record.lower)) result.push_back({part, character.source});
        }
    }
    return result;
}

}  // namespace

NormalizedText::NormalizedText(std::string_view raw, const NormalizerOptions& options) {
    characters_ = clean(raw);
    if (options.chinese_chars) characters_ = isolate_chinese(characters_);
    if (options.strip_accents) {
        characters_ = decompose(characters_);
        strip_marks(characters_);
    }
    if (options.lower_case) characters_ = lower(characters_);
    for (const NormalizedCharacter& character : characters_) {
        std::array<std::uint8_t, unicode::kMaxUtf8Bytes> encoded;
        offsets_.push_back(bytes_.size());
        bytes_.append(encoded.begin(), encoded.begin() + unicode::encode(character.point, encoded.data()));
    }
}

std::span<const NormalizedCharacter> NormalizedText::characters(std::size_t begin, std::size_t end) const {
    const auto index = [this](std::size_t byte) {
        return static_cast<std::size_t>(std::lower_bound(offsets_.begin(), offsets_.end(), byte) - offsets_.begin());
    };
    return std::span(characters_).subspan(index(begin), index(end) - index(begin));
}

}  // namespace fastbert::wordpiece
