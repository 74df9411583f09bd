// Counts the words of a corpus as the tokenizer splits them, for building a vocabulary.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "wordpiece/word_splitter.h"

namespace fastbert::wordpiece {

class WordCounter {
public:
    explicit WordCounter(const NormalizerOptions& options) : tables_(options) {}

    void add(std::string_view text) {
        Sink sink{counts_};
        WordSplitter<Sink>(tables_, sink).split(text);
    }

    const auto& counts() const { return counts_; }

private:
    // Heterogeneous lookup, which does not construct a string.
    struct Hash : std::hash<std::string_view> {
        using is_transparent = void;
    };
    using Counts = std::unordered_map<std::string, std::int64_t, Hash, std::equal_to<>>;

    struct Sink {
        Counts& counts;

        // A longer word is unknown whatever the vocabulary.
        void word(const Word& word) {
            if (word.too_long()) return;
            if (const auto entry = counts.find(word.view()); entry != counts.end()) {
                ++entry->second;
            } else {
                counts.emplace(word.view(), 1);
            }
        }
        bool full() const { return false; }
    };

    NormalizerTables tables_;
    Counts counts_;
};

}  // namespace fastbert::wordpiece
