// The tokenizer against a plain implementation of the same rules: no windows, no cache, no trie, no instructions beyond
// C++. Shared by the fuzz target and by the stand-alone program.
#pragma once
#include <string>
#include <string_view>

namespace fastbert::checks {

// `input` is any bytes: the first one chooses the options, the rest is made valid UTF-8. Prints the first difference and
// aborts if there is one.
void check_wordpiece(std::string_view input);

// Encodes the same texts on several threads at once, with tokenizers shared and new, and compares the results.
void check_threads(std::string_view input, unsigned threads);

}  // namespace fastbert::checks
