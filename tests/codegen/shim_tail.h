// Conversions that the device has instructions for: round to nearest, ties to even.
static float widen(bfloat16 x) { return __uint_as_float(unsigned(x.bits) << 16); }
static void narrow(float x, bfloat16 &result) {
    const unsigned bits = __float_as_uint(x);
    result.bits = x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static float widen(float16 x) {
    _Float16 half;
    memcpy(&half, &x.bits, 2);
    return half;
}
static void narrow(float x, float16 &result) {
    const _Float16 half = x;
    memcpy(&result.bits, &half, 2);
}

template <class... P, size_t... I>
static void spread(void (*kernel)(P...), void **arguments, std::index_sequence<I...>) {
    kernel((P)(uintptr_t)arguments[I]...);
}
template <class... P> static void call(void (*kernel)(P...), void **arguments) {
    spread(kernel, arguments, std::index_sequence_for<P...>{});
}

#define EXPORT(name) \
    extern "C" int run_##name(void **arguments, unsigned grid, unsigned block, int descending) { \
        return run([](void **p) { call(name, p); }, arguments, grid, block, descending); \
    }
