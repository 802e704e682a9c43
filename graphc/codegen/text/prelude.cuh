// What generated kernels stand on. No header is needed. A host that runs kernels as plain C++ defines
// GRAPHC_HOST and brings the conversions, shuffles and barriers itself.

struct float16 { unsigned short bits; };
struct bfloat16 { unsigned short bits; };
struct float8_e4m3 { unsigned char bits; };
struct float8_e5m2 { unsigned char bits; };

#ifndef GRAPHC_HOST
__device__ inline float widen(float16 x) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return wide;
}
__device__ inline float widen(bfloat16 x) { return __uint_as_float(unsigned(x.bits) << 16); }
__device__ inline void narrow(float x, float16 &result) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
}
__device__ inline void narrow(float x, bfloat16 &result) {
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
}
#endif

template <class T> __device__ inline T widen(T x) { return x; }
template <class T, class S> __device__ inline void narrow(S x, T &result) {
    result = static_cast<T>(x);
}

// 8-bit floats with MANTISSA bits of mantissa; MOST is the code of the largest finite number. Rounding
// is to nearest even; numbers beyond MOST become MOST, and NaN stays NaN.
template <unsigned MANTISSA, unsigned MOST> struct Eight {
    static constexpr unsigned BIAS = 0x3f >> MANTISSA, SHIFT = 23 - MANTISSA;
    static constexpr float LEAST = 1.0f / (1u << (BIAS - 1 + MANTISSA)); // the subnormal with code 1
    __device__ static inline unsigned char code(float x) {
        if (x != x) return 0x7f;
        const unsigned bits = __float_as_uint(x), size = bits & 0x7fffffffu;
        const unsigned half = (1u << (SHIFT - 1)) - 1 + (size >> SHIFT & 1);
        unsigned found = ((size + half) >> SHIFT) - ((127 - BIAS) << MANTISSA);
        if (size < (128 - BIAS) << 23) found = unsigned(rintf(__uint_as_float(size) / LEAST));
        return (found < MOST ? found : MOST) | (bits >> 24 & 0x80u);
    }
    __device__ static inline float number(unsigned char code) {
        const unsigned size = code & 0x7fu;
        float found = __uint_as_float((size << SHIFT) + ((127 - BIAS) << 23));
        if (size < 1u << MANTISSA) found = size * LEAST;
        if (size > MOST) found = __uint_as_float(size == 0x7c ? 0x7f800000u : 0x7fc00000u);
        return code & 0x80u ? -found : found;
    }
};
using Eight43 = Eight<3, 0x7e>;
using Eight52 = Eight<2, 0x7b>;
__device__ inline float widen(float8_e4m3 x) { return Eight43::number(x.bits); }
__device__ inline float widen(float8_e5m2 x) { return Eight52::number(x.bits); }
#if !defined(GRAPHC_HOST) && __CUDA_ARCH__ >= 890
__device__ inline void narrow(float x, float8_e4m3 &result) {
    unsigned short pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
    result.bits = static_cast<unsigned char>(pair);
}
__device__ inline void narrow(float x, float8_e5m2 &result) {
    unsigned short pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
    result.bits = static_cast<unsigned char>(pair);
}
#else
__device__ inline void narrow(float x, float8_e4m3 &result) { result.bits = Eight43::code(x); }
__device__ inline void narrow(float x, float8_e5m2 &result) { result.bits = Eight52::code(x); }
#endif

// Up to 16 bytes an access; wider packs are several accesses.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack { T lane[N]; };

template <int N, class T> __device__ inline Pack<T, N> load(const T *address) {
    return *reinterpret_cast<const Pack<T, N> *>(address);
}
template <int N, class T> __device__ inline void store(T *address, const Pack<T, N> &pack) {
    *reinterpret_cast<Pack<T, N> *>(address) = pack;
}

__device__ inline float infinite(float) { return __uint_as_float(0x7f800000u); }
__device__ inline double infinite(double) { return infinite(0.0f); }

// NaN goes through, as in NumPy.
template <class T> __device__ inline T maximum(T a, T b) { return a >= b || a != a ? a : b; }

template <class T> __device__ inline T minimum(T a, T b) { return a <= b || a != a ? a : b; }
#if !defined(GRAPHC_HOST) && __CUDA_ARCH__ >= 800
__device__ inline float maximum(float a, float b) {
    float greater;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(greater) : "f"(a), "f"(b));
    return greater;
}
__device__ inline float minimum(float a, float b) {
    float less;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(less) : "f"(a), "f"(b));
    return less;
}
#endif
template <class T> __device__ inline T sign(T x) {
    return x > 0 ? T(1) : x < 0 ? T(-1) : x == 0 ? T(0) : x;
}
template <class T> __device__ inline bool is_infinite(T x) {
    return x == infinite(x) || x == -infinite(x);
}

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

// Integers wrap around.
__device__ inline float add(float a, float b) { return a + b; }
__device__ inline double add(double a, double b) { return a + b; }
__device__ inline int add(int a, int b) { return int(unsigned(a) + unsigned(b)); }
__device__ inline long long add(long long a, long long b) {
    using wide = unsigned long long;
    return (long long)(wide(a) + wide(b));
}
__device__ inline float multiply(float a, float b) { return a * b; }
__device__ inline double multiply(double a, double b) { return a * b; }
__device__ inline int multiply(int a, int b) { return int(unsigned(a) * unsigned(b)); }
__device__ inline long long multiply(long long a, long long b) {
    using wide = unsigned long long;
    return (long long)(wide(a) * wide(b));
}

template <class T> __device__ inline T integer_power(T base, T exponent) { // which is not negative
    T power = 1;
    for (; exponent > 0; exponent >>= 1, base = multiply(base, base))
        if (exponent & 1) power = multiply(power, base);
    return power;
}

// By as many bits as there are, or more, all are shifted out; a negative count is such a one.
template <class T> __device__ inline T shifted_left(T a, T b) {
    return b >= 0 && b < T(8 * sizeof(T)) ? multiply(a, T(T(1) << b)) : T(0);
}
template <class T> __device__ inline T shifted_right(T a, T b) {
    const T most = 8 * sizeof(T) - 1;
    return a >> (b >= 0 && b < most ? b : most);
}

// Quotients and remainders as NumPy's: by 0 integers give 0, and the least one by -1 wraps around.
template <class T> __device__ inline T truncated_remainder(T a, T b) {
    return b == 0 || b == -1 ? T(0) : T(a % b);
}
template <> __device__ inline float truncated_remainder(float a, float b) { return fmodf(a, b); }
template <> __device__ inline double truncated_remainder(double a, double b) { return fmod(a, b); }
template <class T> __device__ inline T floored_remainder(T a, T b) {
    const T rest = truncated_remainder(a, b);
    if (rest == 0) return b < 0 ? -T(0) : T(0);
    return (rest < 0) != (b < 0) ? T(rest + b) : rest;
}
template <class T> __device__ inline T floored_quotient(T a, T b) {
    if (b == 0 || b == -1) return multiply(a, b);
    const T rest = a % b;
    return a / b - (rest != 0 && (rest < 0) != (b < 0));
}
template <class T> __device__ inline T floored_ratio(T a, T b) {
    if (b == 0) return a / b;
    const T rest = truncated_remainder(a, b);
    const T quotient = (a - rest) / b - (rest != 0 && (rest < 0) != (b < 0));
    if (quotient == 0) return a / b * 0;
    const T whole = floor(quotient);
    return whole + (quotient - whole > T(0.5));
}
template <> __device__ inline float floored_quotient(float a, float b) { return floored_ratio(a, b); }
template <> __device__ inline double floored_quotient(double a, double b) {
    return floored_ratio(a, b);
}

struct Sum {
    template <class T> static __device__ inline T combine(T a, T b) { return add(a, b); }
};
struct Max {
    template <class T> static __device__ inline T combine(T a, T b) { return maximum(a, b); }
};
struct Min {
    template <class T> static __device__ inline T combine(T a, T b) { return b >= a || a != a ? a : b; }
};

constexpr unsigned WARP = 32;

// Fragments of a warp on tensor cores, in the order of PTX's mma.m16n8k16: four registers of a 16 x 16
// factor, two of a 16 x 8 one, four sums of their product. Of these a thread has the rows t / 4 and
// t / 4 + 8 and the columns 2 * (t % 4) and the next one.
#ifndef GRAPHC_HOST
__device__ inline unsigned shared_address(const void *place) {
    return unsigned(__cvta_generic_to_shared(place));
}
// Four 8 x 8 matrices, of which each thread names a row: those of matrix m are of threads 8 * m and up.
__device__ inline void load_fragments(unsigned (&part)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(part[0]), "=r"(part[1]), "=r"(part[2]), "=r"(part[3])
        : "r"(shared_address(row)) : "memory");
}
__device__ inline void load_transposed(unsigned (&part)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(part[0]), "=r"(part[1]), "=r"(part[2]), "=r"(part[3])
        : "r"(shared_address(row)) : "memory");
}
#if __CUDA_ARCH__ >= 800
#define MULTIPLY_FRAGMENTS(type, name) \
    __device__ inline void multiply_fragments(float (&sum)[4], const unsigned (&a)[4], unsigned b0, \
                                              unsigned b1, type) { \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 {%0, %1, %2, %3}, " \
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)); \
    }
MULTIPLY_FRAGMENTS(float16, "f16")
MULTIPLY_FRAGMENTS(bfloat16, "bf16")
// 16 bytes to shared memory, or zeros, while threads go on.
__device__ inline void copy_pack(void *target, const void *source, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
        :: "r"(shared_address(target)), "l"(source), "r"(inside ? 16 : 0) : "memory");
}
__device__ inline void copies_sent() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All copies are there but those that were sent last, in so many groups.
template <int LATER> __device__ inline void copies_arrived() {
    asm volatile("cp.async.wait_group %0;" :: "n"(LATER) : "memory");
}
#else // sm_75 has products of half the length, no bfloat16, and no copies of their own.
__device__ inline void multiply_fragments(float (&sum)[4], const unsigned (&a)[4], unsigned b0,
                                          unsigned b1, float16) {
    for (int half = 0; half < 2; ++half)
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
            "{%0, %1, %2, %3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(half ? b1 : b0));
}
__device__ inline void copy_pack(void *target, const void *source, bool inside) {
    using Words = Pack<unsigned, 4>;
    *static_cast<Words *>(target) = inside ? *static_cast<const Words *>(source) : Words{};
}
__device__ inline void copies_sent() {}
template <int LATER> __device__ inline void copies_arrived() {}
#endif
#endif

// Two numbers in 16 bits each, the first one low.
template <class T> __device__ inline unsigned pair_of(float first, float second, T) {
    T low, high;
    narrow(first, low);
    narrow(second, high);
    return unsigned(high.bits) << 16 | low.bits;
}

// 2 to the power of x, with a relative error of at most 2^-22. Results below the normal numbers are 0.
__device__ inline float power_of_two(float x) {
#ifdef GRAPHC_HOST
    return exp2f(x);
#else
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
#endif
}

// A product that is rounded, even if it is added to another number.
__device__ inline float rounded_product(float a, float b) {
#ifdef GRAPHC_HOST
    return a * b;
#else
    return __fmul_rn(a, b);
#endif
}

// One number of the four threads that have the same rows of fragments, given to all of them.
template <class Combine> __device__ inline float across_quad(float value) {
    for (unsigned lane = 1; lane < 4; lane *= 2)
        value = Combine::combine(value, __shfl_xor_sync(0xffffffffu, value, lane));
    return value;
}

// One number of a team of TEAM consecutive threads, a power of two from a warp up, given to all of
// them. All threads of the block must call it. The order of operands depends on TEAM alone.
template <class Combine, unsigned TEAM, class T> __device__ inline T across_row(T value) {
    for (unsigned lane = WARP / 2; lane > 0; lane /= 2)
        value = Combine::combine(value, __shfl_xor_sync(0xffffffffu, value, lane));
    if constexpr (TEAM > WARP) {
        __shared__ T warps[32];
        const unsigned first = threadIdx.x / TEAM * (TEAM / WARP);
        if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = value;
        __syncthreads();
        value = warps[first];
        for (unsigned warp = 1; warp < TEAM / WARP; ++warp)
            value = Combine::combine(value, warps[first + warp]);
        __syncthreads();
    }
    return value;
}

// The same for teams of TEAM threads that are a warp apart: thread t belongs to team t % WARP.
template <class Combine, unsigned TEAM, class T> __device__ inline T across_column(T value) {
    __shared__ T threads[WARP * TEAM];
    threads[threadIdx.x] = value;
    __syncthreads();
    value = threads[threadIdx.x % WARP];
    for (unsigned rank = 1; rank < TEAM; ++rank)
        value = Combine::combine(value, threads[threadIdx.x % WARP + rank * WARP]);
    __syncthreads();
    return value;
}

// Philox4x32-10 (Salmon et al., 2011): a counter of four words becomes four random words.
__device__ inline void philox(unsigned (&words)[4], unsigned key0, unsigned key1) {
    for (int round = 0; round < 10; ++round) {
        const unsigned high0 = __umulhi(0xD2511F53u, words[0]), low0 = 0xD2511F53u * words[0];
        const unsigned high1 = __umulhi(0xCD9E8D57u, words[2]), low1 = 0xCD9E8D57u * words[2];
        words[0] = high1 ^ words[1] ^ key0;
        words[1] = low1;
        words[2] = high0 ^ words[3] ^ key1;
        words[3] = low0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

// Where random numbers come from: a program's seed, the number of a stream, and of a step.
struct Stream {
    unsigned key0, key1, number, step;
};

// Returns four bits: bit i is 1 if element 4 * block + i is kept. An element is kept if its 24 random bits
// are a number of at least `least`.
__device__ inline unsigned four_stay(unsigned long long block, Stream from, unsigned least) {
    unsigned words[4] = {unsigned(block), unsigned(block >> 32), from.number, from.step};
    philox(words, from.key0, from.key1);
    unsigned bits = 0;
    for (unsigned i = 0; i < 4; ++i) bits |= unsigned(words[i] >> 8 >= least) << i;
    return bits;
}

// Returns true if the element with this number is kept.
__device__ inline bool stays(unsigned long long place, Stream from, unsigned least) {
    return four_stay(place / 4u, from, least) >> place % 4u & 1u;
}
