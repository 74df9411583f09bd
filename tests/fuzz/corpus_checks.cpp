// Readers of a corpus: sentences of lines that arrive in pieces, and samples of shards whose offsets are any numbers.
#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <stdexcept>

#include "checks.h"
#include "collator/collate.h"
#include "collator/plan.h"
#include "collator/token_corpus.h"
#include "corpus/sentence_reader.h"
#include "draws.h"
#include "unicode/utf8.h"

namespace fastbert::checks {
namespace {

using namespace corpus;

// Properties that resemble Python's for ASCII; for the rest they are any, but the same in all runs.
std::shared_ptr<const SentenceRules> rules() {
    static const auto rules = [] {
        std::vector<std::uint16_t> properties(0x110000);
        for (std::uint32_t point = 0; point < properties.size(); ++point) {
            std::uint32_t bits = 0;
            if (point < 128) {
                const auto is_in = [&](const char* set) { return point != 0 && std::strchr(set, static_cast<int>(point)) != nullptr; };
                const bool lower = point >= 'a' && point <= 'z', upper = point >= 'A' && point <= 'Z';
                const bool digit = point >= '0' && point <= '9';
                bits = (is_in(" \t\n\v\f\r\x1c\x1d\x1e\x1f") ? kSpace : 0) | (lower ? kLower | kAlpha | kLetter : 0) |
                       (upper ? kUpper | kAlpha | kLetter : 0) | (digit ? kDigit : 0) | (is_in(".!?") ? kStop : 0) |
                       (is_in("\"')]}") ? kCloser | kWordEnd : 0) | (is_in("\"'([{-") ? kOpener | kWordBreak : 0) |
                       (is_in(",;:") ? kWordEnd : 0);
            } else if (point == 0x3002 || point == 0xFF01) {
                bits = kCjkStop | kContinuing | kCjk;
            } else if (point == 0xA0 || point == 0x2028 || point == 0x3000) {
                bits = kSpace;
            } else if (point >= 0x4E00 && point < 0xA000) {
                bits = kAlpha | kLetter | kCjk;
            } else {
                bits = (point * 0x9E3779B9U >> 18) & 0x3FFE;  // anything but white space
            }
            properties[point] = static_cast<std::uint16_t>(bits);
        }
        return std::make_shared<const SentenceRules>(
            std::move(properties), WordLists{{"mr", "dr", "prof"}, {"no", "p", "fig"}, {"no"}, {"etc", "e.g", "vs"}, {"the", "he", "in"}});
    }();
    return rules;
}

struct Sentences {
    std::vector<std::string> sentences;
    std::vector<std::size_t> document_ends;
    std::int64_t cut = 0, dropped = 0;

    bool operator==(const Sentences&) const = default;

    void add(const SentenceBatch& batch, std::string_view input) {
        if (batch.offsets.size() != batch.count() + 1 || batch.offsets[0] != 0) fail("offsets", input, 0, 0);
        if (static_cast<std::size_t>(batch.offsets[batch.count()]) != batch.text.size()) fail("sizes of texts", input, 0, 0);
        std::int64_t before = 0;
        for (std::size_t i = 0; i < batch.document_ends.size(); ++i) {
            const std::int64_t end = batch.document_ends[i];
            if (end < before || end > static_cast<std::int64_t>(batch.count())) fail("ends of documents", input, 0, i);
            before = end;
            document_ends.push_back(sentences.size() + static_cast<std::size_t>(end));
        }
        for (std::size_t i = 0; i < batch.count(); ++i) {
            sentences.emplace_back(batch.sentence(i));
            if (!unicode::is_valid_utf8(sentences.back())) fail("cut characters", input, 0, i);
        }
    }
};

struct Settings {
    Layout layout;
    bool one_document, of_lines, of_documents;
    SentenceReader::Limits limits;
};

// Reads a text, all of it or a few lines at a time.
Sentences read(const Settings& settings, std::string_view text, bool whole, Draws draws) {
    std::shared_ptr<Repeats> repeats;
    if (settings.of_lines || settings.of_documents) {
        repeats = std::make_shared<Repeats>();
        repeats->of_lines = settings.of_lines;
        repeats->of_documents = settings.of_documents;
    }
    SentenceReader reader(rules(), settings.layout, settings.one_document, settings.limits, repeats);
    Sentences result;
    if (whole) reader.add(text);
    for (std::string_view rest = whole ? "" : text; !rest.empty();) {
        std::size_t size = 0;
        for (std::size_t lines = 1 + draws.below(3); lines > 0 && size < rest.size(); --lines) {
            size = std::min(rest.find('\n', size), rest.size() - 1) + 1;
        }
        reader.add(rest.substr(0, size));
        rest.remove_prefix(size);
        if (draws.coin()) result.add(reader.take(), text);
    }
    reader.end_document();
    if (reader.complete_bytes() != 0 && reader.complete_bytes() > text.size() + 1) fail("bytes", text, 0, 0);
    result.add(reader.take(), text);
    if (reader.take().count() != 0) fail("sentences that stay", text, 0, 0);
    result.cut = reader.cut_documents();
    if (repeats) result.dropped = repeats->dropped_lines + repeats->dropped_documents;
    return result;
}

}  // namespace

void check_sentences(std::string_view input) {
    Draws draws(input);
    const std::uint8_t choice = draws.byte(), limits = draws.byte();
    const Settings settings{static_cast<Layout>(choice % 3), (choice & 4) != 0, (choice & 8) != 0, (choice & 16) != 0,
                            {limits & 1 ? 20u : 100'000u, limits & 2 ? 30u : 1'000'000u}};
    const Draws pieces(draws.take(limits >> 4));
    const std::string text = make_valid(draws.rest());
    const Sentences expected = read(settings, text, true, pieces), pieced = read(settings, text, false, pieces);
    if (!(pieced == expected)) fail("sentences", input, choice, 0);
    std::size_t bytes = 0;
    for (const std::string& sentence : expected.sentences) bytes += sentence.size();
    if (bytes > text.size()) fail("more text than was read", input, choice, 0);
    // Splitting is a matter of one paragraph: its sentences lie in it, in order.
    std::vector<std::string_view> sentences;
    const std::string_view paragraph = rules()->stripped(text);
    rules()->split(paragraph, sentences);
    const char* at = paragraph.data();
    for (const std::string_view sentence : sentences) {
        if (sentence.data() < at || sentence.data() + sentence.size() > paragraph.data() + paragraph.size()) {
            fail("order of sentences", input, choice, 1);
        }
        at = sentence.data() + sentence.size();
    }
}

namespace {

constexpr std::size_t kVocabulary = 50;

struct Shard {
    std::vector<std::uint16_t> narrow;
    std::vector<std::uint32_t> wide;
    std::vector<std::int64_t> offsets;
    std::vector<std::uint8_t> bits;
    TokenShard view;
};

// Mostly a shard that is valid; now and then tokens beyond the vocabulary, or offsets that are any numbers.
Shard shard_of(Draws& draws, bool with_bits, std::uint8_t damage) {
    Shard shard;
    const std::size_t size = 1 + draws.below(200);
    const bool wide = draws.coin();
    for (std::size_t i = 0; i < size; ++i) {
        const std::uint32_t token = damage == 1 && draws.byte() == 0 ? draws.integer<std::uint32_t>()
                                                                     : static_cast<std::uint32_t>(draws.below(kVocabulary));
        if (wide) shard.wide.push_back(token);
        else shard.narrow.push_back(static_cast<std::uint16_t>(token));
    }
    shard.offsets.push_back(0);
    while (shard.offsets.back() < static_cast<std::int64_t>(size)) {
        const std::int64_t step = 1 + static_cast<std::int64_t>(draws.below(draws.coin() ? 6 : 60));
        shard.offsets.push_back(std::min(shard.offsets.back() + step, static_cast<std::int64_t>(size)));
    }
    if (damage == 2) shard.offsets[draws.below(shard.offsets.size())] = draws.integer<std::int64_t>();
    if (damage == 3) shard.offsets.resize(draws.below(shard.offsets.size() + 1));
    if (with_bits) {
        for (std::size_t i = 0; i < (size + 7) / 8; ++i) shard.bits.push_back(draws.byte());
        if (damage == 4) shard.bits.resize(draws.below(shard.bits.size() + 2));
    }
    return shard;
}

void view(Shard& shard, bool without_tokens) {
    const bool wide = !shard.wide.empty();
    const void* const data = wide ? static_cast<const void*>(shard.wide.data()) : shard.narrow.data();
    const auto size = static_cast<std::int64_t>(wide ? shard.wide.size() : shard.narrow.size());
    shard.view = {{without_tokens ? nullptr : data, size, !without_tokens && wide}, shard.offsets, shard.bits};
}

// A batch of some samples, with exact sizes, so that the sanitizer sees what is written beside.
void collate_samples(const TokenCorpus& corpus, const std::vector<PlannedSample>& plan, const PlanRecipe& recipe, Draws& draws,
                     const RandomDomain& domain, std::string_view input) {
    std::vector<std::int64_t> indices;
    for (std::size_t i = 0; i < std::min<std::size_t>(plan.size(), 6); ++i) {
        indices.push_back(static_cast<std::int64_t>(draws.below(plan.size())));
    }
    if (draws.byte() == 1) indices.push_back(draws.integer<std::int64_t>());
    const auto tokens = static_cast<std::size_t>(count_tokens(plan, indices));
    std::vector<std::int64_t> ids(tokens), types(tokens), positions(tokens), sequences(tokens), keys(indices.size()), labels(indices.size());
    std::vector<std::int32_t> cumulative(indices.size() + 1);
    std::vector<std::int64_t> replacements(kVocabulary);
    std::iota(replacements.begin(), replacements.end(), 0);
    CollateRecipe collation;
    collation.masking.unit = static_cast<MaskUnit>(draws.below(3));
    collation.masking.exact_count = collation.masking.unit == MaskUnit::span || draws.coin();
    collation.masking.probability = draws.byte() / 255.0;
    collation.masking.replacements = replacements;
    collation.masking.is_continuation = recipe.is_continuation;
    const BatchView batch{ids, types, positions, sequences, cumulative, keys, labels};
    const MaskedTokens masked = collate(corpus, plan, indices, collation, domain, domain, batch);
    if (static_cast<std::size_t>(cumulative.back()) != tokens) fail("lengths", input, 0, 1);
    if (masked.positions.size() != masked.labels.size()) fail("labels", input, 0, 1);
    std::int64_t before = -1;
    for (std::size_t i = 0; i < masked.positions.size(); ++i) {
        const std::int64_t position = masked.positions[i];
        if (position <= before || position >= static_cast<std::int64_t>(tokens)) fail("masked positions", input, 0, 1);
        if (masked.labels[i] < 0 || masked.labels[i] >= static_cast<std::int64_t>(kVocabulary)) fail("masked tokens", input, 0, 1);
        before = position;
    }
    for (const std::int64_t id : ids) {
        if (id < 0 || id >= static_cast<std::int64_t>(kVocabulary)) fail("ids", input, 0, 1);
    }
}

}  // namespace

void check_shards(std::string_view input) {
    Draws draws(input);
    const std::uint8_t choice = draws.byte(), damage = draws.byte() % 12;
    const bool with_bits = (choice & 1) != 0, without_tokens = with_bits && (choice & 2) != 0;
    std::vector<Shard> shards;
    const std::size_t damaged = draws.below(3);
    for (std::size_t count = 1 + draws.below(3); shards.size() < count;) {
        shards.push_back(shard_of(draws, with_bits, shards.size() == damaged ? damage : 0));
    }
    std::vector<TokenShard> views;
    for (Shard& shard : shards) view(shard, without_tokens), views.push_back(shard.view);
    std::vector<std::uint8_t> is_continuation(kVocabulary);
    for (std::uint8_t& flag : is_continuation) flag = draws.coin();
    try {
        for (const TokenShard& shard : views) {
            if (shard.tokens.data != nullptr) find_bad_token(shard.tokens, kVocabulary);
        }
        const TokenCorpus corpus(views);
        // Documents one after the other; or any numbers.
        std::vector<DocumentRange> documents;
        for (std::int64_t first = 0; first < corpus.num_sentences();) {
            const std::int64_t last = std::min(corpus.num_sentences(), first + 1 + static_cast<std::int64_t>(draws.below(9)));
            documents.push_back({first, last});
            first = last;
        }
        if (damage == 5) documents.push_back({draws.integer<std::int64_t>(), draws.integer<std::int64_t>()});
        if (damage != 6) {  // else some lie across two shards
            std::erase_if(documents, [&](const DocumentRange& document) {
                try {
                    return corpus.check(document), false;
                } catch (const std::invalid_argument&) {
                    return damage != 5;
                }
            });
        }
        if (!without_tokens) {
            std::vector<std::int64_t> counts(kVocabulary);
            corpus.count(documents, counts);
        }
        PlanRecipe recipe{static_cast<Objective>(draws.below(3)), static_cast<std::int64_t>(draws.below(70)), draws.byte() / 255.0,
                          is_continuation, static_cast<std::int64_t>(draws.below(300))};
        if (draws.byte() == 7) recipe.budget = draws.integer<std::int64_t>();
        const RandomDomain domain{draws.integer<std::uint64_t>(), draws.byte(), draws.coin()};
        const std::vector<PlannedSample> plan = plan_epoch(corpus, documents, recipe, domain);
        for (const PlannedSample& sample : plan) {
            if (sample.length() < 1 || sample.length() > recipe.budget) fail("lengths of samples", input, choice, 0);
            const std::int64_t ends[2] = {sample.a_begin + sample.a_length, sample.b_begin + sample.b_length};
            if (sample.a_begin < 0 || sample.b_begin < 0 || std::max(ends[0], ends[1]) > corpus.num_tokens()) {
                fail("places of samples", input, choice, 0);
            }
        }
        if (plan.empty()) return;
        collate_samples(corpus, plan, recipe, draws, domain, input);
        if (without_tokens) fail("tokens that are not there", input, choice, 0);
    } catch (const std::invalid_argument&) {
        // Refused.
    } catch (const std::out_of_range&) {
        // A sample that is not in the plan.
    }
}

}  // namespace fastbert::checks
