// Which texts may hold an added token once they are normalised, told from their raw bytes: nearly all texts need not be
// normalised as a whole.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "wordpiece/word_splitter.h"

namespace fastbert::wordpiece {

class TokenNeedles {
public:
    // Tokens with normalised contents.
    TokenNeedles(const std::vector<tokenizer::AddedToken>& tokens, const NormalizerOptions& options);

    // Return true if the normal form of `raw` may hold a token; false is certain.
    bool may_occur_in(std::string_view raw) const {
        if (in_any_text_) return true;
        for (const std::string& needle : needles_) {
            if (raw.find(needle) != std::string_view::npos) return true;
        }
        return false;
    }

private:
    bool in_any_text_ = false;
    // A text with a token holds at least one of them.
    std::vector<std::string> needles_;
};

}  // namespace fastbert::wordpiece
