// Counts the chunks of a corpus as byte-level BPE cuts them, for building a vocabulary.
#pragma once
#include <string>
#include <string_view>
#include <utility>

#include "bpe/split_scan.h"
#include "common/string_counts.h"
#include "normalizer/normalizer.h"
#include "unicode/utf8.h"

namespace fastbert::bpe {

class ChunkCounter {
public:
    // `prefix_space`: as in ByteLevelOptions.
    ChunkCounter(normalizer::Normalizer normalizer, bool prefix_space)
        : normalizer_(std::move(normalizer)), prefix_space_(prefix_space) {}

    void add(std::string_view text) {
        if (!normalizer_.is_inert(text)) {
            normalized_ = normalizer::bytes_of(normalizer_.normalize(text));
            text = normalized_;
        }
        if (prefix_space_ && !text.empty() && text[0] != ' ') {
            prefixed_ = ' ';
            prefixed_.append(text);
            text = prefixed_;
        }
        const std::uint8_t* at = unicode::bytes_of(text);
        const std::uint8_t* const end = at + text.size();
        while (at < end) {
            const std::size_t size = first_chunk(at, end);
            counts_.add({unicode::chars(at), size});
            at += size;
        }
    }

    const auto& counts() const { return counts_.all(); }

private:
    normalizer::Normalizer normalizer_;
    bool prefix_space_;
    std::string normalized_, prefixed_;
    StringCounts counts_;
};

}  // namespace fastbert::bpe
