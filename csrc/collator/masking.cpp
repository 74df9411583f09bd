#include "collator/masking.h"

#include <algorithm>
#include <cmath>

namespace fastbert {
namespace {

constexpr int32_t LONGEST_SPAN = 10;
constexpr double SPAN_END = 0.2;  // the probability that a span ends after a word

// Draw a length from 1 to LONGEST_SPAN in words; P(length) is proportional to (1 - SPAN_END)^(length - 1).
int32_t draw_span_length(RandomStream& random) {
    double longest = 1;
    for (int32_t i = 0; i < LONGEST_SPAN; ++i) longest *= 1 - SPAN_END;
    const uint32_t word = random.word();
    double longer = 1;  // (1 - SPAN_END)^length
    for (int32_t length = 1; length < LONGEST_SPAN; ++length) {
        longer *= 1 - SPAN_END;
        if (word < static_cast<uint64_t>((1 - longer) / (1 - longest) * 0x1p32)) return length;
    }
    return LONGEST_SPAN;
}

// The share of random tokens of those that do not become [MASK]; exactly a half by default, as equal shares are.
double random_share(const Replacement& shares) {
    return shares.random > 0 ? shares.random / (shares.random + shares.unchanged) : 0.0;
}

}  // namespace

void Masker::find_words(std::span<const int64_t> tokens, std::span<const std::pair<int32_t, int32_t>> segments) {
    words_.clear();
    for (const auto& [begin, end] : segments) {
        for (int32_t i = begin; i < end; ++i) {
            if (recipe_.unit != MaskUnit::token && i > begin && recipe_.is_continuation[tokens[i]]) {
                words_.back().end = i + 1;
            } else {
                words_.push_back({i, i + 1});
            }
        }
    }
}

int32_t Masker::target(int32_t num_tokens) const {
    if (recipe_.probability == 0) return 0;
    return std::max<int32_t>(1, static_cast<int32_t>(std::lround(recipe_.probability * num_tokens)));
}

void Masker::choose_exactly(int32_t num_tokens, RandomStream& random) {
    const int32_t target = this->target(num_tokens);
    if (target == 0) return;
    int32_t covered = 0;
    // Fisher-Yates from the front, stopped as soon as the count is reached.
    for (size_t i = 0; i < words_.size() && covered < target; ++i) {
        std::swap(words_[i], words_[i + random.below(static_cast<uint32_t>(words_.size() - i))]);
        const int32_t length = words_[i].end - words_[i].begin;
        if (covered + length > target) continue;
        covered += length;
        chosen_.push_back(words_[i]);
    }
    if (chosen_.empty() && !words_.empty()) chosen_.push_back(words_.front());
    std::sort(chosen_.begin(), chosen_.end(), [](Word left, Word right) { return left.begin < right.begin; });
}

void Masker::choose_independently(RandomStream& random) {
    for (const Word& word : words_) {
        if (random.chance(recipe_.probability)) chosen_.push_back(word);
    }
}

// Append the spans in ascending order, those that touch merged, but not across segments.
void Masker::choose_spans(int32_t num_tokens, RandomStream& random) {
    const int32_t target = this->target(num_tokens);
    const auto words = static_cast<int32_t>(words_.size());
    free_.resize(words);
    free_slot_.resize(words);
    for (int32_t i = 0; i < words; ++i) free_[i] = free_slot_[i] = i;
    int32_t covered = 0;
    int32_t cut_word = -1, cut_end = 0;  // the word that the last span covers in part
    while (covered < target && !free_.empty()) {
        int32_t remaining = draw_span_length(random);
        int32_t word = free_[random.below(static_cast<uint32_t>(free_.size()))];
        for (;; ++word) {
            if (free_slot_[word] >= 0) {
                const int32_t moved = free_.back();
                free_[free_slot_[word]] = moved;
                free_slot_[moved] = free_slot_[word];
                free_slot_[word] = -1;
                free_.pop_back();
                covered += words_[word].end - words_[word].begin;
                if (covered > target) {
                    cut_word = word;
                    cut_end = words_[word].end - (covered - target);
                }
            }
            const bool segment_ends = word + 1 == words || words_[word + 1].begin != words_[word].end;
            if (--remaining == 0 || segment_ends || covered >= target) break;
        }
    }
    for (int32_t word = 0; word < words; ++word) {
        if (free_slot_[word] >= 0) continue;
        const Word text{words_[word].begin, word == cut_word ? cut_end : words_[word].end};
        if (!chosen_.empty() && chosen_.back().end == text.begin) {
            chosen_.back().end = text.end;
        } else {
            chosen_.push_back(text);
        }
    }
}

// Give all tokens of a span the same kind of replacement, drawn once.
void Masker::corrupt(Word span, std::span<int64_t> tokens, RandomStream& random) const {
    const bool is_masked = random.chance(recipe_.replacement.mask);
    const bool is_random = !is_masked && random.chance(random_share(recipe_.replacement));
    for (int32_t i = span.begin; i < span.end; ++i) {
        if (is_masked) {
            tokens[i] = recipe_.mask_id;
        } else if (is_random) {
            tokens[i] = recipe_.replacements[random.below(static_cast<uint32_t>(recipe_.replacements.size()))];
        }
    }
}

void Masker::mask(std::span<int64_t> tokens, std::span<const std::pair<int32_t, int32_t>> segments,
                  const RandomDomain& domain, uint64_t sample, int64_t offset, std::vector<int64_t>& positions,
                  std::vector<int64_t>& labels) {
    find_words(tokens, segments);
    chosen_.clear();
    RandomStream choice(domain, sample, Purpose::masked_positions);
    int32_t num_tokens = 0;
    for (const auto& [begin, end] : segments) num_tokens += end - begin;
    if (recipe_.unit == MaskUnit::span) {
        choose_spans(num_tokens, choice);
    } else if (recipe_.exact_count) {
        choose_exactly(num_tokens, choice);
    } else {
        choose_independently(choice);
    }
    RandomStream random(domain, sample, Purpose::masked_tokens);
    for (const Word& word : chosen_) {
        for (int32_t i = word.begin; i < word.end; ++i) {
            positions.push_back(offset + i);
            labels.push_back(tokens[i]);
        }
        if (recipe_.unit == MaskUnit::span) {
            corrupt(word, tokens, random);
        } else {
            for (int32_t i = word.begin; i < word.end; ++i) corrupt({i, i + 1}, tokens, random);
        }
    }
}

}  // namespace fastbert
