#include "collator/masking.h"

#include <algorithm>
#include <cmath>

namespace fastbert {

void Masker::find_words(std::span<const int64_t> tokens, std::span<const std::pair<int32_t, int32_t>> segments) {
    words_.clear();
    for (const auto& [begin, end] : segments) {
        for (int32_t i = begin; i < end; ++i) {
            if (recipe_.whole_word && i > begin && recipe_.is_continuation[tokens[i]]) {
                words_.back().end = i + 1;
            } else {
                words_.push_back({i, i + 1});
            }
        }
    }
}

void Masker::choose_exactly(int32_t num_tokens, RandomStream& random) {
    if (recipe_.probability == 0) return;
    const auto target = std::max<int32_t>(1, static_cast<int32_t>(std::lround(recipe_.probability * num_tokens)));
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

void Masker::mask(std::span<int64_t> tokens, std::span<const std::pair<int32_t, int32_t>> segments,
                  const RandomDomain& domain, uint64_t sample, int64_t offset, std::vector<int64_t>& positions,
                  std::vector<int64_t>& labels) {
    find_words(tokens, segments);
    chosen_.clear();
    RandomStream choice(domain, sample, Purpose::masked_positions);
    if (recipe_.exact_count) {
        int32_t num_tokens = 0;
        for (const auto& [begin, end] : segments) num_tokens += end - begin;
        choose_exactly(num_tokens, choice);
    } else {
        choose_independently(choice);
    }
    const Replacement& shares = recipe_.replacement;
    // Of the tokens that do not become [MASK]; exactly a half by default, as equal shares are.
    const double random_share = shares.random > 0 ? shares.random / (shares.random + shares.unchanged) : 0.0;
    RandomStream random(domain, sample, Purpose::masked_tokens);
    for (const Word& word : chosen_) {
        for (int32_t i = word.begin; i < word.end; ++i) {
            positions.push_back(offset + i);
            labels.push_back(tokens[i]);
            if (random.chance(shares.mask)) {
                tokens[i] = recipe_.mask_id;
            } else if (random.chance(random_share)) {
                tokens[i] = recipe_.replacements[random.below(static_cast<uint32_t>(recipe_.replacements.size()))];
            }
        }
    }
}

}  // namespace fastbert
