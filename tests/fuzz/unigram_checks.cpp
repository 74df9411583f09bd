// Unigram by its definition: the steps applied to a text as a whole, and the best path over all pieces of its words.
#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <utility>

#include "checks.h"
#include "draws.h"
#include "unicode/utf8.h"
#include "unigram/unigram.h"

namespace fastbert::checks {
namespace {

using namespace unigram;
using normalizer::Characters;
using normalizer::Charsmap;
using normalizer::Normalizer;
using normalizer::Step;

const Specials kSpecialTokens{kSpecials};
constexpr std::int32_t kUnknown = 3;
constexpr unsigned kOptions = 16;

// A character map in the format of sentencepiece.
std::string charsmap_of(const std::map<std::string, std::string>& entries) {
    std::vector<std::uint32_t> units(1);
    std::vector<bool> used(1, true);
    std::set<std::uint32_t> bases;
    std::string replacements;
    const auto grow = [&](std::size_t size) {
        if (units.size() < size) units.resize(size), used.resize(size);
    };
    const std::function<void(std::uint32_t, const std::string&)> place = [&](std::uint32_t node, const std::string& path) {
        std::set<std::uint8_t> bytes;
        const auto end = entries.find(path);
        for (const auto& [key, value] : entries) {
            if (key.size() > path.size() && key.starts_with(path)) bytes.insert(static_cast<std::uint8_t>(key[path.size()]));
        }
        if (end != entries.end()) bytes.insert(0);
        if (bytes.empty()) return;
        std::uint32_t base = 256;
        const auto is_free = [&](std::uint8_t byte) { return (base ^ byte) >= used.size() || !used[base ^ byte]; };
        while (bases.contains(base) || !std::all_of(bytes.begin(), bytes.end(), is_free)) ++base;
        bases.insert(base);
        grow((base | 0xFF) + 1);
        units[node] |= (node ^ base) << 10 | (end != entries.end() ? 1U << 8 : 0U);
        for (const std::uint8_t byte : bytes) {
            used[base ^ byte] = true;
            units[base ^ byte] = byte != 0 ? byte : 1U << 31 | static_cast<std::uint32_t>(replacements.size());
            if (byte == 0) replacements += end->second + '\0';
        }
        for (const std::uint8_t byte : bytes) {
            if (byte != 0) place(base ^ byte, path + static_cast<char>(byte));
        }
    };
    place(0, "");
    const auto size = static_cast<std::uint32_t>(units.size() * sizeof(std::uint32_t));
    std::string data(sizeof size + size, '\0');
    std::memcpy(data.data(), &size, sizeof size);
    std::memcpy(data.data() + sizeof size, units.data(), size);
    return data + replacements;
}

Step charsmap_step() {
    static const auto map = std::make_shared<const Charsmap>(charsmap_of({
        {"\n", " "}, {"\t", " "}, {"\r\n", " "}, {"\u00a0", " "}, {"\u3000", " "}, {"\u200d", ""}, {"\u00ad", ""},
        {"ﬁ", "fi"}, {"①", "1"}, {"e\u0301", "é"}, {"か\u3099", "が"}, {"\u212b", "Å"}, {"\u007f", ""}, {"\u2028", " "},
        {"\u0345", " \u03b9"}, {"q", ""}, {"한", "中国中"},
    }));
    return normalizer::CharsmapStep{map};
}

std::vector<Step> normalizer_of(unsigned choice) {
    using Run = normalizer::ReplaceRunsStep::Run;
    const Step spaces = normalizer::ReplaceRunsStep{{Run{U" ", false, 2, false}}, U" "};
    const Step white = normalizer::ReplaceRunsStep{{Run{U"", true, 2, false}, Run{U"\n\r\t", false, 1, true}}, U" "};
    switch (choice) {
        case 0: return {};
        case 1: return {charsmap_step()};
        case 2: return {normalizer::StripStep{true, true}, charsmap_step(), spaces};
        case 3:
            return {normalizer::ReplaceStep{U"``", U"\""}, normalizer::ReplaceStep{U"''", U"\""},
                    normalizer::FormStep{unicode::Form::kNfkd}, normalizer::StripAccentsStep{},
                    normalizer::LowercaseStep{}, charsmap_step()};
        case 4: return {charsmap_step(), white};
        case 5: return {normalizer::FormStep{unicode::Form::kNfc}, normalizer::StripStep{false, true}};
        case 6: return {normalizer::StripStep{true, false}, white, normalizer::FormStep{unicode::Form::kNfkc}};
        default: return {normalizer::PrependStep{U"▁"}, normalizer::ReplaceStep{U" ", U"▁"}};
    }
}

// Made once: it classifies all characters, which takes longer than an input.
const Normalizer& shared_normalizer(unsigned choice) {
    static std::map<unsigned, Normalizer> made;
    const auto found = made.find(choice);
    return found != made.end() ? found->second : made.emplace(choice, Normalizer(normalizer_of(choice))).first->second;
}

std::vector<SplittingStep> splitter_of(unsigned choice) {
    using Prepend = MetaspaceStep::Prepend;
    const auto metaspace = [](Prepend prepend) { return MetaspaceStep{U'▁', prepend, true}; };
    switch (choice) {
        case 0: case 2: return {metaspace(Prepend::kAlways)};
        case 1: case 3: return {WhitespaceSplitStep{}, metaspace(Prepend::kAlways)};
        case 4: return {metaspace(Prepend::kFirst)};
        case 5: return {metaspace(Prepend::kNever), DigitsStep{true}};
        case 6: return {WhitespaceSplitStep{}, metaspace(Prepend::kAlways), PunctuationStep{Behavior::kMergedWithNext}};
        default: return {MetaspaceStep{U'▁', Prepend::kNever, false}};
    }
}

struct Subject {
    std::vector<std::string> tokens;
    std::vector<double> scores;
    std::map<std::string, std::int32_t, std::less<>> ids;
    std::vector<std::int32_t> byte_ids;
    std::vector<SplittingStep> splitters;
    const Normalizer* normalizer = nullptr;
    Versions versions;
};

void add_piece(Subject& subject, const std::string& piece, double score) {
    if (!subject.ids.emplace(piece, static_cast<std::int32_t>(subject.tokens.size())).second) return;
    subject.tokens.push_back(piece);
    subject.scores.push_back(score);
}

void add_specials(Subject& subject) {
    for (const std::string& special : kSpecials) add_piece(subject, special, 0);
    add_piece(subject, "<unk>", 0);
}

void build(Subject& subject, unsigned choice, std::vector<SpaceScan> scans = {fastest_space_scan(), portable_space_scan()}) {
    if (choice & 8) {
        const char* const digits = "0123456789ABCDEF";
        for (int byte = 0; byte < 256; ++byte) {
            const std::string name = std::string("<0x") + digits[byte / 16] + digits[byte % 16] + ">";
            add_piece(subject, name, 0);
            subject.byte_ids.push_back(subject.ids[name]);
        }
    }
    subject.normalizer = &shared_normalizer(choice % 8);
    subject.splitters = splitter_of(choice % 8);
    for (const SpaceScan& scan : scans) {
        subject.versions.add(std::make_unique<Unigram>(subject.tokens, subject.scores, kUnknown, subject.byte_ids,
                                                       kSpecialTokens.added(), false, *subject.normalizer,
                                                       PreTokenizer(subject.splitters), scan));
    }
}

Subject& subject(unsigned choice) {
    static std::map<unsigned, Subject> subjects;
    Subject& entry = subjects[choice];
    if (!entry.versions.tokenizers.empty()) return entry;
    add_specials(entry);
    double score = -1;
    for (const char* piece : {"▁", "a", "b", "c", "the", "THE", "ab", "abc", "abcde", "aa", "aaaa", "1", "12", ".", ",", "!", "!!",
                              "'", "s", "'s", "t", "don", "é", "e", "中", "中国", "国", "한국", "い", "が", "fi", "\u0301", "Å", "𝒳",
                              " ", "\n", "\u2003", "ab▁a", "▁▁"}) {
        score = score < -9 ? -1.25 : score * 1.37;
        add_piece(entry, piece, score);
        add_piece(entry, "▁" + std::string(piece), score - 0.7);
    }
    build(entry, choice);
    return entry;
}

// Any pieces of up to 20 characters, with scores many of which are equal, or sums of others.
void draw_pieces(Subject& subject, Draws& draws) {
    add_specials(subject);
    for (std::size_t count = draws.below(64); count > 0; --count) {
        const std::uint8_t size = draws.byte();
        std::string piece = (size & 128 ? "▁" : "") + make_valid(draws.take(1 + size % 12));
        std::erase(piece, '\0');
        const std::uint8_t score = draws.byte();
        if (!piece.empty()) add_piece(subject, piece, score & 128 ? -0.1 * (score & 127) : -0.5 * (score & 15));
    }
}

struct Range {
    std::size_t begin, end;  // characters
    std::int32_t id;
};

// The best path, from left to right; of equal ones the first.
std::vector<Range> best_path(const Subject& subject, const std::vector<std::string>& characters) {
    struct Node {
        bool reached = false;
        double score = 0;
        std::size_t begin = 0;
        std::int32_t id = 0;
    };
    const double unknown = *std::min_element(subject.scores.begin(), subject.scores.end()) - 10;
    std::vector<Node> nodes(characters.size() + 1);
    for (std::size_t begin = 0; begin < characters.size(); ++begin) {
        std::string piece;
        const auto reach = [&](std::size_t end, double score, std::int32_t id) {
            if (!nodes[end].reached || score > nodes[end].score) nodes[end] = {true, score, begin, id};
        };
        bool is_single = false;
        for (std::size_t end = begin + 1; end <= std::min(characters.size(), begin + 20); ++end) {
            piece += characters[end - 1];
            const auto found = subject.ids.find(piece);
            if (found == subject.ids.end()) continue;
            reach(end, subject.scores[static_cast<std::size_t>(found->second)] + nodes[begin].score, found->second);
            is_single = is_single || end == begin + 1;
        }
        if (!is_single) reach(begin + 1, unknown + nodes[begin].score, kUnknown);
    }
    std::vector<Range> path;
    for (std::size_t end = characters.size(); end > 0; end = nodes[end].begin) path.push_back({nodes[end].begin, end, nodes[end].id});
    std::reverse(path.begin(), path.end());
    return path;
}

void append_word(const Subject& subject, const Characters& word, std::uint32_t position, std::uint32_t index, Tokens& tokens) {
    std::vector<std::string> characters;
    for (const auto& character : word) characters.push_back(normalizer::bytes_of({character}));
    const std::vector<Range> path = best_path(subject, characters);
    for (std::size_t i = 0; i < path.size(); ++i) {
        Range range = path[i];
        const auto emit = [&](std::int32_t id) {
            tokens.push_back({id, position + word[range.begin].source, position + word[range.end - 1].source + 1, index});
        };
        if (range.id != kUnknown) {
            emit(range.id);
            continue;
        }
        while (i + 1 < path.size() && path[i + 1].id == kUnknown) range.end = path[++i].end;
        std::string text;
        for (std::size_t j = range.begin; j < range.end; ++j) text += characters[j];
        if (const auto found = subject.ids.find(text); found != subject.ids.end()) {
            emit(found->second);
        } else if (subject.byte_ids.empty()) {
            emit(kUnknown);
        } else {
            for (const char byte : text) emit(subject.byte_ids[static_cast<std::uint8_t>(byte)]);
        }
    }
}

Tokens plain(const Subject& subject, std::string_view text) {
    const auto encode = [&](std::string_view segment, std::uint32_t position, std::uint32_t& index, Tokens& tokens) {
        Characters characters = subject.normalizer->normalize(segment);
        if (characters.empty()) return;
        const bool at_start = position == 0 && characters.front().source == 0;
        std::vector<Word> words{{std::move(characters), at_start}};
        PreTokenizer(subject.splitters).split(words);
        for (const Word& word : words) append_word(subject, word.text, position, index++, tokens);
    };
    return around_specials(text, kSpecialTokens, encode);
}

}  // namespace

void check_unigram(std::string_view input) {
    if (input.size() < 2) return;
    const unsigned choice = static_cast<unsigned char>(input[0]) % kOptions;
    const Subject& all = subject(choice);
    check_versions(all.versions, make_valid(input.substr(2)), limit_of(input[1]), choice,
                   std::bind_front(plain, std::cref(all)));
}

void check_pieces(std::string_view input) {
    Draws draws(input);
    const unsigned choice = draws.byte() % kOptions;
    const std::size_t limit = limit_of(static_cast<char>(draws.byte()));
    const bool fastest = draws.coin();
    Subject drawn;
    draw_pieces(drawn, draws);
    build(drawn, choice, {fastest ? fastest_space_scan() : portable_space_scan()});
    check_versions(drawn.versions, make_valid(draws.rest()), limit, choice, std::bind_front(plain, std::cref(drawn)));
}

void check_charsmap(std::string_view input) {
    static const std::string valid = charsmap_of({{"a", "b"}, {"ab", ""}, {"\u0301", "xyz"}, {"中", "é"}});
    std::string data(input);
    // Half of the inputs change some bytes of a map that is valid.
    if (!input.empty() && (input[0] & 1) != 0) {
        data = valid;
        for (std::size_t i = 1; i + 2 < input.size(); i += 3) {
            const std::size_t at = static_cast<std::uint8_t>(input[i]) | static_cast<std::size_t>(static_cast<std::uint8_t>(input[i + 1])) << 8;
            data[at % data.size()] = input[i + 2];
        }
    }
    try {
        const auto map = std::make_shared<const Charsmap>(data);
        std::size_t keys = 0;
        for (const std::string& key : map->keys()) keys += map->find(key).has_value();
        const Normalizer normalizer({normalizer::CharsmapStep{map}});
        const std::string text = make_valid(input) + "a ab b\u0301 中e\u0301\r\n 한국";
        Characters normal = normalizer.normalize(text);
        if (normalizer.is_inert(text) && normalizer::bytes_of(normal) != text) fail("inert texts", text, 0, keys);
    } catch (const std::invalid_argument&) {
        // Refused.
    }
}

}  // namespace fastbert::checks
