#include "cpu/runtime/cpu_capability.h"

#include <strings.h>

#include <array>
#include <cstdlib>
#include <stdexcept>

namespace fastbert {
namespace {

constexpr std::array<const char*, 4> kNames = {"portable", "avx2", "avx512", "amx"};

bool has_level(const CpuFeatures& has, Level level) {
    switch (level) {
        case Level::portable:
            return true;
        case Level::avx2:
            return has.avx2 && has.fma;
        case Level::avx512:
            return has_level(has, Level::avx2) && has.avx512f && has.avx512bw && has.avx512vl && has.avx512dq;
        case Level::amx:
            return has_level(has, Level::avx512) && has.avx512_bf16 && has.avx512_vnni && has.amx_tile &&
                   has.amx_bf16 && has.amx_int8;
    }
    return false;
}

// What is left of a processor's features at a level.
CpuFeatures limited(CpuFeatures has, Level level) {
    if (level < Level::amx) has.amx_tile = has.amx_bf16 = has.amx_int8 = false;
    if (level < Level::avx512) {
        has.avx512f = has.avx512bw = has.avx512vl = has.avx512dq = has.avx512vbmi = false;
        has.avx512_vbmi2 = has.avx512_vnni = has.avx512_bf16 = false;
    }
    if (level < Level::avx2) has.avx2 = has.fma = false;
    return has;
}

struct State {
    CpuFeatures processor = cpu_features();
    Level level = wanted();
    CpuFeatures usable = limited(processor, level);

    Level highest() const {
        Level found = Level::portable;
        for (Level candidate : {Level::avx2, Level::avx512, Level::amx})
            if (has_level(processor, candidate)) found = candidate;
        return found;
    }

    // What FASTBERT_CPU names; cpu_level.py refuses what it cannot name.
    Level wanted() const {
        const char* named = std::getenv("FASTBERT_CPU");
        for (std::size_t i = 0; named && i < kNames.size(); ++i) {
            const Level level = static_cast<Level>(i);
            if (strcasecmp(named, kNames[i]) == 0 && has_level(processor, level)) return level;
        }
        return highest();
    }

    void choose(Level chosen) {
        level = chosen;
        usable = limited(processor, chosen);
    }
};

State& state() {
    static State state;
    return state;
}

}  // namespace

Level level() { return state().level; }

const CpuFeatures& level_features() { return state().usable; }

std::string level_name(Level level) { return kNames[static_cast<std::size_t>(level)]; }

std::vector<std::string> available_levels() {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < kNames.size(); ++i)
        if (has_level(state().processor, static_cast<Level>(i))) names.emplace_back(kNames[i]);
    return names;
}

void force_level(const std::string& name) {
    if (name.empty()) return state().choose(state().highest());
    for (std::size_t i = 0; i < kNames.size(); ++i) {
        if (name != kNames[i]) continue;
        const Level wanted = static_cast<Level>(i);
        if (!has_level(state().processor, wanted)) throw std::invalid_argument("this processor does not have " + name);
        return state().choose(wanted);
    }
    throw std::invalid_argument("there is no level " + name);
}

void pretend_features(const std::vector<std::string>& names) {
    CpuFeatures pretended;
    for (const std::string& name : names) {
        bool known = false;
        for (const auto& [feature, member] : kCpuFeatureNames) {
            if (name == feature) pretended.*member = known = true;
        }
        if (!known) throw std::invalid_argument("there is no feature " + name);
    }
    state().processor = names.empty() ? cpu_features() : pretended;
    state().choose(state().highest());
}

}  // namespace fastbert
