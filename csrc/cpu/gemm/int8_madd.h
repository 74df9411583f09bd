// int8 micro-kernels by 16-bit multiply-add (vpmaddwd), whose pairs are summed into 32 bits: exact, while the byte
// instruction would saturate. Included inside a target region, after the members that `I` names below and epilogue.h.
//
// I: kRows and kVectors (rows and vectors of weights whose sums fit into registers), kColumns (outputs per vector, two
// 32-bit sums each), load_weights (kColumns outputs' groups, widened to 16 bits), load_row (a row's group, broadcast),
// add_products, and store (two neighbouring vectors of sums as 2 * kColumns integers).

constexpr std::size_t kGroup = group_of(Element::int8);
constexpr std::size_t kWideGroup = kGroup * sizeof(std::int16_t);  // bytes of a widened group

template <class I>
std::size_t panel_bytes(std::size_t padded_depth) {
    return padded_depth / kGroup * I::kRows * kWideGroup;
}

// Widened groups, rows interleaved: [depth / 4][kRows][4].
template <class I>
void pack_rows(const void* x, std::size_t stride, std::size_t rows, std::size_t depth, std::size_t padded_depth,
               std::byte* panel) {
    constexpr std::size_t kBytes = 16, kGroups = kBytes / kGroup;
    for (std::size_t row = 0; row < I::kRows; ++row) {
        const auto* source = static_cast<const std::byte*>(x) + row * stride;
        for (std::size_t first = 0; first < padded_depth; first += kBytes) {
            alignas(16) std::byte bytes[kBytes] = {};
            if (row < rows && first < depth) std::memcpy(bytes, source + first, std::min(kBytes, depth - first));
            const __m128i packed = _mm_load_si128(reinterpret_cast<const __m128i*>(bytes));
            const __m128i words[2] = {_mm_cvtepi8_epi16(packed), _mm_cvtepi8_epi16(_mm_srli_si128(packed, 8))};
            const auto* groups = reinterpret_cast<const std::byte*>(words);
            for (std::size_t i = 0; i < kGroups; ++i)
                std::memcpy(panel + ((first / kGroup + i) * I::kRows + row) * kWideGroup, groups + i * kWideGroup,
                            kWideGroup);
        }
    }
}

// Compute the sums of kRows rows by kVectors vectors of outputs, beginning at `vector`.
template <class I, std::size_t kRows>
FASTBERT_INLINE void multiply_vectors(const std::byte* panel, const std::byte* weights, std::size_t weight_panel_bytes,
                                      std::size_t groups, std::size_t vector, std::int32_t* sums) {
    constexpr std::size_t kBytes = I::kColumns * kGroup;
    constexpr std::size_t kInPanel = kPanel / I::kColumns;
    // Unrolled explicitly: otherwise GCC keeps a copy of the sums in memory.
    typename I::Integers sum[kRows][I::kVectors];
#pragma GCC unroll 8
    for (std::size_t row = 0; row < kRows; ++row)
#pragma GCC unroll 8
        for (std::size_t v = 0; v < I::kVectors; ++v) sum[row][v] = I::zero();
    weights += vector / kInPanel * weight_panel_bytes + vector % kInPanel * kBytes;
    for (std::size_t group = 0; group < groups; ++group) {
        typename I::Integers weight[I::kVectors];
#pragma GCC unroll 8
        for (std::size_t v = 0; v < I::kVectors; ++v)
            weight[v] = I::load_weights(weights + v / kInPanel * weight_panel_bytes + v % kInPanel * kBytes);
#pragma GCC unroll 8
        for (std::size_t row = 0; row < kRows; ++row) {
            const typename I::Integers x = I::load_row(panel + row * kWideGroup);
#pragma GCC unroll 8
            for (std::size_t v = 0; v < I::kVectors; ++v) sum[row][v] = I::add_products(sum[row][v], x, weight[v]);
        }
        weights += kPanel * kGroup;
        panel += I::kRows * kWideGroup;
    }
#pragma GCC unroll 8
    for (std::size_t row = 0; row < kRows; ++row)
#pragma GCC unroll 8
        for (std::size_t v = 0; v < I::kVectors; v += 2)
            I::store(sums + row * kColumns + (vector + v) * I::kColumns, sum[row][v], sum[row][v + 1]);
}

template <class I, std::size_t kRows>
void multiply_rows(const std::byte* panel, const std::byte* weights, std::size_t weight_panel_bytes,
                   std::size_t groups, const Block& block) {
    if constexpr (kRows > 2) {
        if (block.rows <= kRows - 2)
            return multiply_rows<I, kRows - 2>(panel, weights, weight_panel_bytes, groups, block);
    }
    auto* sums = reinterpret_cast<std::int32_t*>(block.sums);
    for (std::size_t vector = 0; vector < kColumns / I::kColumns; vector += I::kVectors)
        multiply_vectors<I, kRows>(panel, weights, weight_panel_bytes, groups, vector, sums);
}

template <class I>
void multiply(const std::byte* panel, const std::byte* weights, std::size_t weight_panel_bytes,
              std::size_t padded_depth, const Block& block, const Block* previous, const Epilogue& epilogue) {
    if (previous) finish_rows<typename I::Vector>(*previous, epilogue, 0, previous->rows);
    multiply_rows<I, I::kRows>(panel, weights, weight_panel_bytes, padded_depth / kGroup, block);
}

template <class I>
void finish_block(const Block& block, const Epilogue& epilogue) {
    finish_rows<typename I::Vector>(block, epilogue, 0, block.rows);
}

template <class I>
constexpr MicroKernel kernel_of() {
    return {.rows = I::kRows,
            .panel_bytes = panel_bytes<I>,
            .pack_rows = pack_rows<I>,
            .multiply = multiply<I>,
            .finish = finish_block<I>,
            .row_step = 2,
            .memory_rows = I::kRows};
}
