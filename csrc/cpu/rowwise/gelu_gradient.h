// Derivatives of GELU, generic over the vector type. Included inside a target region, after a vector type and
// vector_math.h.
//
// Both are 1 - T(|x|) for positive x and T(|x|) otherwise, so nothing cancels below zero. NaN propagates; at the
// infinities they are their limits, 1 and 0, within the error below.

// Phi(x) + x phi(x), with an absolute error of at most 4e-7: T(a) = exp(-a^2 / 2) times a polynomial, used up to a = 6,
// where it is as close to zero as beyond.
template <class V>
FASTBERT_INLINE typename V::Float gelu_gradient_of(typename V::Float x) {
    using F = typename V::Float;
    // min returns its second operand if an operand is NaN.
    const F a = V::min(V::broadcast(6.0F), V::abs(x));
    const F power = bounded_exp2_of<V>(V::mul(V::mul(a, a), V::broadcast(-0.72134752F)));
    F r = V::broadcast(-8.06307162e-6F);
    r = V::fma(r, a, V::broadcast(1.51941887e-4F));
    r = V::fma(r, a, V::broadcast(-1.27116218e-3F));
    r = V::fma(r, a, V::broadcast(6.38280576e-3F));
    r = V::fma(r, a, V::broadcast(-2.22308766e-2F));
    r = V::fma(r, a, V::broadcast(5.94967976e-2F));
    r = V::fma(r, a, V::broadcast(-1.31772891e-1F));
    r = V::fma(r, a, V::broadcast(2.49752298e-1F));
    r = V::fma(r, a, V::broadcast(-7.97864914e-1F));
    r = V::fma(r, a, V::broadcast(4.99999732e-1F));
    const F tail = V::mul(power, r);
    return V::where_less(x, V::zero(), tail, V::sub(V::broadcast(1.0F), tail));
}

// The derivative of the tanh approximation of GELU, with s = 1 / (1 + exp(2 |u|)): T(a) = s - a s (1 - s) 2 u'(a).
template <class V>
FASTBERT_INLINE typename V::Float gelu_tanh_gradient_of(typename V::Float x) {
    using F = typename V::Float;
    const F a = V::min(V::broadcast(10.88F), V::abs(x)), square = V::mul(a, a);
    // As in gelu_tanh_of: exp(-2 |u|), times 2^32.
    const F slope = V::fma(square, V::broadcast(-0.10294324F), V::broadcast(-2.3022082F));
    const F power = raised_exp2_of<V>(V::mul(a, slope));
    const F rest = V::div(V::broadcast(1.0F), V::fma(power, V::broadcast(0x1p-32F), V::broadcast(1.0F)));  // 1 - s
    const F s = V::mul(V::mul(power, V::broadcast(0x1p-32F)), rest);
    const F steepness = V::fma(square, V::broadcast(0.21406445F), V::broadcast(1.5957691F));  // 2 u'
    const F tail = V::mul(s, V::sub(V::broadcast(1.0F), V::mul(V::mul(a, rest), steepness)));
    return V::where_less(x, V::zero(), tail, V::sub(V::broadcast(1.0F), tail));
}
