// UTF-8 views of Python strings.
#pragma once
#include <pybind11/pybind11.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fastbert {

namespace py = pybind11;

// Views of strings. Holds references to them, independent of other threads' changes to a list, so that the
// views stay valid without the GIL. Strings are scattered in memory, so each is prefetched and read once.
class Texts {
public:
    Texts(py::handle texts, const char* name) {
        if (PyUnicode_Check(texts.ptr()) || PyBytes_Check(texts.ptr())) {
            throw py::type_error(std::string(name) + " must be a sequence of strings, not " + type_name(texts));
        }
        const std::string message = std::string(name) + " must be a sequence of strings, not " + type_name(texts);
        const auto sequence = py::reinterpret_steal<py::object>(PySequence_Fast(texts.ptr(), message.c_str()));
        if (!sequence) throw py::error_already_set();
        PyObject** const items = PySequence_Fast_ITEMS(sequence.ptr());
        const auto size = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(sequence.ptr()));
        views_.reserve(size);
        references_.objects.reserve(size);
        // Nothing in this loop runs Python code that could change the sequence.
        for (std::size_t i = 0; i < size; ++i) {
            if (i + kAhead < size) __builtin_prefetch(items[i + kAhead], 1);
            views_.push_back(view(items[i], name, i));
            references_.objects.push_back(Py_NewRef(items[i]));
        }
    }

    std::span<const std::string_view> views() const { return views_; }

private:
    static constexpr std::size_t kAhead = 8;

    // A separate member, so that references are released even if the constructor of Texts throws.
    struct References {
        std::vector<PyObject*> objects;

        References() = default;
        References(const References&) = delete;
        References& operator=(const References&) = delete;
        ~References() {
            for (std::size_t i = 0; i < objects.size(); ++i) {
                if (i + kAhead < objects.size()) __builtin_prefetch(objects[i + kAhead], 1);
                Py_DECREF(objects[i]);
            }
        }
    };

    static std::string type_name(py::handle object) { return Py_TYPE(object.ptr())->tp_name; }

    static std::string_view view(PyObject* text, const char* name, std::size_t i) {
        const auto item = [&] { return std::string(name) + "[" + std::to_string(i) + "]"; };
        if (!PyUnicode_Check(text)) {
            const char* cure = PyBytes_Check(text) ? "; decode it first, e.g. text.decode(\"utf-8\")" : "";
            throw py::type_error(item() + " must be a string, not " + type_name(text) + cure);
        }
        if (PyUnicode_IS_COMPACT_ASCII(text)) {
            return {static_cast<const char*>(PyUnicode_DATA(text)), static_cast<std::size_t>(PyUnicode_GET_LENGTH(text))};
        }
        Py_ssize_t size = 0;
        const char* data = PyUnicode_AsUTF8AndSize(text, &size);
        if (data == nullptr) {
            if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) throw py::error_already_set();
            PyErr_Clear();
            throw py::type_error(item() + " holds a lone surrogate (half of a character); clean it first, e.g. " +
                                  "text.encode(\"utf-8\", \"replace\").decode()");
        }
        return {data, static_cast<std::size_t>(size)};
    }

    References references_;
    std::vector<std::string_view> views_;
};

}  // namespace fastbert
