// GELU's derivative, for any of the vectors. Included inside a region, behind a vector and vector_math.h.

// GELU(x) as gelu_of gives it, and its derivative.
template <class F>
struct GeluAndSlope {
    F value, slope;
};

// The slope of max(x, 0) and, on the other side of zero with the other sign, `tail`, raised by 2^32.
template <class V>
FASTBERT_INLINE typename V::Float gelu_slope(typename V::Float x, typename V::Float tail) {
    const auto zero = V::zero(), down = V::broadcast(-0x1p-32F), up = V::broadcast(0x1p-32F);
    return V::fma(tail, V::where_less(x, zero, up, down), V::where_less(x, zero, zero, V::broadcast(1.0F)));
}

// Phi(x) + x phi(x), of which Phi(-|x|) - |x| phi(x) is the tail; off by at most 3e-6.
template <class V>
FASTBERT_INLINE GeluAndSlope<typename V::Float> gelu_and_slope_of(typename V::Float x) {
    using F = typename V::Float;
    F a;
    const F below = gelu_tail_of<V>(x, a);
    // -log2(e) / 2: phi is a power of two, divided by sqrt(2 pi).
    const F density = raised_exp2_of<V>(V::mul(V::mul(a, a), V::broadcast(-0.72134752F)));
    const F tail = V::fma(V::mul(a, V::broadcast(-0.39894228F)), density, below);
    return {V::fma(V::mul(a, below), V::broadcast(-0x1p-32F), V::max(V::zero(), x)), gelu_slope<V>(x, tail)};
}

// By tanh: with s = 1 / (1 + exp(2 |u|)) the tail is s - |x| s (1 - s) 2 u', u' the derivative of u.
template <class V>
FASTBERT_INLINE GeluAndSlope<typename V::Float> gelu_tanh_and_slope_of(typename V::Float x) {
    using F = typename V::Float;
    const F a = V::min(V::broadcast(10.88F), V::abs(x)), square = V::mul(a, a);
    const F slope = V::fma(square, V::broadcast(-0.10294324F), V::broadcast(-2.3022082F));
    const F power = raised_exp2_of<V>(V::mul(a, slope));
    const F one = V::broadcast(1.0F), below = V::fma(power, V::broadcast(0x1p-32F), one);
    const F value = V::fma(V::div(V::mul(a, power), below), V::broadcast(-0x1p-32F), V::max(V::zero(), x));
    const F s = V::div(power, below);
    // sqrt(8 / pi), and 3 * 0.044715 of it.
    const F twice = V::fma(square, V::broadcast(0.21406445F), V::broadcast(1.5957691F));
    const F above = V::fma(s, V::broadcast(-0x1p-32F), one);
    const F tail = V::fma(V::mul(V::mul(a, V::sub(V::zero(), s)), above), twice, s);
    return {value, gelu_slope<V>(x, tail)};
}
