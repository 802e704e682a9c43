// Runs CUDA kernels as C++ on the CPU, a block at a time. A thread of a block is a fiber: it runs until it
// meets a barrier, then the next one does; a warp runs until it meets one of the whole block. Threads
// and warps run in ascending or descending order; a kernel that gives other bits in the other order
// lacks a barrier.
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <utility>

#define GRAPHC_HOST
#define __global__
#define __device__
#define __shared__ static

struct Index3 { unsigned x; };
static Index3 threadIdx, blockIdx, blockDim, gridDim;

constexpr unsigned MOST_THREADS = 1024;
constexpr size_t STACK_BYTES = 32768;
static jmp_buf waiting_scheduler, waiting_fibers[MOST_THREADS]; // switching costs no system call
static char stacks[MOST_THREADS][STACK_BYTES];
static bool started[MOST_THREADS], finished[MOST_THREADS], at_block_barrier[MOST_THREADS];
static bool is_descending;
static void (*entry)(void **);
static void **pointers;

static void wait(bool for_block) {
    at_block_barrier[threadIdx.x] = for_block;
    if (!_setjmp(waiting_fibers[threadIdx.x])) _longjmp(waiting_scheduler, 1);
}
static void fiber() {
    for (;;) {
        entry(pointers);
        finished[threadIdx.x] = true;
        wait(true); // for the next block, or the next kernel: making a context takes longer
    }
}
static void __syncthreads() { wait(true); }
static void sync_warp() { wait(false); }

static void resume() {
    if (_setjmp(waiting_scheduler)) return;
    if (started[threadIdx.x]) _longjmp(waiting_fibers[threadIdx.x], 1);
    started[threadIdx.x] = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks[threadIdx.x];
    context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&context, fiber, 0);
    setcontext(&context);
}

template <class T> static T __shfl_xor_sync(unsigned, T value, unsigned lanes) {
    static T slots[MOST_THREADS];
    slots[threadIdx.x] = value;
    sync_warp();
    const T other = slots[threadIdx.x ^ lanes];
    sync_warp();
    return other;
}

template <class T> static T __shfl_sync(unsigned, T value, unsigned lane) {
    static T slots[MOST_THREADS];
    slots[threadIdx.x] = value;
    sync_warp();
    const T other = slots[threadIdx.x / 32 * 32 + lane];
    sync_warp();
    return other;
}

static unsigned __ballot_sync(unsigned, bool vote) {
    static bool votes[MOST_THREADS];
    votes[threadIdx.x] = vote;
    sync_warp();
    unsigned mask = 0;
    const unsigned first = threadIdx.x / 32 * 32;
    for (unsigned lane = 0; lane < 32; ++lane) mask |= unsigned(votes[first + lane]) << lane;
    sync_warp();
    return mask;
}

// Tensor cores: what PTX says of ldmatrix, of mma.m16n8k16 and of the copies to shared memory.
template <bool TRANSPOSED> static void load_matrices(unsigned (&part)[4], const void *row) {
    static const void *rows[MOST_THREADS];
    rows[threadIdx.x] = row;
    sync_warp();
    const unsigned first = threadIdx.x / 32 * 32, lane = threadIdx.x % 32;
    for (unsigned matrix = 0; matrix < 4; ++matrix) {
        unsigned short halves[2];
        for (unsigned half = 0; half < 2; ++half) {
            const unsigned line = lane / 4, column = lane % 4 * 2 + half;
            const void *own = rows[first + matrix * 8 + (TRANSPOSED ? column : line)];
            halves[half] = static_cast<const unsigned short *>(own)[TRANSPOSED ? line : column];
        }
        part[matrix] = unsigned(halves[1]) << 16 | halves[0];
    }
    sync_warp();
}
static void load_fragments(unsigned (&part)[4], const void *row) { load_matrices<false>(part, row); }
static void load_transposed(unsigned (&part)[4], const void *row) { load_matrices<true>(part, row); }

template <class T> static float half_of(unsigned word, unsigned half) {
    T number;
    number.bits = word >> 16 * half;
    return widen(number);
}
template <class T>
static void multiply_fragments(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, T) {
    static unsigned words[MOST_THREADS][6];
    const unsigned own[6] = {a[0], a[1], a[2], a[3], b0, b1};
    memcpy(words[threadIdx.x], own, sizeof own);
    sync_warp();
    const unsigned first = threadIdx.x / 32 * 32, lane = threadIdx.x % 32;
    for (unsigned e = 0; e < 4; ++e) {
        const unsigned row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        for (unsigned k = 0; k < 16; ++k) {
            const unsigned thread = k % 8 / 2, register_of_a = row / 8 + k / 8 * 2;
            const unsigned left = words[first + row % 8 * 4 + thread][register_of_a];
            const unsigned right = words[first + column * 4 + thread][4 + k / 8];
            sum[e] += half_of<T>(left, k % 2) * half_of<T>(right, k % 2);
        }
    }
    sync_warp();
}
// In descending order copies arrive as late as they may, else at once.
struct Copy { void *target; const void *source; bool inside; unsigned group; };
constexpr unsigned MOST_COPIES = 256;
static Copy copies[MOST_THREADS][MOST_COPIES];
static unsigned pending[MOST_THREADS], groups[MOST_THREADS];
static void copy_now(const Copy &copy) {
    if (copy.inside) memcpy(copy.target, copy.source, 16);
    else memset(copy.target, 0, 16);
}
static void copy_pack(void *target, const void *source, bool inside) {
    const Copy copy = {target, source, inside, groups[threadIdx.x]};
    if (!is_descending) return copy_now(copy);
    if (pending[threadIdx.x] == MOST_COPIES) abort();
    copies[threadIdx.x][pending[threadIdx.x]++] = copy;
}
static void copies_sent() { ++groups[threadIdx.x]; }
template <int LATER> static void copies_arrived() {
    unsigned later = 0;
    for (unsigned i = 0; i < pending[threadIdx.x]; ++i) {
        const Copy copy = copies[threadIdx.x][i];
        if (copy.group + LATER < groups[threadIdx.x]) copy_now(copy);
        else copies[threadIdx.x][later++] = copy;
    }
    pending[threadIdx.x] = later;
}

static int __ffs(unsigned bits) { return __builtin_ffs(bits); }

static float __uint_as_float(unsigned bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static unsigned __float_as_uint(float x) {
    unsigned bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static unsigned __umulhi(unsigned a, unsigned b) { return uint64_t(a) * b >> 32; }

// Runs the threads of a warp up to a barrier of the block; whether all of them meet the same barriers.
static bool run_warp(unsigned first, unsigned end) {
    for (unsigned count = end - first;;) {
        unsigned waiting = 0, ended = 0;
        for (unsigned i = 0; i < count; ++i) {
            threadIdx.x = is_descending ? end - 1 - i : first + i;
            if (!finished[threadIdx.x]) resume();
            ended += finished[threadIdx.x];
            waiting += !finished[threadIdx.x] && at_block_barrier[threadIdx.x];
        }
        if (waiting == count || ended == count) return true;
        if (waiting || ended) return false;
    }
}

// Forgets threads that are inside a kernel that failed.
static int failed() {
    memset(started, 0, sizeof started);
    return 1;
}

// 0, or 1 if some threads met a barrier that others did not.
static int run(void (*kernel)(void **), void **arguments, unsigned grid, unsigned block, int descending) {
    entry = kernel;
    pointers = arguments;
    gridDim.x = grid;
    blockDim.x = block;
    is_descending = descending;
    const unsigned warps = (block + 31) / 32;
    for (unsigned b = 0; b < grid; ++b) {
        blockIdx.x = b;
        for (unsigned t = 0; t < block; ++t) {
            finished[t] = false;
            pending[t] = groups[t] = 0;
        }
        for (unsigned ended = 0; ended < block;) {
            for (unsigned i = 0; i < warps; ++i) {
                const unsigned first = (descending ? warps - 1 - i : i) * 32;
                if (!run_warp(first, first + 32 < block ? first + 32 : block)) return failed();
            }
            ended = 0;
            for (unsigned t = 0; t < block; ++t) ended += finished[t];
            if (ended && ended < block) return failed();
        }
    }
    return 0;
}

struct float16;
struct bfloat16;
static float widen(float16);
static float widen(bfloat16);
static void narrow(float, float16 &);
static void narrow(float, bfloat16 &);
