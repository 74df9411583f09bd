#include "cpu/runtime/cpu_capability.h"

#include <strings.h>

#include <array>
#include <cstdlib>
#include <stdexcept>

namespace fastbert {
namespace {

constexpr std::array<const char*, 4> kNames = {"portable", "avx2", "avx512", "amx"};

bool has_capability(const CpuFeatures& features, CpuCapability capability) {
    switch (capability) {
        case CpuCapability::portable:
            return true;
        case CpuCapability::avx2:
            return features.avx2 && features.fma;
        case CpuCapability::avx512:
            return has_capability(features, CpuCapability::avx2) && features.avx512f && features.avx512bw &&
                   features.avx512vl && features.avx512dq;
        case CpuCapability::amx:
            return has_capability(features, CpuCapability::avx512) && features.avx512_bf16 && features.avx512_vnni &&
                   features.amx_tile && features.amx_bf16 && features.amx_int8;
    }
    return false;
}

// The features usable at a CPU capability.
CpuFeatures features_at(CpuFeatures features, CpuCapability capability) {
    if (capability < CpuCapability::amx) features.amx_tile = features.amx_bf16 = features.amx_int8 = false;
    if (capability < CpuCapability::avx512) {
        features.avx512f = features.avx512bw = features.avx512vl = features.avx512dq = features.avx512vbmi = false;
        features.avx512_vbmi2 = features.avx512_vnni = features.avx512_bf16 = false;
    }
    if (capability < CpuCapability::avx2) features.avx2 = features.fma = features.f16c = false;
    return features;
}

struct State {
    CpuFeatures processor = cpu_features();
    CpuCapability capability = requested();
    CpuFeatures usable = features_at(processor, capability);

    CpuCapability highest() const {
        CpuCapability best = CpuCapability::portable;
        for (CpuCapability candidate : {CpuCapability::avx2, CpuCapability::avx512, CpuCapability::amx})
            if (has_capability(processor, candidate)) best = candidate;
        return best;
    }

    // The CPU capability that FASTBERT_CPU names; Python rejects invalid names.
    CpuCapability requested() const {
        const char* name = std::getenv("FASTBERT_CPU");
        for (std::size_t i = 0; name && i < kNames.size(); ++i) {
            const CpuCapability capability = static_cast<CpuCapability>(i);
            if (strcasecmp(name, kNames[i]) == 0 && has_capability(processor, capability)) return capability;
        }
        return highest();
    }

    void select(CpuCapability selected) {
        capability = selected;
        usable = features_at(processor, selected);
    }
};

State& state() {
    static State state;
    return state;
}

}  // namespace

CpuCapability cpu_capability() { return state().capability; }

const CpuFeatures& capability_features() { return state().usable; }

std::string capability_name(CpuCapability capability) { return kNames[static_cast<std::size_t>(capability)]; }

std::vector<std::string> available_capabilities() {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < kNames.size(); ++i)
        if (has_capability(state().processor, static_cast<CpuCapability>(i))) names.emplace_back(kNames[i]);
    return names;
}

void force_capability(const std::string& name) {
    if (name.empty()) return state().select(state().highest());
    for (std::size_t i = 0; i < kNames.size(); ++i) {
        if (name != kNames[i]) continue;
        const CpuCapability requested = static_cast<CpuCapability>(i);
        if (!has_capability(state().processor, requested))
            throw std::invalid_argument("this processor does not have " + name);
        return state().select(requested);
    }
    throw std::invalid_argument("there is no CPU capability " + name);
}

void override_features(const std::vector<std::string>& names) {
    CpuFeatures features;
    for (const std::string& name : names) {
        bool known = false;
        for (const auto& [feature, member] : kCpuFeatureNames) {
            if (name == feature) features.*member = known = true;
        }
        if (!known) throw std::invalid_argument("there is no feature " + name);
    }
    state().processor = names.empty() ? cpu_features() : features;
    state().select(state().highest());
}

}  // namespace fastbert
