// exp, GELU and what they need, for any of the vectors. Included inside a region, behind a vector.

// 2^x, relative error below 2e-7; 0 below -126, where results would be denormal, and clamped at 2^127 above it.
template <class V>
FASTBERT_INLINE typename V::Float exp2_of(typename V::Float x) {
    using F = typename V::Float;
    const F lowest = V::broadcast(-126.0F);
    // In this order of operands a NaN stays one.
    const F clamped = V::min(V::broadcast(127.0F), V::max(lowest, x));
    const F whole = V::round(clamped);
    const F f = V::sub(clamped, whole);  // -0.5 to 0.5
    // The Taylor series of 2^f; its first term left out is (ln 2 / 2)^7 / 7! = 1.2e-7.
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
