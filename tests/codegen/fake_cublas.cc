// What the tests need of cuBLAS, on the CPU, from its documentation: column-major, arguments checked.
#include <cstdint>
#include <cstring>
#include <cmath>

namespace {
int handle;
void *workspace;

double get(const void *base, int type, int64_t i) {
    uint16_t half;
    switch (type) {
        case 0: return static_cast<const float *>(base)[i];
        case 1: return static_cast<const double *>(base)[i];
        case 2: {
            _Float16 x;
            std::memcpy(&x, static_cast<const uint16_t *>(base) + i, 2);
            return x;
        }
    }
    std::memcpy(&half, static_cast<const uint16_t *>(base) + i, 2);
    const uint32_t bits = uint32_t(half) << 16;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

void put(void *base, int type, int64_t i, double value) {
    switch (type) {
        case 0: static_cast<float *>(base)[i] = value; return;
        case 1: static_cast<double *>(base)[i] = value; return;
        case 2: {
            const _Float16 x = value;
            std::memcpy(static_cast<uint16_t *>(base) + i, &x, 2);
            return;
        }
    }
    const float x = value;
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    static_cast<uint16_t *>(base)[i] = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
}  // namespace

extern "C" int cublasGetProperty(int kind, int *value) { *value = 13 + kind; return 0; }
extern "C" int cublasCreate_v2(void **created) { *created = &handle; return 0; }
extern "C" int cublasDestroy_v2(void *given) { return given == &handle ? 0 : 1; }
extern "C" int cublasSetStream_v2(void *given, void *) { workspace = nullptr; return given == &handle ? 0 : 1; }
extern "C" int cublasSetWorkspace_v2(void *, void *given, size_t) { workspace = given; return 0; }

extern "C" int cublasGemmStridedBatchedEx_64(
    void *given, int transa, int transb, int64_t m, int64_t n, int64_t k, const void *alpha,
    const void *a, int a_type, int64_t lda, int64_t stride_a,
    const void *b, int b_type, int64_t ldb, int64_t stride_b, const void *beta,
    void *c, int c_type, int64_t ldc, int64_t stride_c, int64_t batch, int compute, int algorithm) {
    if (given != &handle || !workspace) return 1;
    if (lda < (transa ? k : m) || ldb < (transb ? n : k) || ldc < m) return 7;
    if (a_type != b_type || algorithm != -1 || compute != (a_type == 1 ? 70 : 68)) return 15;
    if (a_type == 1 ? c_type != 1 : c_type == 1) return 15;
    const bool is_double = compute == 70;
    const double scale = is_double ? *(const double *)alpha : *(const float *)alpha;
    const double keep = is_double ? *(const double *)beta : *(const float *)beta;
    for (int64_t p = 0; p < batch; ++p)
        for (int64_t j = 0; j < n; ++j)
            for (int64_t i = 0; i < m; ++i) {
                double sum = 0;
                for (int64_t l = 0; l < k; ++l) {
                    const int64_t ai = transa ? l + i * lda : i + l * lda;
                    const int64_t bi = transb ? j + l * ldb : l + j * ldb;
                    sum += get(a, a_type, p * stride_a + ai) * get(b, b_type, p * stride_b + bi);
                }
                const int64_t ci = p * stride_c + i + j * ldc;
                // beta 0 does not read c, which may hold NaN
                put(c, c_type, ci, scale * sum + (keep ? keep * get(c, c_type, ci) : 0));
            }
    return 0;
}
