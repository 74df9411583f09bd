// Bindings of csrc/tokenizer: strings are borrowed, not copied, and arrays are handed over, not converted.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/registration.h"
#include "bindings/texts.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/batch.h"
#include "tokenizer/rows.h"

namespace py = pybind11;
using namespace py::literals;

namespace fastbert::tokenizer_bindings {
namespace {

using namespace tokenizer;

template <class T>
using IntArray = py::array_t<T, py::array::c_style | py::array::forcecast>;

template <class T>
std::span<const T> span_of(const IntArray<T>& array) {
    return {array.data(), static_cast<std::size_t>(array.size())};
}

py::tuple to_tuple(Sequences&& rows) {
    return py::make_tuple(to_array(std::move(rows.tokens.ids)), to_array(std::move(rows.offsets)));
}

py::tuple encode_wrapped(const Tokenizer& self, py::handle texts, std::optional<std::size_t> limit,
                         const std::vector<std::int32_t>& before, const std::vector<std::int32_t>& behind,
                         unsigned threads) {
    const Texts inputs(texts, "texts");
    Sequences rows;
    {
        py::gil_scoped_release release;
        rows = encode_batch(self, inputs.views(), limit.value_or(Tokenizer::kNoLimit), {before, behind}, threads);
    }
    return to_tuple(std::move(rows));
}

py::tuple encode_ragged(const Tokenizer& self, py::handle texts, std::optional<std::size_t> limit, unsigned threads) {
    return encode_wrapped(self, texts, limit, {}, {}, threads);
}

py::tuple encode_aligned_ragged(const Tokenizer& self, py::handle texts, unsigned threads) {
    const Texts inputs(texts, "texts");
    Sequences rows;
    {
        py::gil_scoped_release release;
        rows = encode_batch_aligned(self, inputs.views(), Tokenizer::kNoLimit, threads);
    }
    TokenColumns& tokens = rows.tokens;
    return py::make_tuple(to_array(std::move(tokens.ids)), to_array(std::move(tokens.begins)),
                          to_array(std::move(tokens.ends)), to_array(std::move(tokens.words)),
                          to_array(std::move(rows.offsets)));
}

[[noreturn]] void raise(const RowError& error, const TruncationOptions& truncation) {
    const std::string row = "row " + std::to_string(error.sample);
    const std::string length = "max_length=" + std::to_string(truncation.max_length);
    switch (error.reason) {
        case RowError::Reason::kNoSecond:
            throw py::value_error(row +
                                  " is not a pair, so truncation='only_second' cannot shorten it; use 'longest_first'");
        case RowError::Reason::kTooShort:
            throw py::value_error(row + " cannot be cut to " + length + " by shortening one sequence alone; use"
                                  " truncation='longest_first' or a larger max_length");
        case RowError::Reason::kStride:
            throw py::value_error("stride=" + std::to_string(truncation.stride) + " must be below the " +
                                  std::to_string(error.num_tokens) + " tokens that " + row + " keeps of a sequence at " +
                                  length + "; use a smaller stride or a larger max_length");
        default:
            throw py::value_error("the overflow of " + row + " makes more than 10 million rows or 2^31 tokens; use a smaller"
                                  " stride, a larger max_length or return_overflowing_tokens=False");
    }
}

// Texts, or texts pre-split into words by the caller: `bounds` then groups the words into texts.
Sequences encode_texts(const Tokenizer& tokenizer, const Texts& texts, const std::optional<IntArray<std::int64_t>>& bounds,
                       std::size_t limit, bool aligned, unsigned threads) {
    limit = bounds ? Tokenizer::kNoLimit : limit;
    Sequences result = aligned ? encode_batch_aligned(tokenizer, texts.views(), limit, threads)
                               : encode_batch(tokenizer, texts.views(), limit, {}, threads);
    if (bounds) join_words(result, span_of(*bounds));
    return result;
}

void check_bounds(const std::optional<IntArray<std::int64_t>>& bounds, std::size_t words) {
    if (!bounds) return;
    const std::span<const std::int64_t> values = span_of(*bounds);
    if (values.empty() || values.front() != 0 || values.back() != static_cast<std::int64_t>(words) ||
        !std::is_sorted(values.begin(), values.end())) {
        throw py::value_error("bounds must rise from 0 to the number of words");
    }
}

std::unique_ptr<Rows> encode_rows(const Tokenizer& self, py::handle texts, const py::object& pairs,
                                  const std::optional<IntArray<std::int64_t>>& text_bounds,
                                  const std::optional<IntArray<std::int64_t>>& pair_bounds,
                                  const Template& special_tokens, const TruncationOptions& truncation, bool aligned,
                                  unsigned threads) {
    const Texts first(texts, "text");
    std::optional<Texts> second;
    if (!pairs.is_none()) second.emplace(pairs, "text_pair");
    check_bounds(text_bounds, first.views().size());
    if (second) check_bounds(pair_bounds, second->views().size());
    std::unique_ptr<Rows> rows;
    std::optional<RowError> error;
    {
        py::gil_scoped_release release;
        // A single text truncated on the right need not be read to its end; for a pair, both lengths matter.
        const bool truncates = truncation.strategy != TruncationStrategy::kNone;
        const bool stops_early = truncates && !second && !truncation.left && !truncation.overflow;
        // One token more than fits, to tell "too long" from "just fits".
        const std::int64_t room = truncation.max_length - special_tokens.added(false);
        const auto most = static_cast<std::size_t>(std::max<std::int64_t>(room, 0)) + 1;
        const std::size_t limit = stops_early ? most : Tokenizer::kNoLimit;
        Sequences a = encode_texts(self, first, text_bounds, limit, aligned, threads);
        std::optional<Sequences> b;
        if (second) b = encode_texts(self, *second, pair_bounds, Tokenizer::kNoLimit, aligned, threads);
        rows = std::make_unique<Rows>(std::move(a), std::move(b), special_tokens);
        error = rows->plan(truncation);
    }
    if (error) raise(*error, truncation);
    return rows;
}

// A column of all rows, concatenated.
py::array_t<std::int32_t> ragged_column(const Rows& self, Column column) {
    Buffer<std::int32_t> values;
    {
        py::gil_scoped_release release;
        values.resize(static_cast<std::size_t>(self.offsets()[self.count()]));
        self.write(column, values.data());
    }
    return to_array(std::move(values));
}

// A column of all rows as (rows, width).
py::array_t<std::int64_t> padded_column(const Rows& self, Column column, std::int64_t width, bool left,
                                        std::int64_t filler, unsigned threads) {
    for (std::size_t i = 0; i < self.count(); ++i) {
        if (self.offsets()[i + 1] - self.offsets()[i] > width) throw py::value_error("a row is longer than the width");
    }
    // Far beyond any memory, but small enough for the sizes below not to overflow.
    constexpr std::int64_t kMostValues = std::int64_t{1} << 44;
    if (width < 0 || (self.count() > 0 && width > kMostValues / static_cast<std::int64_t>(self.count()))) {
        throw py::value_error("padding " + std::to_string(self.count()) + " rows to " + std::to_string(width) +
                              " tokens takes more memory than there is; use a smaller max_length or pad_to_multiple_of");
    }
    std::unique_ptr<Zeros<std::int64_t>> values;
    {
        py::gil_scoped_release release;
        values = std::make_unique<Zeros<std::int64_t>>(self.count() * static_cast<std::size_t>(width));
        self.write_padded(column, width, left, filler, values->data(), threads);
    }
    std::int64_t* const data = values->data();
    py::capsule owner(values.get(), [](void* pointer) { delete static_cast<Zeros<std::int64_t>*>(pointer); });
    (void)values.release();
    return py::array_t<std::int64_t>({static_cast<py::ssize_t>(self.count()), static_cast<py::ssize_t>(width)}, data, owner);
}

std::array<std::int64_t, 2> starts(const Rows& self, std::size_t row) {
    if (row >= self.count()) throw py::index_error("there is no such row");
    return self.starts(row);
}

py::array_t<std::int64_t> samples(const Rows& self) {
    py::array_t<std::int64_t> result(static_cast<py::ssize_t>(self.count()));
    for (std::size_t i = 0; i < self.count(); ++i) result.mutable_at(i) = self.sample(i);
    return result;
}

// An item of a template: a special token as (id, type), a sequence as (-1, type) or (-2, type).
Template make_template(const std::vector<std::pair<std::int32_t, std::int32_t>>& single,
                       const std::vector<std::pair<std::int32_t, std::int32_t>>& pair) {
    using Kind = TemplateItem::Kind;
    const auto items = [](const auto& values) {
        std::vector<TemplateItem> result;
        for (const auto& [id, type] : values) {
            result.push_back({id >= 0 ? Kind::kSpecial : id == -1 ? Kind::kFirst : Kind::kSecond, id, type});
        }
        return result;
    };
    const Template result{items(single), items(pair)};
    const auto count = [](const std::vector<TemplateItem>& among, Kind kind) {
        return std::count_if(among.begin(), among.end(), [kind](const TemplateItem& item) { return item.kind == kind; });
    };
    if (count(result.single, Kind::kFirst) != 1 || count(result.single, Kind::kSecond) != 0 ||
        count(result.pair, Kind::kFirst) != 1 || count(result.pair, Kind::kSecond) != 1) {
        throw py::value_error("a template must hold each of its sequences once");
    }
    return result;
}

AddedToken make_added_token(std::string content, std::int32_t id, bool special, bool lstrip, bool rstrip,
                            bool single_word, bool normalized) {
    if (id < 0) throw py::value_error("the id of an added token must not be negative");
    if (content.empty()) throw py::value_error("an added token must not be empty");
    return {std::move(content), id, special, lstrip, rstrip, single_word, normalized};
}

void bind_classes(py::module_& module) {
    py::enum_<TruncationStrategy>(module, "TruncationStrategy", "Strategies of truncation to a maximum length.")
        .value("NONE", TruncationStrategy::kNone)
        .value("LONGEST_FIRST", TruncationStrategy::kLongestFirst)
        .value("ONLY_FIRST", TruncationStrategy::kOnlyFirst)
        .value("ONLY_SECOND", TruncationStrategy::kOnlySecond);

    py::class_<Template>(module, "Template", "The special tokens around sequences, and the types of both.")
        .def(py::init(&make_template), "single"_a, "pair"_a);

    py::class_<TruncationOptions>(module, "TruncationOptions", "Settings of truncation to a maximum length.")
        .def(py::init<TruncationStrategy, std::int64_t, std::int64_t, bool, bool>(), "strategy"_a, "max_length"_a,
             "stride"_a, "left"_a, "overflow"_a);

    py::enum_<Column>(module, "Column", "The columns of a row's tokens.")
        .value("IDS", Column::kIds)
        .value("TYPES", Column::kTypes)
        .value("SPECIAL_MASK", Column::kSpecialMask)
        .value("ONES", Column::kOnes)
        .value("BEGINS", Column::kBegins)
        .value("ENDS", Column::kEnds)
        .value("WORDS", Column::kWords)
        .value("SEQUENCES", Column::kSequences);

    py::class_<Rows>(module, "Rows", "Model inputs whose columns are written on request.")
        .def("__len__", &Rows::count)
        .def_property_readonly("longest_main", &Rows::longest_main)
        .def_property_readonly("pairs", &Rows::pairs)
        .def("offsets", [](const Rows& self) {
            const auto size = static_cast<py::ssize_t>(self.offsets().size());
            return py::array_t<std::int64_t>(size, self.offsets().data());
        }, "int64 (rows + 1,): offset of each row in a column.")
        .def("samples", &samples, "int64 (rows,): index of each row's text.")
        .def("starts", &starts, "row"_a, "The indices of a row's first tokens among all those of its two texts.")
        .def("column", &ragged_column, "column"_a, "int32: the concatenated rows; -1 for no word and no sequence.")
        .def("padded", &padded_column, "column"_a, "width"_a, "left"_a, "filler"_a, "threads"_a, "int64 (rows, width).");

    py::class_<AddedToken>(module, "AddedToken", "A token recognised before text is split into words.")
        .def(py::init(&make_added_token), "content"_a, "id"_a, "special"_a, "lstrip"_a, "rstrip"_a, "single_word"_a,
             "normalized"_a);

    py::class_<Tokenizer>(module, "Tokenizer", "A tokenizer of any kind; immutable, safe to share between threads.")
        .def("encode_ragged", &encode_ragged, "texts"_a, "limit"_a, "threads"_a,
             "Return the ids of the texts, one row per text: (ids int32, offsets int64).")
        .def("encode_aligned_ragged", &encode_aligned_ragged, "texts"_a, "threads"_a,
             "Return the tokens of the texts, one row per text: (ids, begins, ends, words, all int32, offsets int64).")
        .def("encode_wrapped", &encode_wrapped, "texts"_a, "limit"_a, "before"_a, "behind"_a, "threads"_a,
             "Return the ids of the texts, each between others that count towards the limit: (ids int32, offsets int64).")
        .def("encode_rows", &encode_rows, "texts"_a, "pairs"_a, "text_bounds"_a, "pair_bounds"_a, "template"_a,
             "truncation"_a, "aligned"_a, "threads"_a, "Return rows of the texts or pairs, with special tokens.")
        .def(
            "added_strings",
            [](const Tokenizer& self, const py::str& text) {
                const Texts inputs(py::make_tuple(text), "texts");
                return self.added_strings(inputs.views()[0]);
            },
            "text"_a, "Return the added tokens as spelled in a text: (index among its tokens, string).");
}

const Registration registration{"tokenizer", nullptr, &bind_classes};

}  // namespace
}  // namespace fastbert::tokenizer_bindings
