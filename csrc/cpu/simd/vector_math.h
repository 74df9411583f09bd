// exp, GELU and their building blocks, generic over the vector type. Included inside a target region, after a vector
// type.

// 2^x, relative error below 2e-7; 0 below -126, where results would be denormal, and clamped at 2^127 above it.
template <class V>
FASTBERT_INLINE typename V::Float exp2_of(typename V::Float x) {
    using F = typename V::Float;
    const F lowest = V::broadcast(-126.0F);
    // This operand order propagates NaN.
    const F clamped = V::min(V::broadcast(127.0F), V::max(lowest, x));
    const F whole = V::round(clamped);
    const F f = V::sub(clamped, whole);  // -0.5 to 0.5
    // The Taylor series of 2^f; the first omitted term is (ln 2 / 2)^7 / 7! = 1.2e-7.
    F r = V::broadcast(1.5403530e-4F);
    r = V::fma(r, f, V::broadcast(1.3333558e-3F));
    r = V::fma(r, f, V::broadcast(9.6181291e-3F));
    r = V::fma(r, f, V::broadcast(5.5504109e-2F));
    r = V::fma(r, f, V::broadcast(2.4022651e-1F));
    r = V::fma(r, f, V::broadcast(6.9314718e-1F));
    r = V::fma(r, f, V::broadcast(1.0F));
    return V::where_less(x, lowest, V::zero(), V::scale(r, whole));
}

template <class V>
FASTBERT_INLINE typename V::Float exp_of(typename V::Float x) {
    return exp2_of<V>(V::mul(x, V::broadcast(1.44269504F)));
}

// 2^x of x from -126 to 127, relative error below 1.5e-7.
template <class V>
FASTBERT_INLINE typename V::Float bounded_exp2_of(typename V::Float x) {
    using F = typename V::Float;
    const F whole = V::round(x);
    const F f = V::sub(x, whole);
    // The degree-5 minimax polynomial of 2^f on [-0.5, 0.5].
    F r = V::broadcast(1.3276483e-3F);
    r = V::fma(r, f, V::broadcast(9.6755454e-3F));
    r = V::fma(r, f, V::broadcast(5.5507133e-2F));
    r = V::fma(r, f, V::broadcast(2.4022120e-1F));
    r = V::fma(r, f, V::broadcast(6.9314697e-1F));
    r = V::fma(r, f, V::broadcast(1.00000007F));
    return V::scale(r, whole);
}

// 2^x for x from -158 to 0, scaled by 2^32 to avoid denormals; relative error below 1.5e-7 plus the rounding of x + 32.
template <class V>
FASTBERT_INLINE typename V::Float raised_exp2_of(typename V::Float x) {
    return bounded_exp2_of<V>(V::add(x, V::broadcast(32.0F)));
}

// GELU, x Phi(x) = max(x, 0) - |x| Phi(-|x|), with log2 Phi(-|x|) as a polynomial: no division, no cancellation below
// zero, and the scale of 2^-32 folded into the last product. Absolute error at most 4e-7, relative error 1.2e-3, less
// than rounding to bf16, including denormal results. NaN propagates; -infinity gives 0, its limit.
template <class V>
FASTBERT_INLINE typename V::Float gelu_of(typename V::Float x) {
    using F = typename V::Float;
    // Phi(-14.6) is 2^-158 and vanishes. min and max return their second operand if an operand is NaN.
    const F a = V::min(V::broadcast(14.6F), V::abs(x));
    F p = V::broadcast(-8.3483889e-10F);
    p = V::fma(p, a, V::broadcast(8.3393159e-8F));
    p = V::fma(p, a, V::broadcast(-3.3306247e-6F));
    p = V::fma(p, a, V::broadcast(7.2182022e-5F));
    p = V::fma(p, a, V::broadcast(-9.6313003e-4F));
    p = V::fma(p, a, V::broadcast(8.5459042e-3F));
    p = V::fma(p, a, V::broadcast(-5.3964510e-2F));
    p = V::fma(p, a, V::broadcast(-4.5846964e-1F));
    p = V::fma(p, a, V::broadcast(-1.1512589F));
    p = V::fma(p, a, V::broadcast(-9.9999316e-1F));
    const F tail = V::mul(a, raised_exp2_of<V>(p));
    return V::fma(tail, V::broadcast(-0x1p-32F), V::max(V::zero(), x));
}

// The tanh approximation of GELU, u = sqrt(2 / pi) (x + 0.044715 x^3): max(x, 0) - |x| / (1 + exp(2 |u|)). NaN and
// infinities as above.
template <class V>
FASTBERT_INLINE typename V::Float gelu_tanh_of(typename V::Float x) {
    using F = typename V::Float;
    const F a = V::min(V::broadcast(10.88F), V::abs(x));
    // -2 log2(e) sqrt(2 / pi), and 0.044715 of it.
    const F slope = V::fma(V::mul(a, a), V::broadcast(-0.10294324F), V::broadcast(-2.3022082F));
    const F power = raised_exp2_of<V>(V::mul(a, slope));
    const F tail = V::div(V::mul(a, power), V::fma(power, V::broadcast(0x1p-32F), V::broadcast(1.0F)));
    return V::fma(tail, V::broadcast(-0x1p-32F), V::max(V::zero(), x));
}
