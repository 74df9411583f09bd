#include "unigram/unigram.h"

#include <algorithm>
#include <array>
#include <utility>
#include <variant>

#include "tokenizer/chunk_encoder.h"
#include "unicode/properties.h"
#include "unigram/chunk_reader.h"

namespace fastbert::unigram {
namespace {

using normalizer::Characters;
using normalizer::Step;

constexpr char32_t kPoints = 0x110000;

normalizer::Normalizer without_strips(const normalizer::Normalizer& normalizer) {
    std::vector<Step> steps = normalizer.steps();
    std::erase_if(steps, [](const Step& step) { return std::holds_alternative<normalizer::StripStep>(step); });
    return normalizer::Normalizer(std::move(steps));
}

template <class Kind, class Variant>
const Kind* find_step(const std::vector<Variant>& steps) {
    for (const Variant& step : steps) {
        if (const auto* const found = std::get_if<Kind>(&step)) return found;
    }
    return nullptr;
}

std::string normalized(const normalizer::Normalizer& normalizer, std::string_view text) {
    return normalizer::bytes_of(normalizer.normalize(text));
}

}  // namespace

Unigram::Unigram(const std::vector<std::string>& tokens, std::vector<double> scores, std::int32_t unknown_id,
                 std::vector<std::int32_t> byte_ids, const std::vector<AddedToken>& added, bool split_special,
                 normalizer::Normalizer normalizer, PreTokenizer pre_tokenizer, SpaceScan scan)
    : pieces_(tokens, std::move(scores), unknown_id, std::move(byte_ids)),
      unknown_id_(unknown_id),
      raw_tokens_(normalizer::searched(added, nullptr), split_special),
      normalized_tokens_(normalizer::searched(added, &normalizer), split_special),
      normalizer_(std::move(normalizer)),
      local_normalizer_(without_strips(normalizer_)),
      pre_tokenizer_(std::move(pre_tokenizer)),
      scan_(scan) {
    find_spaces();
    find_hazards();
    give_back(make_workspace());
}

// Find out whether text may be cut before spaces: the steps must treat what is on both sides separately.
void Unigram::find_spaces() {
    using normalizer::ReplaceRunsStep;
    bool splits = false, known = true;
    const MetaspaceStep* metaspace = nullptr;
    for (const SplittingStep& step : pre_tokenizer_.steps()) {
        if (const auto* const found = std::get_if<MetaspaceStep>(&step)) {
            splits = splits || found->split;
            known = known && metaspace == nullptr;
            metaspace = found;
            first_matters_ = found->prepend == MetaspaceStep::Prepend::kFirst;
        } else if (std::holds_alternative<WhitespaceSplitStep>(step)) {
            // Behind a Metaspace step there are no spaces.
            splits = splits || metaspace == nullptr;
            drops_space_ = drops_space_ || metaspace == nullptr;
        } else if (std::holds_alternative<SplitStep>(step)) {
            known = false;
        }
    }
    for (const Step& step : normalizer_.steps()) {
        if (std::holds_alternative<normalizer::PrependStep>(step)) known = false;
        if (const auto* const strip = std::get_if<normalizer::StripStep>(&step)) {
            strips_left_ = strips_left_ || strip->left;
            strips_right_ = strips_right_ || strip->right;
        }
        if (const auto* const runs = std::get_if<ReplaceRunsStep>(&step)) {
            in_runs_ = true;
            known = known && runs->content == U" ";
        }
        if (const auto* const replace = std::get_if<normalizer::ReplaceStep>(&step)) {
            // A single character may become a space; what is longer must not reach over one.
            known = known && (replace->pattern.size() == 1 || std::none_of(replace->pattern.begin(),
                                                                           replace->pattern.end(), unicode::is_whitespace));
        }
    }
    cuts_ = splits && known && normalized(local_normalizer_, " ") == " ";
    if (!cuts_) return;
    std::size_t next = 1;
    for (const char byte : {'\n', '\t'}) {
        const std::string alone(1, byte), between = std::string("a") + byte + "b";
        if (normalized(local_normalizer_, alone) == " " && normalized(local_normalizer_, between) == "a b") {
            spaces_[next++] = static_cast<std::uint8_t>(byte);
        }
    }
    const auto& steps = pre_tokenizer_.steps();
    is_usual_ = metaspace != nullptr && metaspace->prepend == MetaspaceStep::Prepend::kAlways && metaspace->split &&
                (steps.size() == 1 || (steps.size() == 2 && drops_space_ && std::get_if<MetaspaceStep>(&steps[1])));
    if (metaspace == nullptr) return;
    replacement_point_ = metaspace->replacement;
    std::array<std::uint8_t, unicode::kMaxUtf8Bytes> encoded;
    replacement_.assign(unicode::chars(encoded.data()), unicode::encode(metaspace->replacement, encoded.data()));
}

// Characters that act across spaces.
void Unigram::find_hazards() {
    using normalizer::ReplaceRunsStep;
    hazards_.assign(kPoints / 64, 0);
    const auto set = [this](char32_t point) {
        hazards_[point / 64] |= std::uint64_t{1} << point % 64;
        has_hazards_ = true;
        has_wide_hazards_ = has_wide_hazards_ || point >= 0x80;
        has_visible_hazards_ = has_visible_hazards_ || (point >= ' ' && point < 0x7F);
    };
    std::array<std::uint8_t, unicode::kMaxUtf8Bytes> encoded;
    const auto vanishes = [&](char32_t point) {
        const std::string_view character(unicode::chars(encoded.data()), unicode::encode(point, encoded.data()));
        const std::string result = normalized(local_normalizer_, character);
        return result.empty() || result.find(' ') != std::string::npos;
    };
    const auto* const charsmap = find_step<normalizer::CharsmapStep>(normalizer_.steps());
    const auto* const runs = find_step<ReplaceRunsStep>(normalizer_.steps());
    for (char32_t point = 0; point < kPoints; ++point) {
        if (point == 0xD800) point = 0xE000;
        // A cluster of such a character and a space may be replaced as a whole.
        if (charsmap && unicode::is_prepended(point) && normalizer_.is_key_start(point)) set(point);
        if (!runs || (point < 0x80 && is_space(static_cast<std::uint8_t>(point)))) continue;
        // What becomes white space, or goes, may stand in a run with a space.
        const bool is_space_class = unicode::split_class_of(point) == unicode::SplitClass::kSpace;
        if (is_space_class || (normalizer_.changes(point) && vanishes(point))) set(point);
    }
    // So may what several characters become.
    for (const Step& step : normalizer_.steps()) {
        if (!runs) break;
        const auto set_visible = [this, &set](char32_t point) {
            if (point >= 0x80 || !is_space(static_cast<std::uint8_t>(point))) set(point);
        };
        if (const auto* const others = std::get_if<ReplaceRunsStep>(&step)) {
            for (const auto& run : others->alternatives) {
                std::for_each(run.characters.begin(), run.characters.end(), set_visible);
            }
        } else if (const auto* const replace = std::get_if<normalizer::ReplaceStep>(&step)) {
            const bool has_space = std::any_of(replace->content.begin(), replace->content.end(), unicode::is_whitespace);
            if (!replace->content.empty() && !has_space) continue;
            set_visible(replace->pattern.front());
            set_visible(replace->pattern.back());
        }
    }
    if (charsmap && runs) {
        for (const std::string& key : charsmap->map->keys()) {
            const auto value = charsmap->map->find(key);
            if (!unicode::is_valid_utf8(key) || (value && !value->empty() && value->find(' ') == value->npos)) continue;
            const std::uint8_t* at = unicode::bytes_of(key);
            if (!is_space(*at)) set(unicode::decode(at));
        }
    }
    // "\r\n" is one cluster. It may become a single space, a difference only where spaces count, or anything else.
    const Characters pair = normalizer::characters_of(normalized(local_normalizer_, "\r\n"));
    const auto is_white = [](const normalizer::NormalizedCharacter& at) { return unicode::is_whitespace(at.point); };
    const bool stays_white = !pair.empty() && std::all_of(pair.begin(), pair.end(), is_white);
    if (charsmap && !(drops_space_ && stays_white)) set('\r');
    find_vanishing();
}

// Characters that may leave nothing behind, alone or at the ends of a pattern, or white space that a later step strips.
void Unigram::find_vanishing() {
    vanishing_.assign(kPoints / 64, 0);
    const auto set = [this](char32_t point) { vanishing_[point / 64] |= std::uint64_t{1} << point % 64; };
    const bool strips = strips_left_ || strips_right_;
    const auto fades = [strips](std::u32string_view result) {
        return result.empty() || (strips && (unicode::is_whitespace(result.front()) || unicode::is_whitespace(result.back())));
    };
    const auto fades_to_bytes = [&fades](std::string_view result) {
        std::u32string points;
        if (!unicode::is_valid_utf8(result)) return true;
        for (const auto& character : normalizer::characters_of(result)) points.push_back(character.point);
        return fades(points);
    };
    for (char32_t point = '!'; point < 0x7F; ++point) {
        const char character = static_cast<char>(point);
        if (fades_to_bytes(normalized(local_normalizer_, {&character, 1}))) set(point);
    }
    for (const Step& step : normalizer_.steps()) {
        if (const auto* const replace = std::get_if<normalizer::ReplaceStep>(&step)) {
            if (!fades(replace->content)) continue;
            set(replace->pattern.front());
            set(replace->pattern.back());
        } else if (const auto* const runs = std::get_if<normalizer::ReplaceRunsStep>(&step)) {
            if (!fades(runs->content)) continue;
            for (const auto& run : runs->alternatives) std::for_each(run.characters.begin(), run.characters.end(), set);
        } else if (const auto* const charsmap = std::get_if<normalizer::CharsmapStep>(&step)) {
            for (const std::string& key : charsmap->map->keys()) {
                const auto value = charsmap->map->find(key);
                if (!value || !unicode::is_valid_utf8(key) || !fades_to_bytes(*value)) continue;
                const Characters characters = normalizer::characters_of(key);
                set(characters.front().point);
                set(characters.back().point);
            }
        }
    }
}

std::unique_ptr<Workspace> Unigram::make_workspace() const { return std::make_unique<Workspace>(); }

// Return true if what is done to a text as a whole leaves it: where white space is stripped its ends matter, and its first
// character, whose removal by a character map shifts all offsets in the reference. Without hazards it may then be cut
// into chunks.
bool Unigram::ends_stay(std::string_view text) const {
    if (!cuts_) return false;
    const auto first = static_cast<std::uint8_t>(text.front()), last = static_cast<std::uint8_t>(text.back());
    const auto is_visible = [this](std::uint8_t byte) { return byte > ' ' && byte < 0x7F && !is_vanishing(byte); };
    const auto stays = [this](std::string_view character) {
        const std::uint8_t* at = unicode::bytes_of(character);
        const char32_t point = unicode::decode(at);
        return !is_vanishing(point) && !normalizer_.changes(point) && !unicode::is_whitespace(point);
    };
    if (!is_visible(first) && (strips_left_ || !is_space(first)) && !stays(text)) return false;
    if (strips_right_ && !is_visible(last)) {
        std::size_t begin = text.size() - 1;
        while ((static_cast<std::uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
        if (!stays(text.substr(begin))) return false;
    }
    return true;
}

// The offset of the first hazard, or the size.
std::size_t Unigram::find_hazard(std::string_view text) const {
    if (!has_hazards_) return text.size();
    const std::uint8_t* const begin = unicode::bytes_of(text);
    const std::uint8_t* at = begin;
    const std::uint8_t* const end = at + text.size();
    while (at < end) {
        // Eight bytes from ' ' to '~' at a time.
        while (end - at >= 8 && !has_visible_hazards_) {
            std::uint64_t word;
            __builtin_memcpy(&word, at, 8);
            constexpr std::uint64_t kOnes = 0x0101010101010101U;
            if (((word | (word - kOnes * 0x20) | (word + kOnes)) & (kOnes * 0x80)) != 0) break;
            at += 8;
        }
        if (at == end) break;
        const std::uint8_t* const character = at;
        if (*at >= 0x80 && !has_wide_hazards_) {
            ++at;
        } else if (is_hazard(unicode::decode(at))) {
            return static_cast<std::size_t>(character - begin);
        }
    }
    return text.size();
}

// Return true if a text may be cut before the byte although there are hazards elsewhere: a single space between visible
// characters.
bool Unigram::is_safe_cut(std::string_view text, std::size_t at) const {
    const auto is_visible = [&](std::size_t i) {
        const auto byte = static_cast<std::uint8_t>(text[i]);
        return byte > ' ' && byte < 0x7F && !is_vanishing(byte) && !is_hazard(byte);
    };
    return at > 0 && at + 1 < text.size() && text[at] == ' ' && is_visible(at - 1) && is_visible(at + 1);
}

// Return true if no step changes the characters of a chunk or splits between them.
bool Unigram::is_plain(std::string_view text) const {
    const std::uint8_t* at = unicode::bytes_of(text);
    const std::uint8_t* const end = at + text.size();
    while (at < end) {
        if (*at > ' ' && *at < 0x7F) {
            ++at;
            continue;
        }
        const std::uint8_t* const begin = at;
        if (unicode::is_whitespace(unicode::decode(at))) return false;
        const std::string_view character(unicode::chars(begin), static_cast<std::size_t>(at - begin));
        if (character == replacement_) return false;
    }
    return local_normalizer_.is_inert(text);
}

bool Unigram::stages(std::string_view staged) const {
    if (!cuts_ || first_matters_ || raw_tokens_.occurs_in(staged)) return false;
    if (!normalized_tokens_.empty() && (!normalizer_.is_inert(staged) || normalized_tokens_.occurs_in(staged))) return false;
    while (!staged.empty()) {
        const std::size_t size = staged.find(static_cast<char>(tokenizer::kSeparator));
        if (size > 0 && !is_local(staged.substr(0, size))) return false;
        staged.remove_prefix(size + 1);
    }
    return true;
}

// Without the last chunk, which may go on.
std::size_t Unigram::settle(tokenizer::Window& window, std::size_t size) const {
    if (window.count == 0) return size;
    return window.starts[--window.count];
}

const std::uint8_t* Unigram::chunk_end(const std::uint8_t* text, const std::uint8_t* end) const {
    const auto is_space_byte = [this](std::uint8_t byte) { return is_space(byte); };
    const std::uint8_t* at = text + 1;
    if (in_runs_ && is_space(*text)) at = std::find_if_not(at, end, is_space_byte);
    return std::find_if(at, end, is_space_byte);
}

void Unigram::encode(std::span<const std::string_view> texts, std::size_t limit, const tokenizer::Wrapping& wrapping,
                     Workspace& workspace, Buffer<std::int32_t>& ids, std::int64_t* ends) const {
    tokenizer::ChunkEncoder<Unigram, false> encoder(*this, limit, workspace, ids);
    encoder.wrap(wrapping);
    encoder.encode_rows(texts, ends);
}

void Unigram::encode_aligned(std::span<const std::string_view> texts, std::size_t limit, Workspace& workspace,
                             TokenColumns& tokens, std::int64_t* ends) const {
    tokenizer::ChunkEncoder<Unigram, true>(*this, limit, workspace, tokens).encode_rows(texts, ends);
}

tokenizer::AddedStrings Unigram::added_strings(std::string_view text) const {
    return tokenizer::added_strings(*this, text);
}

}  // namespace fastbert::unigram
