// The loops of csrc/cpu/peak for a test that loads them without Python: the shipped extension lacks them.
#include <sstream>
#include <string>
#include <vector>

#include "cpu/peak/peak.h"
#include "cpu/runtime/cpu_capability.h"

// Operations per second of one thread, with these features (separated by spaces) at a CPU capability.
extern "C" double peak_at(const char* features, const char* capability, const char* element, double seconds) {
    using fastbert::Element;
    std::istringstream words{features};
    std::vector<std::string> names;
    for (std::string name; words >> name;) names.push_back(name);
    fastbert::override_features(names);
    fastbert::force_capability(capability);
    const std::string kind{element};
    return fastbert::cpu_peak(kind == "bf16" ? Element::bf16 : kind == "int8" ? Element::int8 : Element::fp32, 1, seconds);
}
