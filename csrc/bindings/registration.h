// Registration of bindings. A file of csrc/bindings adds itself to the module by one static Registration, so that a new
// operation edits no other file; only files of csrc/bindings include Python. Several files are compiled as one translation
// unit, so that what is in a file belongs to a namespace of its own, as `fastbert::gemm_bindings` for gemm.cpp.
#pragma once
#include <pybind11/pybind11.h>

#include <string_view>

namespace fastbert {

class Registration {
public:
    using Bind = void (*)(pybind11::module_& module);

    // `name`: that of the file, unique. Files are bound in the order of their names, the classes of all files before
    // the functions of any, since the docstring of a function names the classes of its arguments.
    Registration(std::string_view name, Bind functions, Bind classes = nullptr);

    std::string_view name;
    Bind functions, classes;
};

}  // namespace fastbert
