#include "collator/plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace fastbert {
namespace {

struct Segment {
    int64_t begin = 0;
    int64_t end = 0;

    int64_t length() const { return end - begin; }
};

// Remove tokens one by one from the longer segment, at random from its front or its back, until both fit the budget.
void truncate_pair(Segment& a, Segment& b, int64_t budget, RandomStream& random) {
    while (a.length() + b.length() > budget) {
        Segment& longer = a.length() > b.length() ? a : b;
        if (random.coin()) {
            ++longer.begin;
        } else {
            --longer.end;
        }
    }
}

// The number of redraws if text of another document is too short.
constexpr int ATTEMPTS = 10;

class Planner {
   public:
    Planner(const TokenCorpus& corpus, std::span<const DocumentRange> documents, const PlanRecipe& recipe)
        : corpus_(corpus), documents_(documents), recipe_(recipe), sentences_before_{0} {
        for (const DocumentRange& document : documents) {
            corpus.check(document);
            sentences_before_.push_back(sentences_before_.back() + document.last_sentence - document.first_sentence);
        }
    }

    // Append the samples of one document: walk through its text once, front to back.
    void plan_document(size_t document, RandomStream& random, std::vector<PlannedSample>& samples) {
        const DocumentRange range = documents_[document];
        const int64_t document_end = corpus_.sentence_begin(range.last_sentence);
        int64_t position = corpus_.sentence_begin(range.first_sentence);
        int64_t sentence = range.first_sentence;  // contains `position`
        while (position < document_end) {
            gather(position, sentence, document_end, draw_target(random));
            const int64_t end = unit_ends_.back();
            if (recipe_.objective == Objective::mlm) {
                const int64_t segment_end = std::min(end, position + recipe_.budget);
                samples.push_back(make_sample({position, segment_end}, {}, false));
                position = segment_end;
            } else {
                position = plan_pair(document, position, random, samples);
            }
            while (sentence < range.last_sentence && corpus_.sentence_begin(sentence + 1) <= position) ++sentence;
        }
    }

   private:
    int64_t draw_target(RandomStream& random) const {
        const int64_t smallest = smallest_budget(recipe_.objective);
        if (recipe_.budget <= smallest || !random.chance(recipe_.short_probability)) return recipe_.budget;
        return smallest + random.below(static_cast<uint32_t>(recipe_.budget - smallest));
    }

    // Collect whole sentences from `position` on until `target` tokens are reached or the document ends, as the ends of
    // units: a unit is a sentence, what is left of one, or as much of one longer than the budget as still fits.
    void gather(int64_t position, int64_t sentence, int64_t document_end, int64_t target) {
        unit_ends_.clear();
        int64_t end = position;
        while (end < document_end && end - position < target) {
            const int64_t sentence_end = corpus_.sentence_begin(sentence + 1);
            if (sentence_end - end > recipe_.budget) {
                unit_ends_.push_back(word_begin_at_or_before(position + recipe_.budget, end));
                return;
            }
            end = sentence_end;
            ++sentence;
            unit_ends_.push_back(end);
        }
    }

    // Split the gathered units into A and B, append the pair and return where the next sample begins.
    int64_t plan_pair(size_t document, int64_t begin, RandomStream& random, std::vector<PlannedSample>& samples) {
        const int64_t end = unit_ends_.back();
        const bool lone = unit_ends_.size() == 1;
        size_t units_of_a = 1;
        int64_t cut = 0;
        if (lone) {
            cut = draw_word_begin(begin + 1, end, random);
            if (cut < 0) return end;  // a single word, whatever the label
        } else {
            units_of_a = 1 + random.below(static_cast<uint32_t>(unit_ends_.size() - 1));
            cut = unit_ends_[units_of_a - 1];
        }
        Segment a{begin, cut}, b{cut, end};
        const bool label = random.coin();
        const bool foreign = label && recipe_.objective == Objective::mlm_next_sentence;
        if (foreign) {
            const bool full = end - begin >= recipe_.budget;
            const int64_t sentences = lone ? 1 : static_cast<int64_t>(unit_ends_.size() - units_of_a);
            b = full ? draw_foreign_tokens(document, std::max<int64_t>(1, recipe_.budget - a.length()), lone, random)
                     : draw_foreign_sentences(document, sentences, recipe_.budget - a.length() - 1, lone, random);
        }
        truncate_pair(a, b, recipe_.budget, random);
        const bool swapped = label && recipe_.objective == Objective::mlm_sentence_order;
        samples.push_back(swapped ? make_sample(b, a, label) : make_sample(a, b, label));
        return foreign ? cut : end;
    }

    // Draw whole sentences of another document with at least `min_tokens` tokens if possible; with `inside`, the first
    // may begin at a word inside it, as the true continuation of a split sentence does.
    Segment draw_foreign_tokens(size_t document, int64_t min_tokens, bool inside, RandomStream& random) const {
        Segment best;
        for (int attempt = 0; attempt < ATTEMPTS && best.length() < min_tokens; ++attempt) {
            auto [range, sentence] = draw_foreign_sentence(document, random);
            const int64_t document_end = corpus_.sentence_begin(range.last_sentence);
            while (sentence > range.first_sentence && document_end - corpus_.sentence_begin(sentence) < min_tokens) {
                --sentence;
            }
            int64_t begin = corpus_.sentence_begin(sentence);
            if (inside) {
                const int64_t limit = std::min(corpus_.sentence_begin(sentence + 1), document_end - min_tokens + 1);
                begin = std::max(begin, draw_word_begin(begin + 1, limit, random));
            }
            int64_t end = begin;
            while (end < document_end && end - begin < min_tokens) end = corpus_.sentence_begin(++sentence);
            end = std::min(end, begin + recipe_.budget);
            if (end - begin > best.length()) best = {begin, end};
        }
        return best;
    }

    // Draw `count` sentences of another document (fewer if it has fewer), of at most `most` tokens if possible: like
    // the true continuation, they must stay under the budget.
    Segment draw_foreign_sentences(size_t document, int64_t count, int64_t most, bool inside, RandomStream& random) const {
        Segment drawn;
        for (int attempt = 0; attempt < ATTEMPTS; ++attempt) {
            auto [range, sentence] = draw_foreign_sentence(document, random);
            sentence = std::max(range.first_sentence, std::min(sentence, range.last_sentence - count));
            drawn.begin = corpus_.sentence_begin(sentence);
            drawn.end = corpus_.sentence_begin(std::min(sentence + count, range.last_sentence));
            if (inside) drawn.begin = std::max(drawn.begin, draw_word_begin(drawn.begin + 1, drawn.end, random));
            if (drawn.length() <= most) return drawn;
        }
        drawn.end = drawn.begin + most;
        return drawn;
    }

    // Draw a sentence uniformly from those of all other documents, and its document.
    std::pair<DocumentRange, int64_t> draw_foreign_sentence(size_t document, RandomStream& random) const {
        const int64_t excluded = sentences_before_[document + 1] - sentences_before_[document];
        const auto candidates = static_cast<uint64_t>(sentences_before_.back() - excluded);
        auto index = static_cast<int64_t>(random.below64(candidates));
        if (index >= sentences_before_[document]) index += excluded;
        const auto next = std::upper_bound(sentences_before_.begin(), sentences_before_.end(), index);
        const size_t other = static_cast<size_t>(next - sentences_before_.begin()) - 1;
        return {documents_[other], documents_[other].first_sentence + index - sentences_before_[other]};
    }

    bool begins_word(int64_t position) const {
        if (corpus_.has_continuation_bits()) return !corpus_.continues_word(position);
        const uint32_t token = corpus_.token(position);
        if (token >= recipe_.is_continuation.size()) {
            throw std::invalid_argument("token " + std::to_string(token) + " is outside the vocabulary of " +
                                        std::to_string(recipe_.is_continuation.size()));
        }
        return !recipe_.is_continuation[token];
    }

    // Draw uniformly from the words that begin in [begin, end); -1 if there is none.
    int64_t draw_word_begin(int64_t begin, int64_t end, RandomStream& random) const {
        uint32_t words = 0;
        for (int64_t i = begin; i < end; ++i) words += begins_word(i);
        if (words == 0) return -1;
        int64_t position = begin;
        for (uint32_t skip = random.below(words); !begins_word(position) || skip-- > 0;) ++position;
        return position;
    }

    // Return the last word that begins in (floor, position]; `position` itself if one word fills all of it.
    int64_t word_begin_at_or_before(int64_t position, int64_t floor) const {
        for (int64_t i = position; i > floor; --i) {
            if (begins_word(i)) return i;
        }
        return position;
    }

    static PlannedSample make_sample(const Segment& a, const Segment& b, bool label) {
        PlannedSample sample;
        sample.a_begin = a.begin;
        sample.b_begin = b.begin;
        sample.a_length = static_cast<uint32_t>(a.length());
        sample.b_length = static_cast<uint32_t>(b.length());
        sample.label = label;
        return sample;
    }

    const TokenCorpus& corpus_;
    std::span<const DocumentRange> documents_;
    const PlanRecipe& recipe_;
    std::vector<int64_t> sentences_before_;  // by document
    std::vector<int64_t> unit_ends_;         // of the sample being planned
};

void shuffle(std::span<PlannedSample> samples, RandomStream& random) {
    for (size_t remaining = samples.size(); remaining > 1; --remaining) {
        std::swap(samples[remaining - 1], samples[random.below64(remaining)]);
    }
}

// Permute runs of consecutive samples, and shuffle the samples of as many runs as fill `window` tokens.
std::vector<PlannedSample> shuffle_windows(std::span<const PlannedSample> samples, int64_t window, RandomStream& random) {
    const int64_t run_tokens = std::clamp<int64_t>(window / 16, 1, 1 << 19);
    std::vector<std::span<const PlannedSample>> runs;
    size_t begin = 0;
    int64_t tokens = 0;
    for (size_t i = 0; i < samples.size(); ++i) {
        tokens += samples[i].length();
        if (tokens < run_tokens && i + 1 < samples.size()) continue;
        runs.push_back(samples.subspan(begin, i + 1 - begin));
        begin = i + 1;
        tokens = 0;
    }
    for (size_t remaining = runs.size(); remaining > 1; --remaining) {
        std::swap(runs[remaining - 1], runs[random.below64(remaining)]);
    }
    std::vector<PlannedSample> shuffled;
    shuffled.reserve(samples.size());
    begin = 0;
    tokens = 0;
    for (size_t i = 0; i < runs.size(); ++i) {
        for (const PlannedSample& sample : runs[i]) tokens += sample.length();
        shuffled.insert(shuffled.end(), runs[i].begin(), runs[i].end());
        if (tokens < window && i + 1 < runs.size()) continue;
        shuffle(std::span(shuffled).subspan(begin), random);
        begin = shuffled.size();
        tokens = 0;
    }
    return shuffled;
}

void check_recipe(std::span<const DocumentRange> documents, const PlanRecipe& recipe) {
    const int64_t smallest = smallest_budget(recipe.objective);
    constexpr int64_t LARGEST = 1 << 24;
    if (recipe.budget < smallest || recipe.budget > LARGEST) {
        throw std::invalid_argument("a sample's budget must be from " + std::to_string(smallest) + " to " +
                                    std::to_string(LARGEST) + " tokens, not " + std::to_string(recipe.budget));
    }
    if (!(recipe.short_probability >= 0 && recipe.short_probability <= 1)) {
        throw std::invalid_argument("short_probability must be from 0 to 1, not " +
                                    std::to_string(recipe.short_probability));
    }
    if (recipe.shuffle_window < 0) {
        throw std::invalid_argument("shuffle_window must be at least 0, not " + std::to_string(recipe.shuffle_window));
    }
    if (recipe.objective == Objective::mlm_next_sentence && documents.size() < 2) {
        throw std::invalid_argument("next-sentence pairs need at least 2 documents, not " +
                                    std::to_string(documents.size()));
    }
}

}  // namespace

int64_t smallest_budget(Objective objective) { return objective == Objective::mlm ? 1 : 2; }

std::vector<PlannedSample> plan_epoch(const TokenCorpus& corpus, std::span<const DocumentRange> documents,
                                      const PlanRecipe& recipe, const RandomDomain& domain) {
    check_recipe(documents, recipe);
    Planner planner(corpus, documents, recipe);
    std::vector<PlannedSample> samples;
    for (size_t document = 0; document < documents.size(); ++document) {
        RandomStream random(domain, document, Purpose::plan);
        planner.plan_document(document, random, samples);
    }
    RandomStream random(domain, 0, Purpose::shuffle);
    if (recipe.shuffle_window > 0) return shuffle_windows(samples, recipe.shuffle_window, random);
    shuffle(samples, random);
    return samples;
}

}  // namespace fastbert
