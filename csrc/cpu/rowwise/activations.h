// Activations and their derivatives by name, generic over the vector type. Included inside a target region, after a vector
// type, vector_math.h and gelu_gradient.h.

// SiLU, x / (1 + exp(-x)) = max(x, 0) - |x| / (1 + exp(|x|)): no cancellation below zero. NaN propagates; -infinity gives
// 0, its limit.
template <class V>
FASTBERT_INLINE typename V::Float silu_of(typename V::Float x) {
    using F = typename V::Float;
    // exp(-109) is 2^-157. min and max return their second operand if an operand is NaN.
    const F a = V::min(V::broadcast(109.0F), V::abs(x));
    const F power = raised_exp2_of<V>(V::mul(a, V::broadcast(-1.44269504F)));
    const F tail = V::div(V::mul(a, power), V::fma(power, V::broadcast(0x1p-32F), V::broadcast(1.0F)));
    return V::fma(tail, V::broadcast(-0x1p-32F), V::max(V::zero(), x));
}

// The derivative of SiLU, with s = 1 / (1 + exp(|x|)): T(a) = s - a s (1 - s), as in gelu_tanh_gradient_of.
template <class V>
FASTBERT_INLINE typename V::Float silu_gradient_of(typename V::Float x) {
    using F = typename V::Float;
    const F one = V::broadcast(1.0F), a = V::min(V::broadcast(109.0F), V::abs(x));
    const F power = V::mul(raised_exp2_of<V>(V::mul(a, V::broadcast(-1.44269504F))), V::broadcast(0x1p-32F));
    const F rest = V::div(one, V::add(power, one));  // 1 - s
    const F s = V::mul(power, rest);
    const F tail = V::mul(s, V::sub(one, V::mul(a, rest)));
    return V::where_less(x, V::zero(), tail, V::sub(one, tail));
}

template <class V, Activation kForm>
FASTBERT_INLINE typename V::Float activation_of(typename V::Float x) {
    if constexpr (kForm == Activation::gelu) return gelu_of<V>(x);
    if constexpr (kForm == Activation::gelu_tanh) return gelu_tanh_of<V>(x);
    if constexpr (kForm == Activation::silu) return silu_of<V>(x);
    if constexpr (kForm == Activation::relu) return V::max(V::zero(), x);
}

template <class V, Activation kForm>
FASTBERT_INLINE typename V::Float activation_gradient_of(typename V::Float x) {
    if constexpr (kForm == Activation::gelu) return gelu_gradient_of<V>(x);
    if constexpr (kForm == Activation::gelu_tanh) return gelu_tanh_gradient_of<V>(x);
    if constexpr (kForm == Activation::silu) return silu_gradient_of<V>(x);
    if constexpr (kForm == Activation::relu)
        return V::where_less(V::zero(), x, V::broadcast(1.0F), V::zero());
}
