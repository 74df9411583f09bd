// The Python module fastbert._C. Conversion, checks and the GIL are handled in csrc/bindings, never in the core.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/registration.h"

namespace fastbert {
namespace {

// A static of a function: registrations of other files may be constructed before any static of this file.
std::vector<Registration>& registrations() {
    static std::vector<Registration> all;
    return all;
}

void bind_all(pybind11::module_& module) {
    std::vector<Registration>& all = registrations();
    std::ranges::sort(all, {}, &Registration::name);
    const auto twice = std::ranges::adjacent_find(all, {}, &Registration::name);
    if (twice != all.end()) throw std::logic_error("two bindings are named " + std::string(twice->name));
    for (const Registration& bindings : all)
        if (bindings.classes) bindings.classes(module);
    for (const Registration& bindings : all)
        if (bindings.functions) bindings.functions(module);
}

}  // namespace

Registration::Registration(std::string_view name, Bind functions, Bind classes)
    : name(name), functions(functions), classes(classes) {
    registrations().push_back(*this);
}

}  // namespace fastbert

PYBIND11_MODULE(_C, module) {
    module.doc() = "The C++ core of fastbert: tokenizer, masking collator and CPU kernels.";
    fastbert::bind_all(module);
}
