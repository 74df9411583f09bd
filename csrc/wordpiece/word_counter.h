// Counts the words of a corpus as the tokenizer splits them, for building a vocabulary.
#pragma once
#include <string_view>

#include "common/string_counts.h"
#include "wordpiece/word_splitter.h"

namespace fastbert::wordpiece {

class WordCounter {
public:
    explicit WordCounter(const NormalizerOptions& options) : tables_(options) {}

    void add(std::string_view text) {
        Sink sink{counts_};
        WordSplitter<Sink>(tables_, sink).split(text);
    }

    const auto& counts() const { return counts_.all(); }

private:
    struct Sink {
        StringCounts& counts;

        // A longer word is unknown whatever the vocabulary.
        void word(const Word& word) {
            if (!word.too_long()) counts.add(word.view());
        }
        bool full() const { return false; }
    };

    NormalizerTables tables_;
    StringCounts counts_;
};

}  // namespace fastbert::wordpiece
