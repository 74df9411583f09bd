// Bindings of csrc/corpus: text in as bytes, sentences out side by side, tokenized without a string per sentence.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/registration.h"
#include "bindings/texts.h"
#include "common/xxhash64.h"
#include "corpus/sentence_reader.h"
#include "tokenizer/batch.h"
#include "unicode/utf8.h"

namespace py = pybind11;
using namespace py::literals;

namespace fastbert::corpus_bindings {
namespace {

using namespace corpus;

using Properties = py::array_t<std::uint16_t, py::array::c_style | py::array::forcecast>;
using Offsets = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;

std::shared_ptr<SentenceRules> make_rules(const Properties& properties, WordLists::Words titles,
                                          WordLists::Words before_number, WordLists::Words ordinary,
                                          WordLists::Words abbreviations, WordLists::Words starters) {
    return std::make_shared<SentenceRules>(
        std::vector<std::uint16_t>(properties.data(), properties.data() + properties.size()),
        WordLists{std::move(titles), std::move(before_number), std::move(ordinary), std::move(abbreviations),
                  std::move(starters)});
}

std::vector<std::string> split_sentences(const SentenceRules& self, std::string_view paragraph) {
    std::vector<std::string_view> sentences;
    self.split(paragraph, sentences);
    return {sentences.begin(), sentences.end()};
}

Layout layout_of(const std::string& name) {
    if (name == "lines") return Layout::kLines;
    if (name == "paragraphs") return Layout::kParagraphs;
    if (name == "prose") return Layout::kProse;
    throw py::value_error("layout '" + name + "' must be 'lines', 'paragraphs' or 'prose'");
}

std::shared_ptr<SentenceReader> make_reader(std::shared_ptr<SentenceRules> rules, const std::string& layout,
                                            bool one_document, std::size_t max_paragraph_chars,
                                            std::size_t max_document_chars, std::shared_ptr<Repeats> repeats) {
    return std::make_shared<SentenceReader>(std::move(rules), layout_of(layout), one_document,
                                            SentenceReader::Limits{max_paragraph_chars, max_document_chars},
                                            std::move(repeats));
}

// Valid UTF-8 is the condition of everything below.
void add(SentenceReader& self, const py::bytes& lines) {
    const std::string_view view = lines;
    py::gil_scoped_release release;
    if (!unicode::is_valid_utf8(view)) throw std::invalid_argument("the lines are not UTF-8");
    self.add(view);
}

void add_document(SentenceReader& self, py::handle sentences) {
    const Texts texts(sentences, "document");
    py::gil_scoped_release release;
    for (const std::string_view sentence : texts.views()) self.add_sentence(sentence);
    self.end_document();
}

py::list strings(const SentenceBatch& self) {
    py::list result(self.count());
    for (std::size_t i = 0; i < self.count(); ++i) {
        const std::string_view sentence = self.sentence(i);
        PyObject* const text =
            PyUnicode_DecodeUTF8(sentence.data(), static_cast<py::ssize_t>(sentence.size()), nullptr);
        if (text == nullptr) throw py::error_already_set();
        PyList_SET_ITEM(result.ptr(), static_cast<py::ssize_t>(i), text);
    }
    return result;
}

Offsets document_ends(const SentenceBatch& self) {
    return Offsets(static_cast<py::ssize_t>(self.document_ends.size()), self.document_ends.data());
}

// Return the sentences, those that do not begin a document behind the separator; `text` holds what is not in the batch.
std::vector<std::string_view> separated(const SentenceBatch& batch, std::string_view separator, std::string& text) {
    std::vector<std::string_view> sentences(batch.count());
    if (separator.empty()) {
        for (std::size_t i = 0; i < sentences.size(); ++i) sentences[i] = batch.sentence(i);
        return sentences;
    }
    text.reserve(batch.text.size() + sentences.size() * separator.size());  // so that views stay valid
    std::size_t document = 0;
    bool begins = batch.begins_document;
    for (std::size_t i = 0; i < sentences.size(); ++i) {
        for (; document < batch.document_ends.size() &&
               static_cast<std::size_t>(batch.document_ends[document]) <= i;
             ++document) {
            begins = true;
        }
        const std::size_t from = text.size();
        const std::string_view sentence = batch.sentence(i);
        if (!begins && !sentence.empty()) text.append(separator);
        text.append(sentence);
        sentences[i] = std::string_view(text).substr(from);
        begins = begins && sentence.empty();  // it is dropped
    }
    return sentences;
}

py::tuple encode(const SentenceBatch& self, const tokenizer::Tokenizer& tokenizer, unsigned threads,
                 const std::string& separator) {
    tokenizer::Sequences rows;
    {
        py::gil_scoped_release release;
        std::string text;
        const std::vector<std::string_view> sentences = separated(self, separator, text);
        rows = tokenizer::encode_batch(tokenizer, sentences, tokenizer::Tokenizer::kNoLimit, {}, threads);
    }
    return py::make_tuple(to_array(std::move(rows.tokens.ids)), to_array(std::move(rows.offsets)));
}

py::array_t<std::uint64_t> hash_rows(const py::array& values, const Offsets& offsets) {
    if (!(values.flags() & py::array::c_style) || offsets.size() < 1) {
        throw py::value_error("values must be contiguous, and offsets not empty");
    }
    const std::span<const std::int64_t> bounds(offsets.data(), static_cast<std::size_t>(offsets.size()));
    for (std::size_t i = 0; i < bounds.size(); ++i) {
        if (bounds[i] < (i == 0 ? 0 : bounds[i - 1]) || bounds[i] > values.size()) {
            throw py::value_error("offset " + std::to_string(i) + " is out of range");
        }
    }
    py::array_t<std::uint64_t> hashes(offsets.size() - 1);
    std::uint64_t* const to = hashes.mutable_data();
    const auto* const bytes = static_cast<const char*>(values.data());
    const auto width = static_cast<std::size_t>(values.itemsize());
    py::gil_scoped_release release;
    for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
        const auto begin = static_cast<std::size_t>(bounds[i]), end = static_cast<std::size_t>(bounds[i + 1]);
        to[i] = xxhash64(bytes + begin * width, (end - begin) * width);
    }
    return hashes;
}

std::uint64_t hash_bytes(const py::bytes& data, std::uint64_t seed) {
    const std::string_view view = data;
    return xxhash64(view.data(), view.size(), seed);
}

void bind_classes(py::module_& module) {
    py::enum_<Property>(module, "CharacterProperty")
        .value("SPACE", kSpace)
        .value("LOWER", kLower)
        .value("UPPER", kUpper)
        .value("ALPHA", kAlpha)
        .value("DIGIT", kDigit)
        .value("LETTER", kLetter)
        .value("STOP", kStop)
        .value("CJK_STOP", kCjkStop)
        .value("CONTINUING", kContinuing)
        .value("CLOSER", kCloser)
        .value("OPENER", kOpener)
        .value("WORD_BREAK", kWordBreak)
        .value("WORD_END", kWordEnd)
        .value("CJK", kCjk);
    py::class_<SentenceRules, std::shared_ptr<SentenceRules>>(
        module, "SentenceRules", "The rules by which paragraphs are split into sentences; `properties` uint16 (0x110000,).")
        .def(py::init(&make_rules), "properties"_a, "titles"_a, "before_number"_a, "ordinary"_a, "abbreviations"_a,
             "starters"_a)
        .def("split", &split_sentences, "paragraph"_a);
    py::class_<Repeats, std::shared_ptr<Repeats>>(module, "Repeats",
                                                  "The lines and documents that were read, to drop repeated ones.")
        .def(py::init([](bool lines, bool documents) {
                 auto repeats = std::make_shared<Repeats>();
                 repeats->of_lines = lines;
                 repeats->of_documents = documents;
                 return repeats;
             }),
             "lines"_a, "documents"_a)
        .def_readonly("lines", &Repeats::lines)
        .def_readonly("documents", &Repeats::documents)
        .def_readonly("dropped_lines", &Repeats::dropped_lines)
        .def_readonly("dropped_documents", &Repeats::dropped_documents)
        .def_readonly("dropped_line_bytes", &Repeats::dropped_line_bytes)
        .def_readonly("dropped_document_bytes", &Repeats::dropped_document_bytes)
        .def_property_readonly("memory", [](const Repeats& self) {
            return self.seen_lines.bytes() + self.seen_documents.bytes();
        });
    py::class_<SentenceBatch>(module, "SentenceBatch", "Sentences side by side, and the ends of documents.")
        .def("__len__", &SentenceBatch::count)
        .def_property_readonly("bytes", [](const SentenceBatch& self) { return self.text.size(); })
        .def_property_readonly("document_ends", &document_ends)
        .def_readonly("begins_document", &SentenceBatch::begins_document)
        .def("strings", &strings)
        .def("encode", &encode, "tokenizer"_a, "threads"_a, "separator"_a = "",
             "Encode each sentence, those that do not begin a document behind the separator.");
    py::class_<SentenceReader, std::shared_ptr<SentenceReader>>(
        module, "SentenceReader", "Reads lines as documents of sentences, by a layout.")
        .def(py::init(&make_reader), "rules"_a, "layout"_a, "one_document"_a, "max_paragraph_chars"_a,
             "max_document_chars"_a, "repeats"_a)
        .def("add", &add, "lines"_a)
        .def("add_document", &add_document, "sentences"_a)
        .def("end_document", &SentenceReader::end_document, py::call_guard<py::gil_scoped_release>())
        .def("take", &SentenceReader::take)
        .def_property_readonly("complete_bytes", &SentenceReader::complete_bytes)
        .def_property_readonly("cut_documents", &SentenceReader::cut_documents);
}

void bind_functions(py::module_& module) {
    module.def("is_utf8", [](const py::bytes& data) {
        const std::string_view view = data;
        py::gil_scoped_release release;
        return unicode::is_valid_utf8(view);
    }, "data"_a, "Return whether bytes are valid UTF-8.");
    module.def("hash_rows", &hash_rows, "values"_a, "offsets"_a,
               "Return XXH64 of the bytes of each row: row i is values[offsets[i] : offsets[i + 1]].");
    module.def("hash_bytes", &hash_bytes, "data"_a, "seed"_a = 0, "Return XXH64 of bytes.");
}

const Registration registration("corpus", &bind_functions, &bind_classes);

}  // namespace
}  // namespace fastbert::corpus_bindings
