#include "normalizer/normalizer.h"

#include <algorithm>
#include <utility>

#include "unicode/properties.h"
#include "unicode/utf8.h"

namespace fastbert::normalizer {
namespace {

constexpr std::uint32_t kPoints = 0x110000;

template <class... Functions>
struct Visitor : Functions... {
    using Functions::operator()...;
};
template <class... Functions>
Visitor(Functions...) -> Visitor<Functions...>;

// A character, and how many characters of the text it stands for: 0 replaces one, 1 is added, -n replaces one and
// removes n behind it.
struct Change {
    char32_t point;
    int change;
};

// The reference's rule, which counts through the `size` characters of the old text: a removal that is recorded nowhere
// shifts the sources of everything behind it.
void transform(std::size_t size, const std::vector<Change>& changes, Characters& result) {
    std::size_t at = 0;
    for (const auto& [point, change] : changes) {
        const std::size_t from = change > 0 ? (at == 0 ? 0 : at - 1) : std::min(at, size - 1);
        result.push_back({point, static_cast<std::uint32_t>(from)});
        if (change <= 0) at = std::min(at + 1 + static_cast<std::size_t>(-change), size);
    }
}

// As the reference does, which counts characters of a cluster that is replaced as a whole.
void replace_cluster(std::vector<Change>& changes, std::size_t old_count, std::string_view replacement) {
    const std::uint8_t* at = unicode::bytes_of(replacement);
    const std::uint8_t* const end = at + replacement.size();
    std::size_t new_count = 0;
    for (; at < end; ++new_count) changes.push_back({unicode::decode(at), 0});
    if (new_count > old_count) {
        for (std::size_t i = 1; i <= std::min(new_count - old_count, changes.size()); ++i) {
            changes[changes.size() - i].change = 1;
        }
    } else if (new_count < old_count && !changes.empty()) {
        changes.back().change -= static_cast<int>(old_count - new_count);
    }
}

void strip(const StripStep& step, Characters& text) {
    const auto is_space = [](const NormalizedCharacter& c) { return unicode::is_whitespace(c.point); };
    auto begin = text.begin(), end = text.end();
    if (step.left) begin = std::find_if_not(begin, end, is_space);
    while (step.right && end != begin && is_space(*(end - 1))) --end;
    text = Characters(begin, end);
}

// Each character of the content has the source of the last character of the match.
void append_content(const std::u32string& content, std::uint32_t source, Characters& to) {
    for (const char32_t point : content) to.push_back({point, source});
}

void replace(const ReplaceStep& step, Characters& text) {
    const auto is_same = [](const NormalizedCharacter& c, char32_t point) { return c.point == point; };
    const auto& pattern = step.pattern;
    Characters result;
    for (auto at = text.begin();;) {
        const auto match = std::search(at, text.end(), pattern.begin(), pattern.end(), is_same);
        result.insert(result.end(), at, match);
        if (match == text.end()) break;
        at = match + static_cast<std::ptrdiff_t>(pattern.size());
        append_content(step.content, (at - 1)->source, result);
    }
    text = std::move(result);
}

void replace_runs(const ReplaceRunsStep& step, Characters& text) {
    Characters result;
    for (std::size_t at = 0; at < text.size();) {
        std::size_t end = at;
        for (const auto& run : step.alternatives) {
            std::size_t next = at;
            const auto is_in = [&run](char32_t point) {
                return run.characters.find(point) != std::u32string::npos ||
                       (run.white_space && unicode::split_class_of(point) == unicode::SplitClass::kSpace);
            };
            while (next < text.size() && is_in(text[next].point) && !(run.single && next - at == run.least)) ++next;
            if (next - at >= run.least) {
                end = next;
                break;
            }
        }
        if (end == at) {
            result.push_back(text[at++]);
        } else {
            append_content(step.content, text[end - 1].source, result);
            at = end;
        }
    }
    text = std::move(result);
}

void prepend(const PrependStep& step, Characters& text) {
    if (text.empty()) return;
    Characters added;
    append_content(step.text, text.front().source, added);
    text.insert(text.begin(), added.begin(), added.end());
}

}  // namespace

std::vector<tokenizer::AddedToken> searched(const std::vector<tokenizer::AddedToken>& tokens,
                                            const Normalizer* normalizer) {
    std::vector<tokenizer::AddedToken> result;
    for (const tokenizer::AddedToken& token : tokens) {
        if (token.normalized != (normalizer != nullptr)) continue;
        result.push_back(token);
        if (normalizer == nullptr) continue;
        Characters content = characters_of(token.content);
        normalizer->apply(content);
        result.back().content = bytes_of(content);
    }
    return result;
}

Characters characters_of(std::string_view text) {
    Characters result;
    result.reserve(text.size());
    const std::uint8_t* at = unicode::bytes_of(text);
    const std::uint8_t* const end = at + text.size();
    for (std::uint32_t source = 0; at < end; ++source) result.push_back({unicode::decode(at), source});
    return result;
}

std::string bytes_of(const Characters& text) {
    std::string bytes;
    bytes.reserve(text.size());
    std::uint8_t encoded[unicode::kMaxUtf8Bytes];
    for (const NormalizedCharacter& character : text) {
        bytes.append(unicode::chars(encoded), unicode::encode(character.point, encoded));
    }
    return bytes;
}

Normalizer::Normalizer(std::vector<Step> steps) : steps_(std::move(steps)) {
    if (!steps_.empty()) classify();
}

void Normalizer::apply(Characters& text) const { apply_from(0, text); }

Characters Normalizer::normalize(std::string_view text) const {
    const auto* const charsmap = steps_.empty() ? nullptr : std::get_if<CharsmapStep>(&steps_.front());
    Characters result = charsmap ? map_characters(*charsmap->map, text) : characters_of(text);
    apply_from(charsmap ? 1 : 0, result);
    return result;
}

void Normalizer::apply_from(std::size_t first, Characters& text) const {
    for (std::size_t i = first; i < steps_.size(); ++i) {
        std::visit(Visitor{
                       [&](const FormStep& s) { unicode::normalize(s.form, text); },
                       [&](const LowercaseStep&) { unicode::lowercase(text); },
                       [&](const StripAccentsStep&) { unicode::strip_accents(text); },
                       [&](const StripStep& s) { strip(s, text); },
                       [&](const PrependStep& s) { prepend(s, text); },
                       [&](const ReplaceStep& s) { replace(s, text); },
                       [&](const ReplaceRunsStep& s) { replace_runs(s, text); },
                       [&](const CharsmapStep& s) {
                           Characters mapped = map_characters(*s.map, bytes_of(text));
                           for (NormalizedCharacter& character : mapped) {
                               character.source = text[character.source].source;
                           }
                           text = std::move(mapped);
                       },
                   },
                   steps_[i]);
    }
}

// The reference's rule: a grapheme cluster of fewer than 6 bytes is replaced as a whole by what replaces the shortest key
// at its start; the characters of others are looked up one by one.
Characters Normalizer::map_characters(const Charsmap& map, std::string_view text) const {
    constexpr std::ptrdiff_t kLongestCluster = 5;
    std::vector<Change> changes;
    changes.reserve(text.size());
    bool modified = false;
    const std::uint8_t* at = unicode::bytes_of(text);
    const std::uint8_t* const end = at + text.size();
    const std::uint8_t* cluster = at;      // around `at`, found only where it matters
    const std::uint8_t* cluster_end = at;
    const auto view = [](const std::uint8_t* from, const std::uint8_t* to) {
        return std::string_view(unicode::chars(from), static_cast<std::size_t>(to - from));
    };
    while (at < end) {
        const std::uint8_t* const begin = at;
        const char32_t point = unicode::decode(at);
        if (!this->changes(point) && !begins_keys(point)) {
            changes.push_back({point, 0});
            continue;
        }
        while (cluster_end <= begin) {
            cluster = cluster_end;
            cluster_end += unicode::grapheme_size(cluster, end);
        }
        if (begin == cluster && cluster_end - begin <= kLongestCluster) {
            const std::string_view whole = view(begin, cluster_end);
            if (const auto replacement = map.find(whole)) {
                replace_cluster(changes, unicode::count_characters(whole), *replacement);
                modified = true;
                at = cluster_end;
                continue;
            }
        }
        if (const auto replacement = map.find(view(begin, at))) {
            replace_cluster(changes, 1, *replacement);
            modified = true;
        } else {
            changes.push_back({point, 0});
        }
    }
    Characters result;
    result.reserve(changes.size());
    if (!modified) {
        for (const Change& change : changes) {
            result.push_back({change.point, static_cast<std::uint32_t>(result.size())});
        }
    } else {
        transform(unicode::count_characters(text), changes, result);
    }
    return result;
}

void Normalizer::classify() {
    changing_.assign(kPoints / 64, 0);
    beginning_.assign(kPoints / 64, 0);
    const auto set = [](std::vector<std::uint64_t>& bits, char32_t point) {
        bits[point / 64] |= std::uint64_t{1} << point % 64;
    };
    const auto set_if = [&](auto changes) {
        std::uint8_t encoded[unicode::kMaxUtf8Bytes];
        for (char32_t point = 0; point < kPoints; ++point) {
            if (point == 0xD800) point = 0xE000;
            if (changes(point, encoded)) set(changing_, point);
        }
    };
    for (const Step& step : steps_) {
        std::visit(Visitor{
                       [&](const FormStep& s) {
                           set_if([&](char32_t point, std::uint8_t* to) {
                               return !unicode::is_inert(s.form, {unicode::chars(to), unicode::encode(point, to)});
                           });
                       },
                       [&](const LowercaseStep&) {
                           set_if([](char32_t point, std::uint8_t*) {
                               return (unicode::record_of(point).flags & unicode::kLowers) != 0;
                           });
                       },
                       [&](const StripAccentsStep&) {
                           set_if([](char32_t point, std::uint8_t*) { return unicode::is_combining_mark(point); });
                       },
                       [&](const StripStep&) {
                           set_if([](char32_t point, std::uint8_t*) { return unicode::is_whitespace(point); });
                       },
                       [&](const PrependStep&) { std::fill(changing_.begin(), changing_.end(), ~std::uint64_t{0}); },
                       [&](const ReplaceStep& s) { set(changing_, s.pattern.front()); },
                       [&](const ReplaceRunsStep& s) {
                           for (const auto& run : s.alternatives) {
                               for (const char32_t point : run.characters) set(changing_, point);
                               if (!run.white_space) continue;
                               set_if([](char32_t point, std::uint8_t*) {
                                   return unicode::split_class_of(point) == unicode::SplitClass::kSpace;
                               });
                           }
                       },
                       [&](const CharsmapStep& s) {
                           for (const std::string& key : s.map->keys()) {
                               // A key that is cut off within a character matches no text.
                               if (!unicode::is_valid_utf8(key)) continue;
                               const std::uint8_t* at = unicode::bytes_of(key);
                               const char32_t point = unicode::decode(at);
                               const bool is_ascii = key.size() > 1 && point < 0x80 && *at < 0x80;
                               const bool alone = unicode::count_characters(key) == 1;
                               set(alone || is_ascii ? changing_ : beginning_, point);
                           }
                       },
                   },
                   step);
    }
    has_only_forms_ = std::all_of(steps_.begin(), steps_.end(), [](const Step& step) {
        return std::holds_alternative<FormStep>(step);
    });
    for (std::size_t i = 0; i < ascii_changes_.size(); ++i) {
        ascii_changes_[i] = changes(static_cast<char32_t>(i));
        keeps_ascii_ = keeps_ascii_ && !ascii_changes_[i];
    }
}

// Return true if a text begins with a key of a character map.
bool Normalizer::begins_key(std::string_view text) const {
    return std::any_of(steps_.begin(), steps_.end(), [text](const Step& step) {
        const auto* const charsmap = std::get_if<CharsmapStep>(&step);
        return charsmap != nullptr && charsmap->map->find(text);
    });
}

bool Normalizer::is_inert(std::string_view text) const {
    if (steps_.empty()) return true;
    const std::uint8_t* const begin = unicode::bytes_of(text);
    const std::uint8_t* at = begin;
    const std::uint8_t* const end = at + text.size();
    const auto is_in = [](const std::vector<std::uint64_t>& bits, char32_t point) {
        return (bits[point / 64] >> point % 64 & 1) != 0;
    };
    const auto rest = [end](const std::uint8_t* from) {
        return std::string_view(unicode::chars(from), static_cast<std::size_t>(end - from));
    };
    while (at < end) {
        if (*at < 0x80) {
            if (keeps_ascii_) {
                while (end - at >= 8) {
                    std::uint64_t word;
                    __builtin_memcpy(&word, at, 8);
                    if ((word & 0x8080808080808080U) != 0) break;
                    at += 8;
                }
                while (at < end && *at < 0x80) ++at;
            } else if (ascii_changes_[*at++]) {
                return false;
            }
            continue;
        }
        if (*at == 0xFF) {
            ++at;
            continue;
        }
        // A key that begins in ASCII goes on beyond it: others make their first character one that changes.
        if (at > begin && at[-1] < 0x80 && is_in(beginning_, at[-1]) && begins_key(rest(at - 1))) return false;
        const std::uint8_t* const character = at;
        const char32_t point = unicode::decode(at);
        if (is_in(changing_, point)) {
            if (!has_only_forms_) return false;
            // Most marks stand where they stay: compare the characters that may act on each other.
            while (at < end && *at >= 0x80 && *at != 0xFF) {
                const std::uint8_t* next = at;
                if (!is_in(changing_, unicode::decode(next))) break;
                at = next;
            }
            const std::uint8_t* from = character;
            if (from > begin && from[-1] != 0xFF) {
                --from;
                while ((*from & 0xC0) == 0x80) --from;
            }
            const std::string_view few(unicode::chars(from), static_cast<std::size_t>(at - from));
            const Characters before = characters_of(few);
            Characters after = before;
            apply(after);
            const auto is_same = [](const NormalizedCharacter& a, const NormalizedCharacter& b) {
                return a.point == b.point && a.source == b.source;
            };
            if (!std::equal(before.begin(), before.end(), after.begin(), after.end(), is_same)) return false;
            continue;
        }
        if (is_in(beginning_, point) && begins_key(rest(character))) return false;
    }
    return true;
}

}  // namespace fastbert::normalizer
