// Python's view of csrc/collator.
#include "bindings.h"

namespace fastbert {
void bind_collator(pybind11::module_&) {}
}  // namespace fastbert
