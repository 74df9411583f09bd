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

// BERT strips nonspacing marks only.
void strip_marks(Characters& text) {
    std::erase_if(text, [](const NormalizedCharacter& character) {
        return (record_of(character.point).flags & unicode::kStripped) != 0;
    });
}

}  // namespace

NormalizedText::NormalizedText(std::string_view raw, const NormalizerOptions& options) {
    characters_ = clean(raw);
    if (options.chinese_chars) characters_ = isolate_chinese(characters_);
    if (options.strip_accents) {
        unicode::normalize(unicode::Form::kNfd, characters_);
        strip_marks(characters_);
    }
    if (options.lower_case) unicode::lowercase(characters_);
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
