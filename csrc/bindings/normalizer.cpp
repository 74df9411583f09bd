// Bindings of csrc/normalizer.
#include "bindings/normalizer.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bindings/registration.h"

namespace py = pybind11;
using namespace py::literals;

namespace fastbert {

void check_added_tokens(const std::vector<tokenizer::AddedToken>& added, const normalizer::Normalizer& normalizer) {
    for (const tokenizer::AddedToken& token : normalizer::searched(added, &normalizer)) {
        if (token.content.empty()) throw py::value_error("nothing is left of an added token when it is normalised");
    }
}

}  // namespace fastbert

namespace fastbert::normalizer_bindings {
namespace {

using namespace normalizer;

std::u32string points_of(const py::handle& text) {
    std::u32string points;
    for (const NormalizedCharacter& c : characters_of(text.cast<std::string>())) points.push_back(c.point);
    return points;
}

// A step is its name and its arguments; see _C.pyi.
Step make_step(const py::tuple& step) {
    const auto name = step[0].cast<std::string>();
    static const std::map<std::string, unicode::Form> kForms = {{"nfc", unicode::Form::kNfc},
                                                                {"nfd", unicode::Form::kNfd},
                                                                {"nfkc", unicode::Form::kNfkc},
                                                                {"nfkd", unicode::Form::kNfkd}};
    if (const auto form = kForms.find(name); form != kForms.end()) return FormStep{form->second};
    if (name == "lowercase") return LowercaseStep{};
    if (name == "strip_accents") return StripAccentsStep{};
    if (name == "strip") return StripStep{step[1].cast<bool>(), step[2].cast<bool>()};
    if (name == "prepend") return PrependStep{points_of(step[1])};
    if (name == "replace") {
        ReplaceStep result{points_of(step[1]), points_of(step[2])};
        if (result.pattern.empty()) throw py::value_error("the pattern of a replacement is empty");
        return result;
    }
    if (name == "replace_runs") {
        ReplaceRunsStep result;
        for (const py::handle item : step[1]) {
            const auto run = item.cast<py::tuple>();
            result.alternatives.push_back(
                {points_of(run[0]), run[1].cast<bool>(), run[2].cast<std::uint32_t>(), run[3].cast<bool>()});
            if (result.alternatives.back().least == 0) throw py::value_error("a run has at least one character");
        }
        result.content = points_of(step[2]);
        return result;
    }
    if (name == "charsmap") return CharsmapStep{std::make_shared<const Charsmap>(step[1].cast<std::string_view>())};
    throw py::value_error("there is no step " + name);
}

NormalizerHandle make_normalizer(const std::vector<py::tuple>& steps) {
    std::vector<Step> result;
    for (const py::tuple& step : steps) result.push_back(make_step(step));
    return {Normalizer(std::move(result))};
}

std::string normalize(const NormalizerHandle& self, const std::string& text) {
    return bytes_of(self.normalizer.normalize(text));
}

void bind_classes(py::module_& module) {
    py::class_<NormalizerHandle>(module, "Normalizer", "The steps that change a text before it is split.")
        .def(py::init(&make_normalizer), "steps"_a)
        .def("normalize", &normalize, "text"_a, "Return the normalised text.")
        .def(
            "is_inert",
            [](const NormalizerHandle& self, const std::string& text) { return self.normalizer.is_inert(text); },
            "text"_a, "Return true only if the normalizer does not change the text.");
}

const Registration registration{"normalizer", nullptr, &bind_classes};

}  // namespace
}  // namespace fastbert::normalizer_bindings
