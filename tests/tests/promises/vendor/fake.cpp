// The entry points of rocBLAS and hipBLASLt that assay calls, on the CPU and the host's memory: a
// stand-in for tests. Written from the public headers, like the caller, but on its own.
//
// TRUNCATE stores bf16 by truncation; TF32 multiplies in 11 bits; STATUS is what every product answers;
// SHORT leaves the last result unwritten; NO_ALGORITHM finds none.
#include <cstdint>
#include <cstring>

#ifndef STATUS
#define STATUS 0
#endif

namespace {

float widen(uint16_t h) {
    const uint32_t bits = static_cast<uint32_t>(h) << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

uint16_t narrow(float f) {
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    if (f != f) return static_cast<uint16_t>(bits >> 16 | 0x40);
#ifdef TRUNCATE
    return static_cast<uint16_t>(bits >> 16);
#else
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
}

float operand(float f) {
#ifdef TF32
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    bits &= 0xffffe000u;
    std::memcpy(&f, &bits, 4);
#endif
    return f;
}

// D (m x n, column-major) = A^T B, A k x m and B k x n, leading dimensions given.
template <class T, class Load, class Store>
void product(int m, int n, int k, const T* a, int64_t lda, const T* b, int64_t ldb, T* d,
             int64_t ldd, Load load, Store store) {
    for (int j = 0; j < n; ++j)
        for (int i = 0; i < m; ++i) {
#ifdef SHORT
            if (i == m - 1 && j == n - 1) continue;
#endif
            float sum = 0.0f;
            for (int l = 0; l < k; ++l)
                sum = __builtin_fmaf(operand(load(a[l + i * lda])), operand(load(b[l + j * ldb])), sum);
            d[i + j * ldd] = store(sum);
        }
}

void product_bf16(int m, int n, int k, const void* a, int64_t lda, const void* b, int64_t ldb,
                  void* d, int64_t ldd) {
    product(m, n, k, static_cast<const uint16_t*>(a), lda, static_cast<const uint16_t*>(b), ldb,
            static_cast<uint16_t*>(d), ldd, widen, narrow);
}

void product_f32(int m, int n, int k, const void* a, int64_t lda, const void* b, int64_t ldb,
                 void* d, int64_t ldd) {
    const auto same = [](float f) { return f; };
    product(m, n, k, static_cast<const float*>(a), lda, static_cast<const float*>(b), ldb,
            static_cast<float*>(d), ldd, same, same);
}

constexpr int kInvalidValue = 11; // of rocblas_status
int handle;

struct Layout {
    int type;
    uint64_t rows, columns;
    int64_t ld;
};
struct Description {
    int compute, scale, trans_a;
};
struct Preference {
    uint64_t workspace;
};
struct Heuristic {
    uint8_t data[16];
    size_t max_workspace, workspace;
    int state;
    float waves;
    int reserved[4];
};

} // namespace

extern "C" {

int rocblas_create_handle(void** out) {
    *out = &handle;
    return 0;
}
int rocblas_destroy_handle(void* h) { return h == &handle ? 0 : 1; }
int rocblas_get_version_string_size(size_t* size) {
    *size = sizeof "9.8.7.fake";
    return 0;
}
int rocblas_get_version_string(char* text, size_t size) {
    if (size < sizeof "9.8.7.fake") return 4;
    std::memcpy(text, "9.8.7.fake", sizeof "9.8.7.fake");
    return 0;
}

int rocblas_gemm_ex(void* h, int trans_a, int trans_b, int m, int n, int k, const void* alpha,
                    const void* a, int a_type, int lda, const void* b, int b_type, int ldb,
                    const void* beta, const void* c, int c_type, int ldc, void* d, int d_type,
                    int ldd, int compute, int algo, int, unsigned) {
    if (h != &handle) return 1;
    if (STATUS != 0) return STATUS;
    const bool types = a_type == 168 && b_type == 168 && c_type == 168 && d_type == 168;
    if (trans_a != 112 || trans_b != 111 || !types || compute != 151 || algo != 0 || c != d ||
        ldc != ldd || *static_cast<const float*>(alpha) != 1.0f ||
        *static_cast<const float*>(beta) != 0.0f)
        return kInvalidValue;
    product_bf16(m, n, k, a, lda, b, ldb, d, ldd);
    return 0;
}

#ifndef WITHOUT_SGEMM
int rocblas_sgemm(void* h, int trans_a, int trans_b, int m, int n, int k, const float* alpha,
                  const float* a, int lda, const float* b, int ldb, const float* beta, float* c,
                  int ldc) {
    if (h != &handle) return 1;
    if (STATUS != 0) return STATUS;
    if (trans_a != 112 || trans_b != 111 || *alpha != 1.0f || *beta != 0.0f) return kInvalidValue;
    product_f32(m, n, k, a, lda, b, ldb, c, ldc);
    return 0;
}
#endif

int hipblasLtCreate(void** out) {
    *out = &handle;
    return 0;
}
int hipblasLtDestroy(void* h) { return h == &handle ? 0 : 9; }
int hipblasLtGetVersion(void*, int* version) {
    *version = 1203; // 0.12.3
    return 0;
}
int hipblasLtMatrixLayoutCreate(Layout** out, int type, uint64_t rows, uint64_t columns, int64_t ld) {
    *out = new Layout{type, rows, columns, ld};
    return 0;
}
int hipblasLtMatrixLayoutDestroy(Layout* layout) {
    delete layout;
    return 0;
}
int hipblasLtMatmulDescCreate(Description** out, int compute, int scale) {
    *out = new Description{compute, scale, 111};
    return 0;
}
int hipblasLtMatmulDescDestroy(Description* d) {
    delete d;
    return 0;
}
int hipblasLtMatmulDescSetAttribute(Description* d, int attribute, const void* value, size_t bytes) {
    if (attribute != 0 || bytes != 4) return 3;
    std::memcpy(&d->trans_a, value, 4);
    return 0;
}
int hipblasLtMatmulPreferenceCreate(Preference** out) {
    *out = new Preference{0};
    return 0;
}
int hipblasLtMatmulPreferenceDestroy(Preference* p) {
    delete p;
    return 0;
}
int hipblasLtMatmulPreferenceSetAttribute(Preference* p, int attribute, const void* value,
                                          size_t bytes) {
    if (attribute != 1 || bytes != 8) return 3;
    std::memcpy(&p->workspace, value, 8);
    return 0;
}
int hipblasLtMatmulAlgoGetHeuristic(void*, Description*, Layout*, Layout*, Layout*, Layout*,
                                    Preference* p, int wanted, Heuristic* results, int* returned) {
#ifdef NO_ALGORITHM
    *returned = 0;
#else
    if (wanted != 1) return 3;
    std::memset(results, 0, sizeof *results);
    results->data[3] = 42;
    results->workspace = p->workspace;
    *returned = 1;
#endif
    return 0;
}
int hipblasLtMatmul(void* h, Description* d, const void* alpha, const void* a, Layout* la,
                    const void* b, Layout* lb, const void* beta, const void* c, Layout* lc, void* out,
                    Layout* ld, const Heuristic* algorithm, void* workspace, size_t bytes, void*) {
    if (h != &handle) return 9;
    if (STATUS != 0) return STATUS;
    if (d->compute != 2 || d->scale != 0 || d->trans_a != 112 || algorithm->data[3] != 42 ||
        c != out || lc != ld || la->rows != lb->rows || la->columns != ld->rows ||
        lb->columns != ld->columns || la->type != lb->type || la->type != ld->type ||
        *static_cast<const float*>(alpha) != 1.0f || *static_cast<const float*>(beta) != 0.0f)
        return 3;
    std::memset(workspace, 0x7f, bytes);
    const int m = static_cast<int>(ld->rows), n = static_cast<int>(ld->columns);
    const int k = static_cast<int>(la->rows);
    if (la->type == 14)
        product_bf16(m, n, k, a, la->ld, b, lb->ld, out, ld->ld);
    else if (la->type == 0)
        product_f32(m, n, k, a, la->ld, b, lb->ld, out, ld->ld);
    else
        return 7;
    return 0;
}

} // extern "C"
