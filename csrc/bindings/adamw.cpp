// Bindings of csrc/cpu/adamw.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/registration.h"
#include "bindings/tensors.h"
#include "cpu/adamw/adamw.h"

namespace py = pybind11;

namespace fastbert::adamw_bindings {
namespace {

// Weight or fp32 master, gradient, exp_avg, exp_avg_sq, step; rows, columns; index into the settings.
using Parameter = std::tuple<Address, Address, Address, Address, Address, std::size_t, std::size_t, std::size_t>;
using Settings = std::tuple<double, double, double, double, double>;
using Copy = std::tuple<PrepackedWeight*, bool, std::size_t, std::size_t>;
using Part = std::tuple<PrepackedWeight*, bool, std::size_t, Matrix, std::size_t>;

// Check here what `repack` rejects: once the GIL is released and other threads run, it could only throw.
void require_fits(const PrepackedWeight* packed, bool transposed, std::size_t offset, std::size_t rows,
                  std::size_t columns) {
    require(packed && packed->element != Element::int8, "a copy must be a PrepackedWeight of bf16 or fp32");
    const std::size_t width = transposed ? packed->columns : packed->depth;
    const std::size_t room = transposed ? packed->depth : packed->source_rows();
    require(!transposed || !packed->gated_width, "a gated weight is not transposed");
    require(columns == width && rows <= room && offset <= room - rows, "a weight does not fit into its copy");
}

// `rates` are factors of the learning rates, `narrow` the addresses of bf16 parameters, 0 for fp32 ones; either may be
// empty.
std::vector<AdamParameter> checked(const std::vector<Parameter>& parameters, const std::vector<Settings>& settings,
                                   const std::vector<double>& rates, const std::vector<Address>& narrow) {
    require(rates.empty() || rates.size() == parameters.size(), "there must be one rate per parameter");
    require(narrow.empty() || narrow.size() == parameters.size(), "there must be one bf16 address per parameter");
    std::vector<AdamParameter> adam_parameters;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto& [weight, gradient, exp_avg, exp_avg_sq, steps, rows, columns, group] = parameters[i];
        require(group < settings.size(), "a parameter has no settings");
        const bool empty = rows == 0 || columns == 0;
        require(steps && (empty || (weight && gradient && exp_avg && exp_avg_sq)), "a parameter is a null pointer");
        const auto [lr, beta1, beta2, eps, weight_decay] = settings[group];
        adam_parameters.push_back({pointer<float>(weight),
                                   pointer<void>(gradient),
                                   pointer<float>(exp_avg),
                                   pointer<float>(exp_avg_sq),
                                   pointer<float>(steps),
                                   rows,
                                   columns,
                                   {rates.empty() ? lr : lr * rates[i], beta1, beta2, eps, weight_decay},
                                   narrow.empty() ? nullptr : pointer<BFloat16>(narrow[i])});
    }
    return adam_parameters;
}

std::vector<std::pair<double, double>> sums(const std::vector<Parameter>& parameters,
                                            const std::vector<Settings>& settings, float grad_scale,
                                            const std::string& rule, const std::vector<Address>& narrow) {
    require(rule == "stableadamw" || rule == "lamb", "rule must be stableadamw or lamb");
    const std::vector<AdamParameter> adam_parameters = checked(parameters, settings, {}, narrow);
    std::vector<std::pair<double, double>> pairs;
    py::gil_scoped_release release;
    const AdamCall call{adam_parameters, {}, grad_scale, false};
    for (const auto& [first, second] : adam_sums(call, rule == "lamb" ? AdamRule::lamb : AdamRule::stable))
        pairs.emplace_back(first, second);
    return pairs;
}

bool step(const std::vector<Parameter>& parameters, const std::vector<Settings>& settings,
          const std::vector<Copy>& copies, float grad_scale, bool zero_grad, const std::vector<double>& rates,
          const std::vector<Address>& narrow) {
    const std::vector<AdamParameter> adam_parameters = checked(parameters, settings, rates, narrow);
    std::vector<AdamCopy> adam_copies;
    for (const auto& [packed, transposed, parameter, offset] : copies) {
        require(parameter < adam_parameters.size(), "a copy has no parameter");
        require_fits(packed, transposed, offset, adam_parameters[parameter].rows, adam_parameters[parameter].columns);
        adam_copies.push_back({packed, transposed, parameter, offset});
    }
    const AdamCall call{adam_parameters, adam_copies, grad_scale, zero_grad};
    py::gil_scoped_release release;
    if (overlaps(call)) return false;
    adamw(call);
    return true;
}

std::tuple<double, std::optional<std::pair<std::size_t, std::size_t>>> squares(
    const std::vector<std::pair<Address, std::size_t>>& tensors, const std::vector<bool>& narrow) {
    require(narrow.empty() || narrow.size() == tensors.size(), "there must be one flag per tensor");
    std::vector<FloatSpan> spans;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const auto& [address, size] = tensors[i];
        require(address || !size, "a tensor is a null pointer");
        const bool is_narrow = !narrow.empty() && narrow[i];
        spans.push_back({pointer<const void>(address), size, is_narrow ? Dtype::bf16 : Dtype::fp32});
    }
    SquaresResult result;
    {
        py::gil_scoped_release release;
        result = sum_of_squares(spans);
    }
    if (!result.non_finite) return {result.sum, std::nullopt};
    return {result.sum, std::pair{result.non_finite->tensor, result.non_finite->element}};
}

void call_repack_all(const std::vector<Part>& parts) {
    std::vector<CopyPart> checked;
    for (const auto& [packed, transposed, offset, matrix, rows] : parts) {
        const auto& [address, dtype, stride] = matrix;
        const std::size_t columns = packed ? (transposed ? packed->columns : packed->depth) : 0;
        require_fits(packed, transposed, offset, rows, columns);
        require(address || !rows || !columns, "a weight is a null pointer");
        checked.push_back(
            {packed, transposed, offset, pointer<const void>(address), dtype_of(dtype), rows, stride});
    }
    py::gil_scoped_release release;
    repack_all(checked);
}

const Registration registration{"adamw", [](py::module_& module) {
    module.def("adamw", &step, py::arg("parameters"), py::arg("settings"), py::arg("copies"), py::arg("grad_scale"),
               py::arg("zero_grad"), py::arg("rates") = std::vector<double>(),
               py::arg("narrow") = std::vector<Address>(),
               "Run one step of AdamW; return False, with nothing written, if tensors share memory.");
    module.def("adam_sums", &sums, py::arg("parameters"), py::arg("settings"), py::arg("grad_scale"), py::arg("rule"),
               py::arg("narrow") = std::vector<Address>());
    module.def("sum_of_squares", &squares, py::arg("tensors"), py::arg("narrow") = std::vector<bool>());
    module.def("repack_all", &call_repack_all, py::arg("parts"));
}};

}  // namespace
}  // namespace fastbert::adamw_bindings
