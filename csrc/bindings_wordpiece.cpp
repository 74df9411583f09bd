// Python's view of csrc/wordpiece.
#include "bindings.h"

namespace fastbert {
void bind_wordpiece(pybind11::module_&) {}
}  // namespace fastbert
