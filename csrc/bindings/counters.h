// The Python interface of what counts the words of a corpus.
#pragma once
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string_view>

#include "bindings/texts.h"

namespace fastbert {

// Add `add` and `counts` to a counter's class.
template <class Counter>
void bind_counting(pybind11::class_<Counter>& counter) {
    counter
        .def(
            "add",
            [](Counter& self, pybind11::handle texts) {
                const Texts inputs(texts, "texts");
                pybind11::gil_scoped_release release;
                for (const std::string_view text : inputs.views()) self.add(text);
            },
            pybind11::arg("texts"))
        .def("counts", [](const Counter& self) { return self.counts(); }, "Return the count of each word so far.");
}

}  // namespace fastbert
