// Bindings of csrc/unicode, for the tests that compare it with the reference.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/registration.h"
#include "unicode/normalization_forms.h"
#include "unicode/properties.h"
#include "unicode/utf8.h"

namespace py = pybind11;
using namespace py::literals;

namespace fastbert::unicode_bindings {
namespace {

constexpr char32_t kCodePoints = 0x110000;

// A value of one byte for each code point.
template <class Property>
py::bytes for_each_code_point(Property property) {
    std::string values(kCodePoints, '\0');
    for (char32_t point = 0; point < kCodePoints; ++point) values[point] = static_cast<char>(property(point));
    return values;
}

std::vector<std::size_t> grapheme_sizes(std::string_view text) {
    std::vector<std::size_t> sizes;
    const auto* at = unicode::bytes_of(text);
    for (const auto* const end = at + text.size(); at < end; at += sizes.back()) {
        sizes.push_back(unicode::grapheme_size(at, end));
    }
    return sizes;
}

unicode::Form form_of(std::string_view name) {
    if (name == "NFC") return unicode::Form::kNfc;
    if (name == "NFD") return unicode::Form::kNfd;
    if (name == "NFKC") return unicode::Form::kNfkc;
    if (name == "NFKD") return unicode::Form::kNfkd;
    throw py::value_error("the form must be NFC, NFD, NFKC or NFKD, not " + std::string(name));
}

// The text that `change` makes of a text, and the source of each of its characters.
template <class Change>
std::pair<std::string, std::vector<std::uint32_t>> with_sources(std::string_view text, Change change) {
    std::vector<unicode::NormalizedCharacter> characters;
    const auto* at = unicode::bytes_of(text);
    for (const auto* const end = at + text.size(); at < end;) {
        const auto source = static_cast<std::uint32_t>(characters.size());
        characters.push_back({unicode::decode(at), source});
    }
    change(characters);
    std::pair<std::string, std::vector<std::uint32_t>> result;
    for (const auto& [point, source] : characters) {
        std::array<std::uint8_t, unicode::kMaxUtf8Bytes> encoded;
        result.first.append(unicode::chars(encoded.data()), unicode::encode(point, encoded.data()));
        result.second.push_back(source);
    }
    return result;
}

void bind_functions(py::module_& module) {
    module.attr("UNICODE_PROPERTIES_FINGERPRINT") = unicode::kPropertiesFingerprint;
    module.def(
        "split_classes", [] { return for_each_code_point(unicode::split_class_of); },
        "Return the class of each code point in byte-level BPE: 0 letter, 1 number, 2 space, 3 other.");
    module.def(
        "character_flags",
        [] {
            return for_each_code_point([](char32_t point) {
                return unicode::is_whitespace(point) | unicode::is_punctuation(point) << 1 |
                       unicode::is_numeric(point) << 2 | unicode::is_combining_mark(point) << 3;
            });
        },
        "Return the flags of each code point: 1 white space, 2 punctuation, 4 numeric, 8 combining mark.");
    module.def("grapheme_sizes", &grapheme_sizes, "text"_a,
               "Return the bytes of each grapheme cluster, exact below 6 bytes.");
    module.def(
        "normalize_form",
        [](std::string_view form, std::string_view text) {
            return with_sources(text, [form](auto& characters) { unicode::normalize(form_of(form), characters); });
        },
        "form"_a, "text"_a, "Return a text in NFC, NFD, NFKC or NFKD, and the source of each of its characters.");
    module.def(
        "is_inert", [](std::string_view form, std::string_view text) { return unicode::is_inert(form_of(form), text); },
        "form"_a, "text"_a, "Return true if normalization certainly changes nothing.");
    module.def(
        "lowercase", [](std::string_view text) { return with_sources(text, unicode::lowercase); }, "text"_a,
        "Return a text in lower case, and the source of each of its characters.");
    module.def(
        "strip_accents", [](std::string_view text) { return with_sources(text, unicode::strip_accents); }, "text"_a,
        "Return a text without combining marks, and the source of each of its characters.");
}

const Registration registration{"unicode", &bind_functions};

}  // namespace
}  // namespace fastbert::unicode_bindings
