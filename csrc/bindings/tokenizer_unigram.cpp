// Bindings of csrc/unigram.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bindings/counters.h"
#include "bindings/normalizer.h"
#include "bindings/registration.h"
#include "unigram/unigram.h"
#include "unigram/word_counter.h"

namespace py = pybind11;
using namespace py::literals;

namespace fastbert::tokenizer_unigram_bindings {
namespace {

using namespace unigram;

std::u32string points_of(const py::handle& text) {
    std::u32string points;
    for (const auto& c : normalizer::characters_of(text.cast<std::string>())) points.push_back(c.point);
    return points;
}

Behavior behavior_of(const py::handle& name) {
    static const std::map<std::string, Behavior> kBehaviors = {{"Removed", Behavior::kRemoved},
                                                               {"Isolated", Behavior::kIsolated},
                                                               {"MergedWithPrevious", Behavior::kMergedWithPrevious},
                                                               {"MergedWithNext", Behavior::kMergedWithNext},
                                                               {"Contiguous", Behavior::kContiguous}};
    const auto found = kBehaviors.find(name.cast<std::string>());
    if (found == kBehaviors.end()) throw py::value_error("there is no behavior " + name.cast<std::string>());
    return found->second;
}

// A step is its name and its arguments; see _C.pyi.
SplittingStep make_step(const py::tuple& step) {
    using Prepend = MetaspaceStep::Prepend;
    const auto name = step[0].cast<std::string>();
    if (name == "whitespace_split") return WhitespaceSplitStep{};
    if (name == "digits") return DigitsStep{step[1].cast<bool>()};
    if (name == "punctuation") return PunctuationStep{behavior_of(step[1])};
    if (name == "split") {
        SplitStep result{points_of(step[1]), behavior_of(step[2]), step[3].cast<bool>()};
        if (result.pattern.empty()) throw py::value_error("the pattern of a split is empty");
        return result;
    }
    if (name == "metaspace") {
        const std::u32string replacement = points_of(step[1]);
        const auto scheme = step[2].cast<std::string>();
        if (replacement.size() != 1) throw py::value_error("the replacement of a space is one character");
        const auto prepend = scheme == "always" ? Prepend::kAlways : scheme == "first" ? Prepend::kFirst : Prepend::kNever;
        return MetaspaceStep{replacement[0], prepend, step[3].cast<bool>()};
    }
    throw py::value_error("there is no step " + name);
}

PreTokenizer make_pre_tokenizer(const std::vector<py::tuple>& pre_tokenizer) {
    std::vector<SplittingStep> steps;
    for (const py::tuple& step : pre_tokenizer) steps.push_back(make_step(step));
    return PreTokenizer(std::move(steps));
}

std::unique_ptr<Unigram> make_tokenizer(const std::vector<std::string>& tokens,
                                        const py::array_t<double, py::array::c_style>& score_array,
                                        std::int32_t unknown_id, std::vector<std::int32_t> byte_ids,
                                        const std::vector<AddedToken>& added, bool split_special,
                                        const NormalizerHandle& handle, const std::vector<py::tuple>& pre_tokenizer) {
    check_added_tokens(added, handle.normalizer);
    std::vector<double> scores(score_array.data(), score_array.data() + score_array.size());
    const auto size = static_cast<std::int64_t>(tokens.size());
    if (tokens.size() > PieceTrie::kMostPieces) throw py::value_error("there are too many tokens");
    if (scores.size() != tokens.size() || tokens.empty()) throw py::value_error("each token needs a score");
    for (const double score : scores) {
        if (!std::isfinite(score)) throw py::value_error("a score is not a finite number");
    }
    if (unknown_id < 0 || unknown_id >= size) throw py::value_error("the unknown token must lie in the vocabulary");
    if (!byte_ids.empty() && byte_ids.size() != 256) throw py::value_error("there must be 256 bytes");
    for (const std::int32_t id : byte_ids) {
        if (id < 0 || id >= size) throw py::value_error("a byte must lie in the vocabulary");
    }
    for (const std::string& token : tokens) {
        if (token.empty()) throw py::value_error("a token is empty");
        if (token.find('\0') != std::string::npos) throw py::value_error("a token holds a zero byte");
    }
    PreTokenizer steps = make_pre_tokenizer(pre_tokenizer);
    py::gil_scoped_release release;
    return std::make_unique<Unigram>(tokens, std::move(scores), unknown_id, std::move(byte_ids), added, split_special,
                                     handle.normalizer, std::move(steps));
}

void bind_classes(py::module_& module) {
    py::class_<Unigram, tokenizer::Tokenizer>(module, "Unigram", "The tokenizer of XLM-RoBERTa, ALBERT and DeBERTa-v3.")
        .def(py::init(&make_tokenizer), "tokens"_a, "scores"_a, "unknown_id"_a, "byte_ids"_a, "added"_a,
             "split_special"_a, "normalizer"_a, "pre_tokenizer"_a);

    py::class_<WordCounter> counter(module, "UnigramCounter", "Counts the words of Unigram's pre-tokenizer.");
    const auto make_counter = [](const NormalizerHandle& handle, const std::vector<py::tuple>& steps) {
        return WordCounter(handle.normalizer, make_pre_tokenizer(steps));
    };
    bind_counting(counter.def(py::init(make_counter), "normalizer"_a, "pre_tokenizer"_a));
}

const Registration registration{"tokenizer_unigram", nullptr, &bind_classes};

}  // namespace
}  // namespace fastbert::tokenizer_unigram_bindings
