// The Python class of normalizers, which tokenizers take.
#pragma once
#include "normalizer/normalizer.h"

namespace fastbert {

// Immutable; tokenizers copy it.
struct NormalizerHandle {
    normalizer::Normalizer normalizer;
};

// Throws py::value_error for an added token of which nothing is left.
void check_added_tokens(const std::vector<tokenizer::AddedToken>& added, const normalizer::Normalizer& normalizer);

}  // namespace fastbert
