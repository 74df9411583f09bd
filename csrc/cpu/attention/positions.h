// Positions in attention, generic over the vector type: rotary embeddings, and products with tables of relative
// positions. Included inside a target region and an anonymous namespace, after a vector type.

inline constexpr float kLog2E = 1.44269504F;

constexpr std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

// Load up to one vector, zero-padded.
template <class V, class T>
FASTBERT_INLINE typename V::Float load_up_to(const T* p, std::size_t count) {
    return count >= V::kLanes ? V::load(p) : V::load_part(p, count);
}

template <class V, class T>
FASTBERT_INLINE void store_up_to(T* p, typename V::Float x, std::size_t count) {
    count >= V::kLanes ? V::store(p, x) : V::store_part(p, x, count);
}

// Turn the first `width` dims of a row by a position's angles, or back if BACK; `out` may be `x`.
template <bool BACK, class V, class T>
void rotate_row(const T* x, const float* angles, std::size_t width, std::size_t dim, T* out) {
    const std::size_t half = width / 2;
    for (std::size_t d = 0; d < half; d += V::kLanes) {
        const std::size_t count = half - d;
        const auto first = load_up_to<V>(x + d, count), second = load_up_to<V>(x + half + d, count);
        const auto cosine = load_up_to<V>(angles + d, count);
        auto sine = load_up_to<V>(angles + half + d, count);
        if constexpr (BACK) sine = V::sub(V::zero(), sine);
        store_up_to<V>(out + d, V::sub(V::mul(first, cosine), V::mul(second, sine)), count);
        store_up_to<V>(out + half + d, V::fma(second, cosine, V::mul(first, sine)), count);
    }
    if (out != x) std::copy(x + width, x + dim, out + width);
}

// The angles of a sequence's token `index`, which is token `token` of the batch.
inline const float* angles_of(const RotaryTable& rotary, std::size_t token, std::size_t index) {
    const std::size_t position = rotary.positions ? static_cast<std::size_t>(rotary.positions[token]) : index;
    return rotary.angles + position * rotary.width;
}

// The row stride of products with the columns of PositionColumns: room for a vector behind the last column, and no
// power of two.
inline std::size_t column_stride(const PositionColumns& columns) { return round_up(columns.count, 32) + 16; }

// A range of columns, from a multiple of 32 on.
struct ColumnRange {
    std::size_t first, count;
};

// The columns of distances from `low` to `high`, counted as in `of`.
inline ColumnRange columns_between(const PositionColumns& columns, const std::int32_t* of, std::ptrdiff_t low,
                                   std::ptrdiff_t high) {
    if (!columns.monotone) return {0, columns.count};
    const std::ptrdiff_t last = 2 * columns.length - 2;
    const auto first = static_cast<std::size_t>(of[std::clamp<std::ptrdiff_t>(low, 0, last)]) / 32 * 32;
    return {first, static_cast<std::size_t>(of[std::clamp<std::ptrdiff_t>(high, 0, last)]) + 1 - first};
}

// One vector of a row of products: the columns of consecutive distances from `at` on.
template <class V>
FASTBERT_INLINE typename V::Float load_columns(const float* row, const std::int32_t* of,
                                               const PositionColumns::Run* runs, std::ptrdiff_t at) {
    using enum PositionColumns::Run;
    if (runs[at] == consecutive) return V::load(row + of[at]);
    if (runs[at] == constant) return V::broadcast(row[of[at]]);
    alignas(64) float lanes[V::kLanes];
    for (std::size_t i = 0; i < V::kLanes; ++i) lanes[i] = row[of[at + static_cast<std::ptrdiff_t>(i)]];
    return V::load(lanes);
}

// Add one vector to the columns of consecutive distances from `at` on: the transpose of `load_columns`.
template <class V>
FASTBERT_INLINE void add_columns(float* row, const std::int32_t* of, const PositionColumns::Run* runs,
                                 std::ptrdiff_t at, typename V::Float x) {
    using enum PositionColumns::Run;
    if (runs[at] == consecutive) {
        V::store(row + of[at], V::add(V::load(row + of[at]), x));
    } else if (runs[at] == constant) {
        row[of[at]] += V::sum(x);
    } else {
        alignas(64) float lanes[V::kLanes];
        V::store(lanes, x);
        for (std::size_t i = 0; i < V::kLanes; ++i) row[of[at + static_cast<std::ptrdiff_t>(i)]] += lanes[i];
    }
}

// Rows of a head's table, from `row` on or backwards, in chunks of at most 32: call use(first, rows, count).
template <class T, class Use>
void table_rows(const HeadRows& table, std::size_t head, std::size_t dim, std::size_t row, std::size_t count,
                bool reversed, const Use& use) {
    alignas(64) T rows[32 * kMaxHeadDim];
    for (std::size_t first = 0; first < count; first += 32) {
        const std::size_t here = std::min<std::size_t>(32, count - first);
        for (std::size_t i = 0; i < here; ++i) {
            const std::size_t at = reversed ? row - first - i : row + first + i;
            const T* from = static_cast<const T*>(table.data) + at * table.token_stride + head * table.head_stride;
            std::copy(from, from + dim, rows + i * dim);
        }
        use(first, static_cast<const T*>(rows), here);
    }
}

template <class P>
std::size_t position_table_bytes(std::size_t dim, std::size_t count) {
    return round_up(count, 32) * round_up(dim, 32) * sizeof(typename P::Weight);
}

template <class P>
void pack_position_table(const AttentionCall& call, const HeadRows& table, std::size_t head, std::size_t row,
                         std::size_t count, bool reversed, std::byte* packed) {
    using T = typename P::Element;
    auto* to = reinterpret_cast<typename P::Weight*>(packed);
    table_rows<T>(table, head, call.dim, row, count, reversed, [&](std::size_t first, const T* rows, std::size_t here) {
        P::pack_keys(rows, call.dim, here, call.dim, to + P::packed_keys(first, call.dim));
    });
}

template <class P>
void load_position_table(const AttentionCall& call, const HeadRows& table, std::size_t head, std::size_t row,
                         std::size_t count, bool reversed, float* to) {
    using T = typename P::Element;
    using V = typename P::Vector;
    table_rows<T>(table, head, call.dim, row, count, reversed, [&](std::size_t first, const T* rows, std::size_t here) {
        for (std::size_t i = 0; i < here; ++i)
            for (std::size_t d = 0; d < call.dim; d += V::kLanes)
                V::store(to + (first + i) * kTableStride + d, load_up_to<V>(rows + i * call.dim + d, call.dim - d));
    });
    // Products of gradients read whole steps of 32 columns.
    std::fill(to + count * kTableStride, to + round_up(count, 32) * kTableStride, 0.0F);
}
