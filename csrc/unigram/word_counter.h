// Counts the words of a corpus as Unigram's pre-tokenizer splits them, for building a vocabulary.
#pragma once
#include <string_view>
#include <utility>
#include <vector>

#include "common/string_counts.h"
#include "normalizer/normalizer.h"
#include "unigram/pre_tokenizer.h"

namespace fastbert::unigram {

class WordCounter {
public:
    WordCounter(normalizer::Normalizer normalizer, PreTokenizer pre_tokenizer)
        : normalizer_(std::move(normalizer)), pre_tokenizer_(std::move(pre_tokenizer)) {}

    void add(std::string_view text) {
        words_.assign(1, {normalizer_.normalize(text), true});
        if (words_[0].text.empty()) return;
        pre_tokenizer_.split(words_);
        for (const Word& word : words_) counts_.add(normalizer::bytes_of(word.text));
    }

    const auto& counts() const { return counts_.all(); }

private:
    normalizer::Normalizer normalizer_;
    PreTokenizer pre_tokenizer_;
    std::vector<Word> words_;
    StringCounts counts_;
};

}  // namespace fastbert::unigram
