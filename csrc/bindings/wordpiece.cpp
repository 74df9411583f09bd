// Bindings of csrc/wordpiece.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/counters.h"
#include "bindings/registration.h"
#include "bindings/texts.h"
#include "unicode/tables.h"
#include "wordpiece/normalized_text.h"
#include "wordpiece/tokenizer.h"
#include "wordpiece/word_counter.h"

namespace py = pybind11;
using namespace py::literals;

namespace fastbert::wordpiece_bindings {
namespace {

using namespace wordpiece;

std::unique_ptr<WordPiece> make_tokenizer(std::vector<std::string> tokens, const std::vector<AddedToken>& added,
                                          bool split_special, std::int32_t unknown_id,
                                          const NormalizerOptions& options, bool trim_offsets, bool expects_prefix) {
    if (unknown_id < 0 || static_cast<std::size_t>(unknown_id) >= tokens.size()) {
        throw py::value_error("the unknown token must lie in the vocabulary");
    }
    for (const AddedToken& token : added) {
        if (token.normalized && NormalizedText(token.content, options).bytes().empty()) {
            throw py::value_error("nothing is left of an added token when it is normalised");
        }
    }
    return std::make_unique<WordPiece>(std::move(tokens), added, split_special, unknown_id, options,
                                       tokenizer::TrimOptions{trim_offsets, expects_prefix});
}

// One word per call of word(), as Python strings.
struct ListSink {
    py::list words;

    void word(const Word& word) { words.append(py::str(word.view().data(), word.view().size())); }
    bool full() const { return false; }
};

py::list split_words(const WordPiece& self, const py::str& text) {
    const Texts inputs(py::make_tuple(text), "texts");
    ListSink sink;
    self.split_words(inputs.views()[0], sink);
    return sink.words;
}

void bind_classes(py::module_& module) {
    py::class_<NormalizerOptions>(module, "NormalizerOptions", "The enabled steps of BERT's normalisation.")
        .def(py::init<bool, bool, bool>(), "lower_case"_a, "strip_accents"_a, "chinese_chars"_a)
        .def(py::pickle(
            [](const NormalizerOptions& self) {
                return py::make_tuple(self.lower_case, self.strip_accents, self.chinese_chars);
            },
            [](const py::tuple& state) {
                return NormalizerOptions{state[0].cast<bool>(), state[1].cast<bool>(), state[2].cast<bool>()};
            }));

    py::class_<WordPiece, tokenizer::Tokenizer>(module, "WordPiece", "BERT's tokenizer.")
        .def(py::init(&make_tokenizer), "tokens"_a, "added"_a, "split_special"_a, "unknown_id"_a, "options"_a,
             "trim_offsets"_a, "expects_prefix"_a)
        .def("split_words", &split_words, "text"_a, "Return the normalised words of a text.");

    py::class_<WordCounter> counter(module, "WordCounter", "Counts normalised words.");
    bind_counting(counter.def(py::init<const NormalizerOptions&>(), "options"_a));
}

void bind_functions(py::module_& module) {
    module.attr("UNICODE_FINGERPRINT") = unicode::kFingerprint;
    module.attr("MAX_WORD_CHARS") = kMaxWordChars;
    module.def(
        "normalize",
        [](const std::string& text, const NormalizerOptions& options) { return NormalizedText(text, options).bytes(); },
        "text"_a, "options"_a, "Return the normalised text that words are searched in.");
}

const Registration registration{"wordpiece", &bind_functions, &bind_classes};

}  // namespace
}  // namespace fastbert::wordpiece_bindings
