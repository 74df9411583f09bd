// Bindings of csrc/bpe.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/counters.h"
#include "bindings/normalizer.h"
#include "bindings/registration.h"
#include "bpe/byte_level.h"
#include "bpe/chunk_counter.h"
#include "unicode/utf8.h"

namespace py = pybind11;
using namespace py::literals;

namespace fastbert::tokenizer_byte_level_bindings {
namespace {

using namespace bpe;

// The character that stands for each byte in a vocabulary: printable ones of Latin-1 for themselves, the others from
// U+0100 on.
std::array<char32_t, 256> characters_of_bytes() {
    std::array<char32_t, 256> characters;
    char32_t next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
        const bool printable = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
        characters[byte] = printable ? byte : next++;
    }
    return characters;
}

// A token of the vocabulary as the bytes that it stands for; empty if it does not stand for bytes.
std::string raw_bytes(const std::string& token) {
    static const std::array<std::int16_t, 0x144> kBytes = [] {
        std::array<std::int16_t, 0x144> bytes;
        bytes.fill(-1);
        const auto characters = characters_of_bytes();
        for (unsigned byte = 0; byte < 256; ++byte) bytes[characters[byte]] = static_cast<std::int16_t>(byte);
        return bytes;
    }();
    std::string result;
    const std::uint8_t* at = unicode::bytes_of(token);
    const std::uint8_t* const end = at + token.size();
    while (at < end) {
        const char32_t point = unicode::decode(at);
        if (point >= kBytes.size() || kBytes[point] < 0) return "";
        result.push_back(static_cast<char>(kBytes[point]));
    }
    return result;
}

std::unique_ptr<ByteLevelBpe> make_tokenizer(std::vector<std::string> tokens,
                                             const py::array_t<std::int32_t, py::array::c_style>& merges,
                                             const std::vector<AddedToken>& added, bool split_special,
                                             const NormalizerHandle& handle, bool prefix_space, bool trim_offsets,
                                             bool expects_prefix, bool whole_words) {
    check_added_tokens(added, handle.normalizer);
    if (merges.ndim() != 2 || merges.shape(1) != 3) throw py::value_error("merges must have 3 columns");
    if (static_cast<std::size_t>(merges.shape(0)) > Merges::kMost) throw py::value_error("there are too many merges");
    if (tokens.size() > Merges::kMostTokens) throw py::value_error("there are too many tokens");
    const auto size = static_cast<std::int64_t>(tokens.size());
    std::vector<std::array<std::int32_t, 3>> rows(static_cast<std::size_t>(merges.shape(0)));
    const std::int32_t* from = merges.data();
    for (auto& row : rows) {
        for (std::int32_t& id : row) {
            id = *from++;
            if (id < 0 || id >= size) throw py::value_error("a merge names a token that does not exist");
        }
    }
    for (std::string& token : tokens) token = raw_bytes(token);
    for (const auto& [left, right, merged] : rows) {
        // A token that grows by its merges keeps words finite.
        if (tokens[static_cast<std::size_t>(left)].empty() || tokens[static_cast<std::size_t>(right)].empty() ||
            tokens[static_cast<std::size_t>(merged)] !=
                tokens[static_cast<std::size_t>(left)] + tokens[static_cast<std::size_t>(right)]) {
            throw py::value_error("a merge makes another token than the two together");
        }
    }
    py::gil_scoped_release release;
    return std::make_unique<ByteLevelBpe>(tokens, rows, added, split_special, handle.normalizer,
                                          ByteLevelOptions{prefix_space, {trim_offsets, expects_prefix}, whole_words});
}

void bind_classes(py::module_& module) {
    py::class_<ByteLevelBpe, tokenizer::Tokenizer>(module, "ByteLevelBpe", "The tokenizer of GPT-2 and RoBERTa.")
        .def(py::init(&make_tokenizer), "tokens"_a, "merges"_a, "added"_a, "split_special"_a, "normalizer"_a,
             "prefix_space"_a, "trim_offsets"_a, "expects_prefix"_a, "whole_words"_a);

    py::class_<ChunkCounter> counter(module, "ByteLevelCounter", "Counts the chunks of byte-level BPE.");
    const auto make_counter = [](const NormalizerHandle& handle, bool prefix_space) {
        return ChunkCounter(handle.normalizer, prefix_space);
    };
    bind_counting(counter.def(py::init(make_counter), "normalizer"_a, "prefix_space"_a));
}

void bind_functions(py::module_& module) {
    module.def(
        "byte_level_alphabet",
        [] {
            std::string text;
            std::uint8_t encoded[unicode::kMaxUtf8Bytes];
            for (const char32_t point : characters_of_bytes()) {
                text.append(unicode::chars(encoded), unicode::encode(point, encoded));
            }
            return text;
        },
        "Return the 256 characters that stand for the bytes in a byte-level vocabulary, by byte.");
}

const Registration registration{"tokenizer_byte_level", &bind_functions, &bind_classes};

}  // namespace
}  // namespace fastbert::tokenizer_byte_level_bindings
