// Python's view of csrc/wordpiece: strings are borrowed, not copied, and arrays are handed over, not converted.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bindings.h"
#include "unicode/tables.h"
#include "wordpiece/batch.h"
#include "wordpiece/normalized_text.h"
#include "wordpiece/word_counter.h"

namespace py = pybind11;
using namespace py::literals;

namespace fastbert {
namespace {

using namespace wordpiece;

// UTF-8 views of Python strings. It holds references to them, out of reach of other threads' changes to a list, so that
// the views stay good without the GIL. Strings lie scattered in memory, so each is touched once, after a hint.
class Texts {
public:
    Texts(py::handle texts, const char* name) {
        if (PyUnicode_Check(texts.ptr()) || PyBytes_Check(texts.ptr())) {
            throw py::type_error(std::string(name) + " must be a sequence of strings, not " + type_name(texts));
        }
        const std::string complaint = std::string(name) + " must be a sequence of strings, not " + type_name(texts);
        const auto sequence = py::reinterpret_steal<py::object>(PySequence_Fast(texts.ptr(), complaint.c_str()));
        if (!sequence) throw py::error_already_set();
        PyObject** const items = PySequence_Fast_ITEMS(sequence.ptr());
        const auto size = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(sequence.ptr()));
        views_.reserve(size);
        held_.reserve(size);
        // Nothing in this loop runs Python code that could change the sequence.
        for (std::size_t i = 0; i < size; ++i) {
            if (i + kAhead < size) __builtin_prefetch(items[i + kAhead], 1);
            views_.push_back(view(items[i], name, i));
            held_.push_back(Py_NewRef(items[i]));
        }
    }
    Texts(const Texts&) = delete;
    Texts& operator=(const Texts&) = delete;
    ~Texts() {
        for (std::size_t i = 0; i < held_.size(); ++i) {
            if (i + kAhead < held_.size()) __builtin_prefetch(held_[i + kAhead], 1);
            Py_DECREF(held_[i]);
        }
    }

    std::span<const std::string_view> views() const { return views_; }

private:
    static constexpr std::size_t kAhead = 8;

    static std::string type_name(py::handle object) { return Py_TYPE(object.ptr())->tp_name; }

    static std::string_view view(PyObject* text, const char* name, std::size_t i) {
        const auto place = [&] { return std::string(name) + "[" + std::to_string(i) + "]"; };
        if (!PyUnicode_Check(text)) {
            const char* cure = PyBytes_Check(text) ? "; decode it first, e.g. text.decode(\"utf-8\")" : "";
            throw py::type_error(place() + " must be a string, not " + type_name(text) + cure);
        }
        if (PyUnicode_IS_COMPACT_ASCII(text)) {
            return {static_cast<const char*>(PyUnicode_DATA(text)), static_cast<std::size_t>(PyUnicode_GET_LENGTH(text))};
        }
        Py_ssize_t size = 0;
        const char* data = PyUnicode_AsUTF8AndSize(text, &size);
        if (data == nullptr) {
            if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) throw py::error_already_set();
            PyErr_Clear();
            throw py::value_error(place() + " holds a lone surrogate (half of a character); clean it first, e.g. " +
                                  "text.encode(\"utf-8\", \"replace\").decode()");
        }
        return {data, static_cast<std::size_t>(size)};
    }

    std::vector<PyObject*> held_;
    std::vector<std::string_view> views_;
};

// A numpy array that owns the buffer's memory.
template <class T>
py::array_t<T> to_array(Buffer<T>&& values) {
    if (values.empty()) return py::array_t<T>(0);
    const auto size = static_cast<py::ssize_t>(values.size());
    T* const data = values.release();
    py::capsule owner(data, [](void* pointer) { std::free(pointer); });
    return py::array_t<T>({size}, {static_cast<py::ssize_t>(sizeof(T))}, data, owner);
}

template <class T>
using IntArray = py::array_t<T, py::array::c_style | py::array::forcecast>;

template <class T>
std::span<const T> span_of(const IntArray<T>& array) {
    return {array.data(), static_cast<std::size_t>(array.size())};
}

std::size_t checked_limit(std::int64_t limit) {
    return limit < 0 ? Tokenizer::kNoLimit : static_cast<std::size_t>(limit);
}

py::tuple encode_ragged(const Tokenizer& self, py::handle texts, unsigned threads) {
    const Texts held(texts, "texts");
    Ragged rows;
    {
        py::gil_scoped_release release;
        rows = encode_batch(self, held.views(), Tokenizer::kNoLimit, threads);
    }
    return py::make_tuple(to_array(std::move(rows.values)), to_array(std::move(rows.offsets)));
}

py::tuple encode_aligned_ragged(const Tokenizer& self, py::handle texts, unsigned threads) {
    const Texts held(texts, "texts");
    AlignedRagged rows;
    {
        py::gil_scoped_release release;
        rows = encode_batch_aligned(self, held.views(), Tokenizer::kNoLimit, threads);
    }
    return py::make_tuple(to_array(std::move(rows.tokens.ids)), to_array(std::move(rows.tokens.begins)),
                          to_array(std::move(rows.tokens.ends)), to_array(std::move(rows.tokens.words)),
                          to_array(std::move(rows.offsets)));
}

[[noreturn]] void raise(const TruncationError& error, std::int64_t max_length) {
    const std::string row = "row " + std::to_string(error.row) + " ";
    if (error.reason == TruncationError::Reason::kNoSecond) {
        throw py::value_error(row + "is no pair, so truncation='only_second' cannot shorten it; use 'longest_first'");
    }
    throw py::value_error(row + "cannot be cut to max_length=" + std::to_string(max_length) +
                          " by shortening one sequence alone; use truncation='longest_first' or a larger max_length");
}

py::tuple encode_model_inputs(const Tokenizer& self, py::handle texts, const py::object& pairs, const Template& form,
                              Truncation truncation, std::int64_t max_length, unsigned threads) {
    const Texts first(texts, "texts");
    std::optional<Texts> second;
    if (!pairs.is_none()) second.emplace(pairs, "pairs");
    if (second && second->views().size() != first.views().size()) {
        throw py::value_error(std::to_string(first.views().size()) + " texts but " +
                              std::to_string(second->views().size()) + " pairs; each text needs its pair");
    }
    if (truncation != Truncation::kNone && max_length < form.added(second.has_value())) {
        throw py::value_error("max_length=" + std::to_string(max_length) + " has no room for the " +
                              std::to_string(form.added(second.has_value())) + " special tokens; use a larger one");
    }
    Assembled result;
    {
        py::gil_scoped_release release;
        // A single text that is cut anyway need not be read to its end; of a pair, both lengths decide.
        const bool cut = !second && (truncation == Truncation::kLongestFirst || truncation == Truncation::kOnlyFirst);
        // One more than fits, so that "too long" can be told from "just fits".
        const std::size_t limit = cut ? checked_limit(max_length - form.added(false) + 1) : Tokenizer::kNoLimit;
        const Ragged a = encode_batch(self, first.views(), limit, threads);
        Ragged b;
        if (second) b = encode_batch(self, second->views(), Tokenizer::kNoLimit, threads);
        result = assemble(a, second ? &b : nullptr, form, truncation, max_length);
    }
    if (result.error) raise(*result.error, max_length);
    return py::make_tuple(to_array(std::move(result.ids.values)), to_array(std::move(result.type_ids)),
                          to_array(std::move(result.ids.offsets)));
}

// Rows side by side as (rows, width), filled up with `filler`.
py::array_t<std::int64_t> pad_rows(const IntArray<std::int32_t>& values, const IntArray<std::int64_t>& offsets,
                                   std::int64_t width, std::int64_t filler) {
    const std::span<const std::int64_t> bounds = span_of(offsets);
    if (bounds.empty() || bounds.front() != 0 || bounds.back() != values.size() || width < 0 ||
        !std::is_sorted(bounds.begin(), bounds.end())) {
        throw py::value_error("offsets must rise from 0 to the number of values, and width must not be negative");
    }
    py::array_t<std::int64_t> result({static_cast<py::ssize_t>(bounds.size()) - 1, static_cast<py::ssize_t>(width)});
    std::int64_t* const to = result.mutable_data();
    const std::span<const std::int32_t> from = span_of(values);
    py::gil_scoped_release release;
    pad(from, bounds, width, filler, to);
    return result;
}

std::unique_ptr<Tokenizer> make_tokenizer(std::vector<std::string> tokens, const std::vector<AddedToken>& added,
                                          bool split_special, std::int32_t unknown_id,
                                          const NormalizerOptions& options) {
    if (unknown_id < 0 || static_cast<std::size_t>(unknown_id) >= tokens.size()) {
        throw py::value_error("the unknown token must lie in the vocabulary");
    }
    for (const AddedToken& token : added) {
        if (token.id < 0) throw py::value_error("the id of an added token must not be negative");
        if (token.content.empty()) throw py::value_error("an added token must not be empty");
        if (token.normalized && NormalizedText(token.content, options).bytes().empty()) {
            throw py::value_error("nothing is left of an added token when it is normalised");
        }
    }
    return std::make_unique<Tokenizer>(std::move(tokens), added, split_special, unknown_id, options);
}

AddedToken make_added_token(std::string content, std::int32_t id, bool special, bool lstrip, bool rstrip,
                            bool single_word, bool normalized) {
    return {std::move(content), id, special, lstrip, rstrip, single_word, normalized};
}

void count_words(WordCounter& self, py::handle texts) {
    const Texts held(texts, "texts");
    py::gil_scoped_release release;
    for (const std::string_view text : held.views()) self.add(text);
}

// One word per call of word(), as Python strings.
struct ListSink {
    py::list words;

    void word(const Word& word) { words.append(py::str(word.view().data(), word.view().size())); }
    bool full() const { return false; }
};

py::list split_words(const Tokenizer& self, const py::str& text) {
    const Texts held(py::make_tuple(text), "texts");
    ListSink sink;
    self.split_words(held.views()[0], sink);
    return sink.words;
}

}  // namespace

void bind_wordpiece(py::module_& module) {
    module.attr("UNICODE_FINGERPRINT") = unicode::kFingerprint;
    module.attr("MAX_WORD_CHARS") = kMaxWordChars;

    py::class_<NormalizerOptions>(module, "NormalizerOptions", "Which of BERT's normalisation steps are on.")
        .def(py::init<bool, bool, bool>(), "lower_case"_a, "strip_accents"_a, "chinese_chars"_a);

    py::enum_<Truncation>(module, "Truncation", "How rows are cut to the maximum length.")
        .value("NONE", Truncation::kNone)
        .value("LONGEST_FIRST", Truncation::kLongestFirst)
        .value("ONLY_FIRST", Truncation::kOnlyFirst)
        .value("ONLY_SECOND", Truncation::kOnlySecond);

    py::class_<Template>(module, "Template", "The special tokens around sequences.")
        .def(py::init<bool, std::int32_t, std::int32_t>(), "add_special_tokens"_a, "cls_id"_a, "sep_id"_a);

    py::class_<AddedToken>(module, "AddedToken", "A token that is recognised before text is split into words.")
        .def(py::init(&make_added_token), "content"_a, "id"_a, "special"_a, "lstrip"_a, "rstrip"_a, "single_word"_a,
             "normalized"_a);

    py::class_<Tokenizer>(module, "WordPiece", "BERT's tokenizer; immutable, safe to share between threads.")
        .def(py::init(&make_tokenizer), "tokens"_a, "added"_a, "split_special"_a, "unknown_id"_a, "options"_a)
        .def("encode_ragged", &encode_ragged, "texts"_a, "threads"_a,
             "Token ids of the texts, one row each: (ids int32, offsets int64).")
        .def("encode_aligned_ragged", &encode_aligned_ragged, "texts"_a, "threads"_a,
             "Tokens of the texts, one row each: (ids, begins, ends, words, all int32, offsets int64).")
        .def("encode_model_inputs", &encode_model_inputs, "texts"_a, "pairs"_a, "form"_a, "truncation"_a,
             "max_length"_a, "threads"_a, "Rows with special tokens: (ids int32, type ids int32, offsets int64).")
        .def("split_words", &split_words, "text"_a, "The normalised words of a text.");

    py::class_<WordCounter>(module, "WordCounter", "Counts normalised words.")
        .def(py::init<const NormalizerOptions&>(), "options"_a)
        .def("add", &count_words, "texts"_a)
        .def("counts", [](const WordCounter& self) { return self.counts(); }, "The count of each word seen so far.");

    module.def(
        "normalize",
        [](const std::string& text, const NormalizerOptions& options) { return NormalizedText(text, options).bytes(); },
        "text"_a, "options"_a, "The text as words are looked for in it.");
    module.def("pad_rows", &pad_rows, "values"_a, "offsets"_a, "width"_a, "filler"_a,
               "Ragged rows as an int64 array of shape (rows, width).");
}
}  // namespace fastbert
