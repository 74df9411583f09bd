// The same checks without a fuzzer: check_texts SEED COUNT [THREADS] draws hostile texts, check_texts CORPORA reads a file
// of inputs per target, each a 32-bit size and its bytes.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "checks.h"

namespace {

constexpr const char* kParts[] = {
    "a", "ab", "abc", "abcde", "the", "THE", "Abab", "aaaaaaaa", "1", " ", "  ", "\t", "\n", "\r\n", ".", ",", "-", "'",
    "[SEP]", "[MASK]", "[SE", "]", "[", "é", "É", "e\u0301", "ß", "ẞ", "İ", "中", "中国", "。", "한국", "한", "ий", "Я",
    "\u0301", "\u0302", "\u0345", "\u0327", "\u302e", "\U0001d165", "\u093e", "क", "கா", "𝒳", "\u00a0", "\u2028", "\u0085",
    "\u00ad", "\u200d", "\ufeff", "\U0002b820", "\u3000", "\uf900", "\u212b", "\u037e", "q", "zzz", "abcdeabcdeabcde",
    "abcdeabcdeabcdea", "\u0000", "\u007f", "\x1f", "'s", "'ll", "don't", "``", "''", "▁", "ﬁ", "①", "\r", "か\u3099",
    "<s>", "12", "!!", "   ", "\u2003",
};

std::string draw(std::mt19937_64& random) {
    std::string text;
    for (int i = 0; i < 2; ++i) text += static_cast<char>(random());
    const bool is_long = random() % 64 == 0;
    for (std::size_t parts = random() % (is_long ? 3000 : 40); parts > 0; --parts) {
        const char* const part = kParts[random() % std::size(kParts)];
        const std::size_t repeats = random() % 32 == 0 ? random() % 120 : 1;
        for (std::size_t i = 0; i < repeats; ++i) text += part;
        if (random() % 16 == 0) text += static_cast<char>(random());
        if (random() % 64 == 0) text += '\0';
    }
    return text;
}

int replay(const std::string& folder) {
    std::size_t inputs = 0;
    for (const auto& [name, check] : fastbert::checks::kTargets) {
        std::ifstream file(folder + "/" + name, std::ios::binary);
        if (!file) return std::fprintf(stderr, "there are no inputs for %s\n", name), 2;
        const std::string data((std::istreambuf_iterator<char>(file)), {});
        for (std::size_t at = 0; at + 4 <= data.size(); ++inputs) {
            std::uint32_t size = 0;
            std::memcpy(&size, data.data() + at, sizeof size);
            // A copy of its own, so that the sanitizer sees what is read beside it.
            const std::string input = data.substr(at + 4, size);
            check(input);
            at += 4 + size;
        }
    }
    std::printf("%zu inputs, no difference\n", inputs);
    return 0;
}

}  // namespace

int main(int count, char** arguments) {
    if (count == 2) return replay(arguments[1]);
    if (count < 3) return std::fputs("usage: check_texts SEED COUNT [THREADS] | CORPORA\n", stderr), 2;
    std::mt19937_64 random(std::strtoull(arguments[1], nullptr, 10));
    const unsigned long texts = std::strtoul(arguments[2], nullptr, 10);
    for (unsigned long i = 0; i < texts; ++i) {
        const std::string text = draw(random);
        if (count > 3) {
            fastbert::checks::check_threads(text, static_cast<unsigned>(std::strtoul(arguments[3], nullptr, 10)));
        } else {
            for (const auto& [name, check] : fastbert::checks::kTargets) {
                check(text);
            }
        }
    }
    std::printf("%lu texts, no difference\n", texts);
    return 0;
}
