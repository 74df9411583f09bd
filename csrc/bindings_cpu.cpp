// Python's view of csrc/cpu.
#include "bindings.h"

namespace fastbert {
void bind_cpu(pybind11::module_&) {}
}  // namespace fastbert
