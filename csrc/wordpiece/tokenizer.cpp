#include "wordpiece/tokenizer.h"

#include <algorithm>
#include <utility>

namespace fastbert::wordpiece {
namespace {

constexpr std::string_view kContinuation = "##";

using Keys = std::vector<std::pair<std::string_view, std::int32_t>>;

Keys keys_of(const std::vector<std::string>& tokens, bool continuing) {
    Keys keys;
    for (std::size_t id = 0; id < tokens.size(); ++id) {
        std::string_view token = tokens[id];
        if (token.starts_with(kContinuation) != continuing) continue;
        if (continuing) token.remove_prefix(kContinuation.size());
        if (!token.empty()) keys.emplace_back(token, static_cast<std::int32_t>(id));
    }
    return keys;
}

WordTable whole_words_of(const std::vector<std::string>& tokens) {
    Keys keys = keys_of(tokens, false);
    std::erase_if(keys, [](const auto& key) { return key.first.size() > WordTable::kMaxBytes; });
    WordTable table(keys.size());
    for (const auto& [word, id] : keys) table.insert(word, id);
    return table;
}

std::vector<std::pair<std::string, std::int32_t>> named(const std::vector<std::string>& tokens,
                                                        const std::vector<std::int32_t>& ids) {
    std::vector<std::pair<std::string, std::int32_t>> result;
    for (const std::int32_t id : ids) result.emplace_back(tokens[static_cast<std::size_t>(id)], id);
    return result;
}

}  // namespace

// The sink of one text: looks words up and stops the splitter when there are enough ids.
class Tokenizer::Encoder {
public:
    Encoder(const Tokenizer& tokenizer, std::size_t limit, std::vector<std::int32_t>& ids)
        : tokenizer_(tokenizer), limit_(limit), ids_(ids) {}

    void word(const Word& word) { tokenizer_.encode_word(word, ids_); }
    bool full() const { return ids_.size() >= limit_; }

private:
    const Tokenizer& tokenizer_;
    std::size_t limit_;
    std::vector<std::int32_t>& ids_;
};

Tokenizer::Tokenizer(std::vector<std::string> tokens, const std::vector<std::int32_t>& special_ids,
                     std::int32_t unknown_id, const NormalizerOptions& options)
    : tokens_(std::move(tokens)),
      unknown_id_(unknown_id),
      tables_(options),
      specials_(named(tokens_, special_ids)),
      whole_words_(whole_words_of(tokens_)),
      initial_(keys_of(tokens_, false)),
      continuing_(keys_of(tokens_, true)) {}

void Tokenizer::encode(std::string_view text, std::size_t limit, std::vector<std::int32_t>& ids) const {
    const std::size_t full_size = limit == kNoLimit ? kNoLimit : ids.size() + limit;
    Encoder encoder(*this, full_size, ids);
    WordSplitter<Encoder> splitter(tables_, encoder);
    // Text between special tokens is normalised piece by piece: nothing is reordered or joined across one.
    for (std::size_t at = 0; at < text.size() && !encoder.full();) {
        const SpecialTokens::Match special = specials_.find(text, at);
        splitter.split(text.substr(at, special.begin - at));
        if (special.id != Trie::kNone) ids.push_back(special.id);
        at = special.end;
    }
    if (ids.size() > full_size) ids.resize(full_size);
}

void Tokenizer::encode_word(const Word& word, std::vector<std::int32_t>& ids) const {
    if (word.size <= WordTable::kMaxBytes) {
        const std::int32_t id = whole_words_.find(word.bytes.data(), word.size);
        if (id != WordTable::kNone) return ids.push_back(id);
    }
    if (word.too_long()) return ids.push_back(unknown_id_);
    // The longest token first, then the longest continuation of what is left; if ever there is none, the word as a whole
    // is unknown.
    const std::size_t before = ids.size();
    std::string_view rest = word.view();
    for (const Trie* trie = &initial_; !rest.empty(); trie = &continuing_) {
        const Trie::Match match = trie->longest_prefix(rest);
        if (match.id == Trie::kNone) {
            ids.resize(before);
            return ids.push_back(unknown_id_);
        }
        ids.push_back(match.id);
        rest.remove_prefix(match.size);
    }
}

}  // namespace fastbert::wordpiece
