// What the tests need of cuBLASLt, on the CPU, from its documentation: column-major, arguments checked.
#include <cstdint>
#include <cstring>
#include <cmath>
#include <map>
#include <vector>

namespace {
constexpr int E4M3 = 28, E5M2 = 29;
bool is_eight(int64_t type) { return type == E4M3 || type == E5M2; }
// Finite numbers only, with so many bits of mantissa.
double eight_bits(uint8_t code, int mantissa) {
    const int bias = (1 << (6 - mantissa)) - 1, exponent = (code & 0x7f) >> mantissa;
    const double part = (code & ((1 << mantissa) - 1)) / double(1 << mantissa);
    const double size = exponent ? std::ldexp(1 + part, exponent - bias) : std::ldexp(part, 1 - bias);
    return code & 0x80 ? -size : size;
}
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
        case E4M3: return eight_bits(static_cast<const uint8_t *>(base)[i], 3);
        case E5M2: return eight_bits(static_cast<const uint8_t *>(base)[i], 2);
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

// --- cuBLASLt: descriptors hold their attributes by number ---

namespace {
int lt_handle, live, choices;
constexpr uint64_t CHOSEN = 0x4c74;
constexpr size_t NEEDED = 512;  // bytes of workspace that every algorithm here takes

struct Object {
    char kind;  // o: operation, l: layout, p: preference
    int64_t numbers[4];
    std::map<int, std::vector<char>> attributes;
    template <class T> T at(int attribute, T usual) const {
        const auto found = attributes.find(attribute);
        if (found != attributes.end()) std::memcpy(&usual, found->second.data(), sizeof usual);
        return usual;
    }
    int64_t rows() const { return numbers[1]; }
    int64_t columns() const { return numbers[2]; }
    int64_t leading() const { return numbers[3]; }
    int64_t batch() const { return at<int32_t>(5, 1); }
    int64_t stride() const { return at<int64_t>(6, 0); }
};

struct Algorithm { uint64_t words[8]; };  // mark, bytes of workspace, alignments of A, B, C, D, bias, parts of a sum
struct Heuristic { Algorithm algorithm; size_t workspace; int state; float waves; int reserved[4]; };

int make(void **made, char kind, int64_t a = 0, int64_t b = 0, int64_t c = 0, int64_t d = 0) {
    *made = new Object{kind, {a, b, c, d}, {}};
    ++live;
    return 0;
}
int destroy(void *given, char kind) {
    auto *object = static_cast<Object *>(given);
    if (!object || object->kind != kind) return 7;
    object->kind = 0;
    delete object;
    --live;
    return 0;
}
int set(void *given, char kind, int attribute, const void *value, size_t size, std::map<int, size_t> sizes) {
    auto *object = static_cast<Object *>(given);
    if (object->kind != kind || !sizes.count(attribute) || sizes[attribute] != size) return 7;
    const char *bytes = static_cast<const char *>(value);
    object->attributes[attribute] = {bytes, bytes + size};
    return 0;
}
uint64_t alignment(const void *address) {
    const auto number = reinterpret_cast<uintptr_t>(address);
    return number & -number;
}
// Into how many parts sums are cut, each of them rounded: whatever is known of the operands may decide that.
uint64_t parts_for(const std::vector<const Object *> &layouts) {
    uint64_t digest = 7;
    for (const Object *each : layouts)
        for (const int64_t number : {each->leading(), each->batch(), each->stride()}) digest = digest * 31 + number;
    return 1 + digest % 3;
}
const unsigned SUMS = 512; // BGRADB: the sums of B over k are written in place of a bias
bool has_bias(unsigned epilogue) { return epilogue & 4; }

int refusal(const Object &o, const Object &a, const Object &b, const Object &c, const Object &d) {
    const int transa = o.at<int32_t>(3, 0), transb = o.at<int32_t>(4, 0);
    const int64_t m = d.rows(), n = d.columns(), k = transa ? a.rows() : a.columns();
    if ((transa ? a.columns() : a.rows()) != m || (transb ? b.rows() : b.columns()) != n) return 7;
    if ((transb ? b.columns() : b.rows()) != k || c.rows() != m || c.columns() != n) return 7;
    for (const Object *each : {&a, &b, &c, &d})
        if (each->leading() < each->rows() || each->batch() != d.batch()) return 7;
    const auto epilogue = o.at<uint32_t>(7, 1);
    const bool known = epilogue == 1 || epilogue == 2 || epilogue == 4 || epilogue == 6 ||
                       epilogue == 32 || epilogue == 36 || epilogue == SUMS;
    if (!known || ((has_bias(epilogue) || epilogue == SUMS) && !o.at<const void *>(8, nullptr))) return 7;
    const bool is_double = o.numbers[0] == 70;
    if (is_eight(a.numbers[0]) || is_eight(b.numbers[0])) {
        const bool operands = is_eight(a.numbers[0]) && is_eight(b.numbers[0]) &&
                              (a.numbers[0] == E4M3 || b.numbers[0] == E4M3);
        const bool results = d.numbers[0] == 14 || (d.numbers[0] == 0 && !has_bias(epilogue));
        const bool extents = m % 16 == 0 && n % 16 == 0 && k % 16 == 0 && a.leading() % 16 == 0 && b.leading() % 16 == 0;
        const bool factors = o.at<const void *>(17, nullptr) && o.at<const void *>(18, nullptr);
        const bool sums = transa && !transb && o.numbers[0] == 68 && (epilogue == 1 || epilogue == 4);
        return operands && results && extents && factors && sums ? 0 : 15;
    }
    const bool types = is_double ? a.numbers[0] == 1 && d.numbers[0] == 1 : a.numbers[0] != 1 && d.numbers[0] != 1;
    if (!types || a.numbers[0] != b.numbers[0] || o.numbers[1] != is_double) return 15;
    if (is_double && epilogue != 1) return 15;
    const bool tf32 = o.numbers[0] == 77 && a.numbers[0] == 0;
    return o.numbers[0] == 68 || o.numbers[0] == 70 || tf32 ? 0 : 8;
}
}  // namespace

extern "C" int live_descriptors() { return live; }
extern "C" int asked_choices() { return choices; }
extern "C" int cublasLtGetProperty(int kind, int *value) { *value = 13 + kind; return 0; }
extern "C" int cublasLtCreate(void **created) { *created = &lt_handle; return 0; }
extern "C" int cublasLtDestroy(void *given) { return given == &lt_handle ? 0 : 1; }
extern "C" int cublasLtMatmulDescCreate(void **made, int compute, int scale) { return make(made, 'o', compute, scale); }
extern "C" int cublasLtMatmulDescDestroy(void *given) { return destroy(given, 'o'); }
extern "C" int cublasLtMatmulDescSetAttribute(void *given, int attribute, const void *value, size_t size) {
    return set(given, 'o', attribute, value, size, {{2, 4}, {3, 4}, {4, 4}, {5, 4}, {6, 4}, {7, 4}, {8, 8}, {10, 8}, {17, 8}, {18, 8}});
}
extern "C" int cublasLtMatrixLayoutCreate(void **made, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    return make(made, 'l', type, rows, columns, leading);
}
extern "C" int cublasLtMatrixLayoutDestroy(void *given) { return destroy(given, 'l'); }
extern "C" int cublasLtMatrixLayoutSetAttribute(void *given, int attribute, const void *value, size_t size) {
    return set(given, 'l', attribute, value, size, {{0, 4}, {1, 4}, {2, 8}, {3, 8}, {4, 8}, {5, 4}, {6, 8}});
}
extern "C" int cublasLtMatmulPreferenceCreate(void **made) { return make(made, 'p'); }
extern "C" int cublasLtMatmulPreferenceDestroy(void *given) { return destroy(given, 'p'); }
extern "C" int cublasLtMatmulPreferenceSetAttribute(void *given, int attribute, const void *value, size_t size) {
    return set(given, 'p', attribute, value, size, {{0, 4}, {1, 8}, {3, 4}, {5, 4}, {6, 4}, {7, 4}, {8, 4}, {12, 8}});
}

extern "C" int cublasLtMatmulAlgoGetHeuristic(
    void *given, void *o, void *a, void *b, void *c, void *d, void *p, int requested, Heuristic *found, int *count) {
    const auto &operation = *static_cast<Object *>(o), &preference = *static_cast<Object *>(p);
    *count = 0;
    if (given != &lt_handle) return 1;
    if (requested < 1 || preference.kind != 'p' || operation.kind != 'o') return 7;
    const int refused = refusal(operation, *static_cast<Object *>(a), *static_cast<Object *>(b),
                                *static_cast<Object *>(c), *static_cast<Object *>(d));
    if (refused) return refused;
    ++choices;
    if (preference.at<uint64_t>(1, 0) < NEEDED) return 0;  // nothing found
    Heuristic result = {};
    result.algorithm = {{CHOSEN, NEEDED}};
    for (int i = 0; i < 4; ++i) result.algorithm.words[2 + i] = preference.at<uint32_t>(5 + i, 256);
    result.algorithm.words[6] = alignment(operation.at<const void *>(8, nullptr));
    result.algorithm.words[7] = parts_for({static_cast<Object *>(a), static_cast<Object *>(b), static_cast<Object *>(d)});
    result.workspace = NEEDED;
    *found = result;
    *count = 1;
    return 0;
}

// The algorithm knows how aligned its operands are to be; it takes what lies so, whatever the leading dimensions.
extern "C" int cublasLtMatmulAlgoCheck(
    void *given, void *o, void *a, void *b, void *c, void *d, const Algorithm *algorithm, Heuristic *result) {
    if (given != &lt_handle) return 1;
    if (algorithm->words[0] != CHOSEN) return 7;
    const int refused = refusal(*static_cast<Object *>(o), *static_cast<Object *>(a), *static_cast<Object *>(b),
                                *static_cast<Object *>(c), *static_cast<Object *>(d));
    if (refused) return refused;
    *result = {};
    result->algorithm = *algorithm;
    result->workspace = NEEDED;
    return 0;
}

extern "C" int cublasLtMatmul(
    void *given, void *o, const void *alpha, const void *a_at, void *a_layout, const void *b_at, void *b_layout,
    const void *beta, const void *c_at, void *c_layout, void *d_at, void *d_layout, const Algorithm *algorithm,
    void *space, size_t space_bytes, void *) {
    if (given != &lt_handle) return 1;
    const auto &operation = *static_cast<Object *>(o);
    const auto &a = *static_cast<Object *>(a_layout), &b = *static_cast<Object *>(b_layout);
    const auto &c = *static_cast<Object *>(c_layout), &d = *static_cast<Object *>(d_layout);
    const int refused = refusal(operation, a, b, c, d);
    if (refused) return refused;
    const auto epilogue = operation.at<uint32_t>(7, 1);
    const void *bias = operation.at<const void *>(8, nullptr);
    const uint64_t *chosen = algorithm->words;
    if (chosen[0] != CHOSEN || !space || space_bytes < chosen[1]) return 7;
    const void *places[] = {a_at, b_at, c_at, d_at};
    for (int i = 0; i < 4; ++i)
        if (alignment(places[i]) % chosen[2 + i]) return 7;
    if ((has_bias(epilogue) || epilogue == SUMS) && alignment(bias) % chosen[6]) return 7;
    std::memset(space, 0x5a, chosen[1]);
    const int transa = operation.at<int32_t>(3, 0), transb = operation.at<int32_t>(4, 0);
    const int64_t k = transa ? a.rows() : a.columns();
    const bool is_double = operation.numbers[1] == 1;
    double scale = is_double ? *(const double *)alpha : *(const float *)alpha;
    for (const int attribute : {17, 18})
        if (const auto *factor = operation.at<const float *>(attribute, nullptr)) scale *= *factor;
    const double keep = is_double ? *(const double *)beta : *(const float *)beta;
    for (int64_t p = 0; p < d.batch(); ++p)
        for (int64_t j = 0; j < d.columns(); ++j)
            for (int64_t i = 0; i < d.rows(); ++i) {
                double sum = 0;
                const int64_t part = (k + chosen[7] - 1) / chosen[7];
                for (int64_t l = 0; l < k; ++l) {
                    if (l % part == 0 && !is_double) sum = static_cast<float>(sum);
                    const int64_t ai = transa ? l + i * a.leading() : i + l * a.leading();
                    const int64_t bi = transb ? j + l * b.leading() : l + j * b.leading();
                    sum += get(a_at, a.numbers[0], p * a.stride() + ai) * get(b_at, b.numbers[0], p * b.stride() + bi);
                }
                const int64_t at = i + j * d.leading();
                double x = scale * sum + (keep ? keep * get(c_at, c.numbers[0], p * c.stride() + i + j * c.leading()) : 0);
                if (has_bias(epilogue)) x += get(bias, d.numbers[0], p * operation.at<int64_t>(10, 0) + i);
                if (epilogue & 2) x = x > 0 ? x : 0;
                if (epilogue & 32) x = x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
                put(d_at, d.numbers[0], p * d.stride() + at, x);
            }
    if (epilogue == SUMS)
        for (int64_t j = 0; j < d.columns(); ++j) {
            double sum = 0;
            for (int64_t l = 0; l < k; ++l)
                sum += get(b_at, b.numbers[0], transb ? j + l * b.leading() : l + j * b.leading());
            put(const_cast<void *>(bias), d.numbers[0], j, sum);
        }
    return 0;
}
