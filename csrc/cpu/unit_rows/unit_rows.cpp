#include "cpu/unit_rows/unit_rows.h"

#include <cmath>
#include <vector>

namespace fastbert {

void unit_rows(const float* values, std::size_t rows, std::size_t width, double least, float* result) {
    std::vector<double> squares(width);
    for (std::size_t row = 0; row < rows; ++row) {
        const float* x = values + row * width;
        for (std::size_t i = 0; i < width; ++i) squares[i] = static_cast<double>(x[i]) * static_cast<double>(x[i]);
        for (std::size_t left = width; left > 1;) {
            const std::size_t half = left / 2;
            for (std::size_t i = 0; i < half; ++i) squares[i] += squares[half + i];
            if (left % 2 != 0) squares[half] = squares[left - 1];
            left = half + left % 2;
        }
        const double norm = width == 0 ? 0.0 : std::sqrt(squares[0]);
        // A NaN stays one.
        const float divisor = static_cast<float>(norm < least ? least : norm);
        for (std::size_t i = 0; i < width; ++i) result[row * width + i] = x[i] / divisor;
    }
}

}  // namespace fastbert
