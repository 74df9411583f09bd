// Bindings of csrc/collator: token corpora, epoch plans and packed batches as NumPy arrays.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#include "bindings/registration.h"
#include "collator/collate.h"
#include "collator/plan.h"
#include "collator/token_corpus.h"
#include "common/philox.h"

namespace py = pybind11;

namespace fastbert::collator_bindings {
namespace {

// No forcecast: an array that would lose information is rejected, not converted.
template <typename T>
using Array = py::array_t<T, py::array::c_style>;

template <typename T>
std::span<const T> view(const Array<T>& array, const char* name) {
    if (array.ndim() != 1) throw std::invalid_argument(std::string(name) + " must have one dimension");
    return {array.data(), static_cast<size_t>(array.size())};
}

template <typename T>
std::span<T> writable(Array<T>& array) {
    return {array.mutable_data(), static_cast<size_t>(array.size())};
}

template <typename T>
Array<T> to_array(const std::vector<T>& values) {
    return Array<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

TokenView token_view(const py::array& tokens) {
    const bool wide = py::isinstance<Array<uint32_t>>(tokens);
    if ((!wide && !py::isinstance<Array<uint16_t>>(tokens)) || tokens.ndim() != 1) {
        throw std::invalid_argument("tokens must be a contiguous array of uint16 or uint32 with one dimension");
    }
    return {tokens.data(), static_cast<int64_t>(tokens.size()), wide};
}

std::span<const DocumentRange> document_view(const Array<int64_t>& documents) {
    if (documents.ndim() != 2 || documents.shape(1) != 2) {
        throw std::invalid_argument("documents must have shape (documents, 2): first and last sentence");
    }
    static_assert(sizeof(DocumentRange) == 2 * sizeof(int64_t));
    return {reinterpret_cast<const DocumentRange*>(documents.data()), static_cast<size_t>(documents.shape(0))};
}

// A corpus and the arrays it views.
struct PyTokenCorpus {
    std::vector<py::object> owners;
    TokenCorpus corpus;

    static std::unique_ptr<PyTokenCorpus> make(const std::vector<std::pair<py::array, Array<int64_t>>>& shards) {
        std::vector<py::object> owners;
        std::vector<TokenShard> views;
        for (const auto& [tokens, sentence_offsets] : shards) {
            views.push_back({token_view(tokens), view(sentence_offsets, "sentence_offsets")});
            owners.push_back(tokens);
            owners.push_back(sentence_offsets);
        }
        return std::unique_ptr<PyTokenCorpus>(new PyTokenCorpus{std::move(owners), TokenCorpus(std::move(views))});
    }

    // A corpus whose tokens are in another place.
    static std::unique_ptr<PyTokenCorpus> make_planned(
        const std::vector<std::tuple<int64_t, Array<int64_t>, Array<uint8_t>>>& shards) {
        std::vector<py::object> owners;
        std::vector<TokenShard> views;
        for (const auto& [num_tokens, sentence_offsets, bits] : shards) {
            const TokenView tokens{nullptr, num_tokens, false};
            views.push_back({tokens, view(sentence_offsets, "sentence_offsets"), view(bits, "continuation_bits")});
            owners.push_back(sentence_offsets);
            owners.push_back(bits);
        }
        return std::unique_ptr<PyTokenCorpus>(new PyTokenCorpus{std::move(owners), TokenCorpus(std::move(views))});
    }

    static std::unique_ptr<PyTokenCorpus> make_runs(const Array<int64_t>& begins, const Array<int64_t>& lengths,
                                                    const py::array& tokens) {
        const TokenView all = token_view(tokens);
        const std::span<const int64_t> sizes = view(lengths, "lengths");
        std::vector<TokenRun> runs;
        int64_t used = 0;
        for (const int64_t begin : view(begins, "begins")) {
            const int64_t size = runs.size() < sizes.size() ? sizes[runs.size()] : -1;
            if (size < 0 || size > all.size - used) {
                throw std::invalid_argument("lengths must be as many as begins, and add up to the number of tokens");
            }
            const auto* data = static_cast<const uint8_t*>(all.data) + used * (all.wide ? 4 : 2);
            runs.push_back({begin, {data, size, all.wide}});
            used += size;
        }
        return std::unique_ptr<PyTokenCorpus>(new PyTokenCorpus{{tokens}, TokenCorpus(std::span<const TokenRun>(runs))});
    }
};

// A vocabulary's properties used by the collator.
struct PyVocabularyTable {
    std::vector<uint8_t> is_continuation;
    std::vector<int64_t> replacements;
    int64_t cls_id;
    int64_t sep_id;
    int64_t mask_id;

    PyVocabularyTable(const Array<bool>& continuation, const Array<int64_t>& allowed, int64_t cls, int64_t sep, int64_t mask)
        : cls_id(cls), sep_id(sep), mask_id(mask) {
        for (const bool flag : view(continuation, "is_continuation")) is_continuation.push_back(flag);
        for (const int64_t id : view(allowed, "replacements")) replacements.push_back(id);
        const auto size = static_cast<int64_t>(is_continuation.size());
        if (replacements.empty()) throw std::invalid_argument("replacements must hold at least one id");
        for (const int64_t id : replacements) check_id("replacements", id, size);
        check_id("cls_id", cls, size);
        check_id("sep_id", sep, size);
        check_id("mask_id", mask, size);
    }

    static void check_id(const char* name, int64_t id, int64_t size) {
        if (id < 0 || id >= size) {
            throw std::invalid_argument(std::string(name) + " " + std::to_string(id) + " is outside the vocabulary of " +
                                        std::to_string(size));
        }
    }
};

struct PyEpochPlan {
    RandomDomain domain;
    std::vector<PlannedSample> samples;
};

Objective parse_objective(const std::string& name) {
    if (name == "mlm") return Objective::mlm;
    if (name == "mlm+nsp") return Objective::mlm_next_sentence;
    if (name == "mlm+sop") return Objective::mlm_sentence_order;
    throw std::invalid_argument("objective must be mlm, mlm+nsp or mlm+sop, not " + name);
}

RandomDomain make_domain(uint64_t seed, int64_t epoch, bool validation) {
    if (epoch < 0 || static_cast<uint64_t>(epoch) >= MAX_EPOCHS) {
        throw std::invalid_argument("epoch must be from 0 to 2^32 - 1, not " + std::to_string(epoch));
    }
    return {seed, static_cast<uint32_t>(epoch), validation};
}

PyEpochPlan plan(const PyTokenCorpus& corpus, const Array<int64_t>& documents, const PyVocabularyTable& vocabulary,
                 const std::string& objective, int64_t budget, double short_probability, uint64_t seed, int64_t epoch,
                 bool validation, int64_t shuffle_window) {
    const PlanRecipe recipe{parse_objective(objective), budget, short_probability, vocabulary.is_continuation,
                            shuffle_window};
    const RandomDomain domain = make_domain(seed, epoch, validation);
    const std::span<const DocumentRange> ranges = document_view(documents);
    py::gil_scoped_release unlocked;
    return {domain, plan_epoch(corpus.corpus, ranges, recipe, domain)};
}

// The plan as columns, in visiting order: a_begin, a_length, b_begin, b_length, label.
py::tuple plan_columns(const PyEpochPlan& plan) {
    const auto size = static_cast<py::ssize_t>(plan.samples.size());
    Array<int64_t> columns[5] = {Array<int64_t>(size), Array<int64_t>(size), Array<int64_t>(size), Array<int64_t>(size),
                                 Array<int64_t>(size)};
    for (py::ssize_t i = 0; i < size; ++i) {
        const PlannedSample& sample = plan.samples[i];
        columns[0].mutable_at(i) = sample.a_begin;
        columns[1].mutable_at(i) = sample.a_length;
        columns[2].mutable_at(i) = sample.b_begin;
        columns[3].mutable_at(i) = sample.b_length;
        columns[4].mutable_at(i) = sample.label;
    }
    return py::make_tuple(columns[0], columns[1], columns[2], columns[3], columns[4]);
}

// The number of tokens of each sample, special tokens included, in visiting order.
Array<int32_t> plan_lengths(const PyEpochPlan& plan) {
    Array<int32_t> lengths(static_cast<py::ssize_t>(plan.samples.size()));
    const std::span<int32_t> out = writable(lengths);
    py::gil_scoped_release unlocked;
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int32_t>(length_with_specials(plan.samples[i]));
    return lengths;
}

MaskUnit parse_masking(const std::string& name) {
    if (name == "token") return MaskUnit::token;
    if (name == "whole-word") return MaskUnit::word;
    if (name == "span") return MaskUnit::span;
    throw std::invalid_argument("masking must be token, whole-word or span, not " + name);
}

// The runs of tokens that some samples hold: begins and lengths, A and B of each sample, of length 0 without a B.
py::tuple plan_ranges(const PyEpochPlan& plan, const Array<int64_t>& indices) {
    const std::span<const int64_t> rows = view(indices, "indices");
    count_tokens(plan.samples, rows);  // throws on an index past the plan
    Array<int64_t> begins(2 * indices.size()), lengths(2 * indices.size());
    const std::span<int64_t> begin = writable(begins), length = writable(lengths);
    for (size_t i = 0; i < rows.size(); ++i) {
        const PlannedSample& sample = plan.samples[rows[i]];
        begin[2 * i] = sample.a_begin;
        length[2 * i] = sample.a_length;
        begin[2 * i + 1] = sample.b_begin;
        length[2 * i + 1] = sample.b_length;
    }
    return py::make_tuple(begins, lengths);
}

Replacement make_replacement(const std::array<double, 3>& shares) {
    double sum = 0;
    for (const double share : shares) {
        if (!(share >= 0 && share <= 1)) {
            throw std::invalid_argument("mask_replacement must hold shares from 0 to 1, not " + std::to_string(share));
        }
        sum += share;
    }
    if (!(std::abs(sum - 1) <= 1e-6)) {
        throw std::invalid_argument("the shares of mask_replacement must add up to 1, not " + std::to_string(sum));
    }
    return {shares[0], shares[1], shares[2]};
}

py::dict collate_batch(const PyEpochPlan& plan, const PyTokenCorpus& corpus, const Array<int64_t>& indices,
                       const PyVocabularyTable& vocabulary, double mask_probability, bool exact_count, const std::string& masking,
                       const std::array<double, 3>& mask_replacement, std::optional<int64_t> dropout_epoch) {
    if (!(mask_probability >= 0 && mask_probability <= 1)) {
        throw std::invalid_argument("mask_prob must be from 0 to 1, not " + std::to_string(mask_probability));
    }
    const MaskUnit unit = parse_masking(masking);
    if (unit == MaskUnit::span && !exact_count) throw std::invalid_argument("spans have an exact count only");
    const RandomDomain dropout =
        make_domain(plan.domain.seed, dropout_epoch.value_or(plan.domain.epoch), plan.domain.validation);
    const std::span<const int64_t> rows = view(indices, "indices");
    const int64_t tokens = count_tokens(plan.samples, rows);
    if (tokens > INT32_MAX) {
        throw std::invalid_argument("a batch of " + std::to_string(tokens) + " tokens is past 2^31 - 1; make it smaller");
    }
    const auto size = static_cast<py::ssize_t>(rows.size());
    Array<int64_t> input_ids(tokens), token_type_ids(tokens), position_ids(tokens), sequence_ids(tokens);
    Array<int32_t> cu_seqlens(size + 1);
    Array<int64_t> dropout_key(size), labels(size);
    const BatchView batch{writable(input_ids),  writable(token_type_ids), writable(position_ids), writable(sequence_ids),
                          writable(cu_seqlens), writable(dropout_key),    writable(labels)};
    const CollateRecipe recipe{{mask_probability, exact_count, unit, make_replacement(mask_replacement), vocabulary.mask_id,
                                vocabulary.replacements, vocabulary.is_continuation},
                               vocabulary.cls_id,
                               vocabulary.sep_id};
    MaskedTokens masked;
    {
        py::gil_scoped_release unlocked;
        masked = collate(corpus.corpus, plan.samples, rows, recipe, plan.domain, dropout, batch);
    }
    py::dict result;
    result["input_ids"] = input_ids;
    result["token_type_ids"] = token_type_ids;
    result["position_ids"] = position_ids;
    result["sequence_ids"] = sequence_ids;
    result["cu_seqlens"] = cu_seqlens;
    result["dropout_key"] = dropout_key;
    result["masked_positions"] = to_array(masked.positions);
    result["labels"] = to_array(masked.labels);
    result["next_sentence_label"] = labels;
    return result;
}

Array<int64_t> count_documents(const PyTokenCorpus& corpus, const Array<int64_t>& documents, int64_t vocab_size) {
    if (vocab_size < 1) throw std::invalid_argument("vocab_size must be positive, not " + std::to_string(vocab_size));
    const std::span<const DocumentRange> ranges = document_view(documents);
    std::vector<int64_t> counts(static_cast<size_t>(vocab_size));
    {
        py::gil_scoped_release unlocked;
        corpus.corpus.count(ranges, counts);
    }
    return to_array(counts);
}

Array<uint64_t> split_ranks(int64_t documents, uint64_t seed) {
    if (documents < 0) throw std::invalid_argument("documents must not be negative");
    std::vector<uint64_t> ranks(static_cast<size_t>(documents));
    for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = RandomStream({seed, 0, false}, i, Purpose::split).word64();
    return to_array(ranks);
}

// `size` independent random numbers of a purpose and source, uint64.
Array<uint64_t> random_numbers(int64_t size, uint64_t seed, int64_t epoch, const std::string& purpose, uint64_t source) {
    if (size < 0) throw std::invalid_argument("size must not be negative");
    if (source >= MAX_SAMPLES) throw std::invalid_argument("source must be below 2^48");
    if (purpose != "revisit" && purpose != "mixture") throw std::invalid_argument("purpose must be revisit or mixture");
    const RandomDomain domain = make_domain(seed, epoch, false);
    Array<uint64_t> numbers(size);
    const std::span<uint64_t> out = writable(numbers);
    py::gil_scoped_release unlocked;
    RandomStream random(domain, source, purpose == "revisit" ? Purpose::revisit : Purpose::mixture);
    for (uint64_t& number : out) number = random.word64();
    return numbers;
}

void bind_classes(py::module_& module) {
    py::class_<PyTokenCorpus>(module, "TokenCorpus")
        .def(py::init(&PyTokenCorpus::make), py::arg("shards"))
        .def_static("planned", &PyTokenCorpus::make_planned, py::arg("shards"))
        .def_static("runs", &PyTokenCorpus::make_runs, py::arg("begins"), py::arg("lengths"), py::arg("tokens"))
        .def_property_readonly("num_tokens", [](const PyTokenCorpus& self) { return self.corpus.num_tokens(); })
        .def_property_readonly("num_sentences", [](const PyTokenCorpus& self) { return self.corpus.num_sentences(); })
        .def("count", &count_documents, py::arg("documents"), py::arg("vocab_size"));

    py::class_<PyVocabularyTable>(module, "VocabularyTable")
        .def(py::init<const Array<bool>&, const Array<int64_t>&, int64_t, int64_t, int64_t>(), py::kw_only(),
             py::arg("is_continuation"), py::arg("replacements"), py::arg("cls_id"), py::arg("sep_id"), py::arg("mask_id"));

    py::class_<PyEpochPlan>(module, "EpochPlan")
        .def(py::init(&plan), py::arg("corpus"), py::arg("documents"), py::arg("vocabulary"), py::kw_only(),
             py::arg("objective"), py::arg("budget"), py::arg("short_probability"), py::arg("seed"), py::arg("epoch"),
             py::arg("validation"), py::arg("shuffle_window") = 0)
        .def("__len__", [](const PyEpochPlan& self) { return self.samples.size(); })
        .def("columns", &plan_columns)
        .def("lengths", &plan_lengths)
        .def("ranges", &plan_ranges, py::arg("indices"))
        .def("collate", &collate_batch, py::arg("corpus"), py::arg("indices"), py::arg("vocabulary"), py::kw_only(),
             py::arg("mask_probability"), py::arg("exact_count"), py::arg("masking"),
             py::arg("mask_replacement") = std::array<double, 3>{0.8, 0.1, 0.1}, py::arg("dropout_epoch") = py::none());
}

void bind_functions(py::module_& module) {
    module.def("split_ranks", &split_ranks, py::arg("documents"), py::arg("seed"));
    module.def("random_numbers", &random_numbers, py::arg("size"), py::kw_only(), py::arg("seed"), py::arg("epoch"),
               py::arg("purpose"), py::arg("source") = 0);
    module.def("find_bad_offset",
               [](const Array<int64_t>& offsets, int64_t total) { return find_bad_offset(view(offsets, "offsets"), total); },
               py::arg("offsets"), py::arg("total"));
    module.def(
        "find_bad_token",
        [](const py::array& tokens, uint32_t vocab_size) {
            const TokenView tokens_view = token_view(tokens);
            py::gil_scoped_release unlocked;
            return find_bad_token(tokens_view, vocab_size);
        },
        py::arg("tokens"), py::arg("vocab_size"));
    module.def("philox4x32", &philox4x32, py::arg("counter"), py::arg("key"));
}

const Registration registration{"collator", &bind_functions, &bind_classes};

}  // namespace
}  // namespace fastbert::collator_bindings
