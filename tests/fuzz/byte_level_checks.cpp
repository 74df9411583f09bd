// Byte-level BPE by its definition: the text as a whole, and of all pairs the one of the lowest rank, the leftmost first.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <utility>

#include "bpe/byte_level.h"
#include "checks.h"
#include "draws.h"
#include "unicode/utf8.h"

namespace fastbert::checks {
namespace {

using namespace bpe;
using normalizer::Characters;
using normalizer::Normalizer;

struct Model {
    std::vector<std::string> tokens;  // the bytes of each; then the special ones, which stand for none
    std::vector<std::array<std::int32_t, 3>> merges;
    std::map<std::pair<std::int32_t, std::int32_t>, std::pair<std::size_t, std::int32_t>> ranks;
    std::map<std::string, std::int32_t, std::less<>> ids;
};

// Fill in the ranks of the merges, and make room for special tokens.
void complete(Model& model) {
    for (std::size_t rank = 0; rank < model.merges.size(); ++rank) {
        model.ranks[{model.merges[rank][0], model.merges[rank][1]}] = {rank, model.merges[rank][2]};
    }
    model.tokens.resize(model.tokens.size() + kSpecials.size());
}

// Random merges, in the order in which they are drawn or in another one, in which a token may rank before its parts.
Model make_model(bool shuffled) {
    Model model;
    for (int byte = 0; byte < 256; ++byte) model.tokens.push_back(std::string(1, static_cast<char>(byte)));
    for (std::size_t id = 0; id < 256; ++id) model.ids[model.tokens[id]] = static_cast<std::int32_t>(id);
    std::vector<std::vector<std::int32_t>> words;
    for (const char* word : {" the", " there", "don't", "'ll", "'s", " abab", "abcde", "aaaaaaaaaaaaaaaaaaaa", "        ",
                             "!!!!!!!!", " é", "éa", "中国", " 한국", "か\u3099", "\n\n\n\n", "121212", "\u2003\u2003", "ﬁ", "THE"}) {
        words.emplace_back();
        for (const char byte : std::string_view(word)) words.back().push_back(static_cast<std::uint8_t>(byte));
    }
    std::mt19937 random(1);
    for (int i = 0; i < 400; ++i) {
        std::vector<std::int32_t>& word = words[random() % words.size()];
        if (word.size() < 2) continue;
        const std::size_t at = random() % (word.size() - 1);
        const std::pair pair{word[at], word[at + 1]};
        const std::string text = model.tokens[static_cast<std::size_t>(pair.first)] + model.tokens[static_cast<std::size_t>(pair.second)];
        const auto [entry, is_new] = model.ids.emplace(text, static_cast<std::int32_t>(model.tokens.size()));
        if (is_new) model.tokens.push_back(text);
        if (model.ranks.emplace(pair, std::pair{0, 0}).second) model.merges.push_back({pair.first, pair.second, entry->second});
        word[at] = entry->second;
        word.erase(word.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
    if (shuffled) std::shuffle(model.merges.begin(), model.merges.end(), random);
    complete(model);
    return model;
}

// Any merges at all: of a pair that came before, the last rank counts.
Model draw_model(Draws& draws) {
    Model model;
    for (int byte = 0; byte < 256; ++byte) {
        model.ids[std::string(1, static_cast<char>(byte))] = byte;
        model.tokens.push_back(std::string(1, static_cast<char>(byte)));
    }
    const auto draw_token = [&] {
        return draws.coin() || model.tokens.size() == 256 ? draws.byte() : 256 + draws.below(model.tokens.size() - 256);
    };
    for (std::size_t count = draws.below(96); count > 0; --count) {
        const std::size_t left = draw_token(), right = draw_token();
        const std::string text = model.tokens[left] + model.tokens[right];
        if (text.size() > 200) continue;
        const auto [entry, is_new] = model.ids.emplace(text, static_cast<std::int32_t>(model.tokens.size()));
        if (is_new) model.tokens.push_back(text);
        model.merges.push_back({static_cast<std::int32_t>(left), static_cast<std::int32_t>(right), entry->second});
    }
    if (draws.coin()) std::reverse(model.merges.begin(), model.merges.end());
    complete(model);
    return model;
}

Normalizer normalizer_of(unsigned choice) {
    switch (choice) {
        case 0: return Normalizer({});
        case 1: return Normalizer({normalizer::FormStep{unicode::Form::kNfc}});
        default:
            return Normalizer({normalizer::FormStep{unicode::Form::kNfkd}, normalizer::StripAccentsStep{},
                               normalizer::LowercaseStep{}, normalizer::StripStep{true, true},
                               normalizer::ReplaceStep{U"``", U"\""}});
    }
}

// Made once: it classifies all characters, which takes longer than an input.
const Normalizer& shared_normalizer(unsigned choice) {
    static std::map<unsigned, Normalizer> made;
    const auto found = made.find(choice);
    return found != made.end() ? found->second : made.emplace(choice, normalizer_of(choice)).first->second;
}

struct Subject {
    Model model;
    ByteLevelOptions options;
    const Normalizer* normalizer = nullptr;
    Specials specials;
    Versions versions;
};

// Three normalizers, and some combinations of the rest: each has caches of its own.
constexpr unsigned kOptions = 24;

void build(Subject& entry, Model model, unsigned choice, std::vector<SplitScan> scans = {fastest_split_scan(), portable_split_scan()}) {
    const unsigned rest = choice / 3;
    const bool prefix = (rest & 1) != 0, trims = (rest & 2) != 0, shuffled = (rest & 4) != 0;
    entry.model = std::move(model);
    entry.options = {.prefix_space = prefix, .trim = {.enabled = trims, .expects_prefix = prefix != shuffled},
                     .whole_words = prefix == shuffled};
    entry.normalizer = &shared_normalizer(choice % 3);
    entry.specials = {kSpecials, static_cast<std::int32_t>(entry.model.tokens.size() - kSpecials.size())};
    for (const SplitScan& scan : scans) {
        entry.versions.add(std::make_unique<ByteLevelBpe>(entry.model.tokens, entry.model.merges,
                                                          entry.specials.added(), false, *entry.normalizer,
                                                          entry.options, scan));
    }
}

Subject& subject(unsigned choice) {
    static std::map<unsigned, Subject> subjects;
    Subject& entry = subjects[choice];
    if (entry.versions.tokenizers.empty()) build(entry, make_model((choice / 3 & 4) != 0), choice);
    return entry;
}

// The tokens of a chunk, each with its number of bytes.
std::vector<std::pair<std::int32_t, std::size_t>> merge(const Subject& subject, std::string_view chunk) {
    const Model& model = subject.model;
    if (const auto word = model.ids.find(chunk); subject.options.whole_words && word != model.ids.end()) {
        return {{word->second, chunk.size()}};
    }
    using Merge = std::pair<std::size_t, std::int32_t>;  // rank and token
    constexpr Merge kNone{~std::size_t{0}, 0};
    std::vector<std::pair<std::int32_t, std::size_t>> tokens;
    for (const char byte : chunk) tokens.push_back({static_cast<std::uint8_t>(byte), 1});
    const auto merge_at = [&](std::size_t i) {
        if (i + 1 >= tokens.size()) return kNone;
        const auto rank = model.ranks.find({tokens[i].first, tokens[i + 1].first});
        return rank == model.ranks.end() ? kNone : rank->second;
    };
    std::vector<Merge> merges;
    for (std::size_t i = 0; i < tokens.size(); ++i) merges.push_back(merge_at(i));
    const auto is_lower = [](const Merge& a, const Merge& b) { return a.first < b.first; };
    for (;;) {
        const auto best = std::min_element(merges.begin(), merges.end(), is_lower);
        if (best == merges.end() || *best == kNone) return tokens;
        const auto at = static_cast<std::size_t>(best - merges.begin());
        tokens[at] = {best->second, tokens[at].second + tokens[at + 1].second};
        tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(at) + 1);
        merges.erase(best + 1);
        merges[at] = merge_at(at);
        if (at > 0) merges[at - 1] = merge_at(at - 1);
    }
}

// Text without special tokens.
void encode_segment(const Subject& subject, std::string_view segment, std::uint32_t position, std::uint32_t& word, Tokens& tokens) {
    Characters characters = subject.normalizer->normalize(segment);
    if (characters.empty()) return;
    if (subject.options.prefix_space && characters.front().point != ' ') {
        characters.insert(characters.begin(), {' ', characters.front().source});
    }
    const std::string bytes = normalizer::bytes_of(characters);
    std::vector<std::uint32_t> sources;  // by byte
    std::uint8_t encoded[unicode::kMaxUtf8Bytes];
    for (const auto& character : characters) {
        sources.insert(sources.end(), unicode::encode(character.point, encoded), character.source);
    }
    for (std::size_t at = 0; at < bytes.size(); ++word) {
        const std::uint8_t* const begin = unicode::bytes_of(bytes) + at;
        const std::size_t size = first_chunk(begin, unicode::bytes_of(bytes) + bytes.size());
        for (const auto& [id, count] : merge(subject, std::string_view(bytes).substr(at, size))) {
            tokens.push_back({id, position + sources[at], position + sources[at + count - 1] + 1, word});
            at += count;
        }
    }
}

void trim(const Subject& subject, Tokens& tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const std::string& text = subject.model.tokens[static_cast<std::size_t>(tokens[i].id)];
        const auto leading = static_cast<std::uint32_t>(std::min(text.find_first_not_of(' '), text.size()));
        const auto trailing = static_cast<std::uint32_t>(text.size() - (text.find_last_not_of(' ') + 1));
        std::uint32_t& begin = tokens[i].begin;
        std::uint32_t& end = tokens[i].end;
        const bool is_prefix = (i == 0 || begin == 0) && subject.options.trim.expects_prefix && leading == 1;
        if (leading > 0 && !is_prefix) begin = std::min(begin + leading, end);
        if (trailing > 0 && end >= trailing) end = std::max(end - trailing, begin);
    }
}

Tokens plain(const Subject& subject, std::string_view text) {
    Tokens tokens = around_specials(text, subject.specials, std::bind_front(encode_segment, std::cref(subject)));
    if (subject.options.trim.enabled) trim(subject, tokens);
    return tokens;
}

}  // namespace

void check_byte_level(std::string_view input) {
    if (input.size() < 2) return;
    const unsigned choice = static_cast<unsigned char>(input[0]) % kOptions;
    const Subject& all = subject(choice);
    check_versions(all.versions, make_valid(input.substr(2)), limit_of(input[1]), choice,
                   std::bind_front(plain, std::cref(all)));
}

void check_merges(std::string_view input) {
    Draws draws(input);
    const unsigned choice = draws.byte() % kOptions;
    const std::size_t limit = limit_of(static_cast<char>(draws.byte()));
    const bool fastest = draws.coin();
    Subject drawn;
    build(drawn, draw_model(draws), choice, {fastest ? fastest_split_scan() : portable_split_scan()});
    check_versions(drawn.versions, make_valid(draws.rest()), limit, choice, std::bind_front(plain, std::cref(drawn)));
}

}  // namespace fastbert::checks
