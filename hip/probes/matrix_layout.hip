// Raw registers through the matrix instruction of this build, one product a wave and block: what
// derives and checks the lane layout (src/probe/layout.rs) knows nothing of places in a matrix.
//
//   a, b [products, 64, 4] bf16, c, d [products, 64, 4] f32: the registers of each lane.
//   family [1]: 0 no matrix instruction (d is 0), 1 MFMA, 2 MMAC.
#include "assay_matrix.h"

namespace {

__global__ __launch_bounds__(64) void matrix_layout_kernel(
    const bf16_bits* __restrict__ a, const bf16_bits* __restrict__ b, const float* __restrict__ c,
    float* __restrict__ d, int* __restrict__ family) {
    const size_t first = (static_cast<size_t>(blockIdx.x) * 64 + threadIdx.x) * 4;
#ifdef ASSAY_MATRIX
    matrix_bf16x4 a_part, b_part;
    matrix_f32x4 c_part;
    for (int i = 0; i < 4; ++i) {
        a_part[i] = a[first + i];
        b_part[i] = b[first + i];
        c_part[i] = c[first + i];
    }
    const matrix_f32x4 d_part = matrix_multiply_add(a_part, b_part, c_part);
    for (int i = 0; i < 4; ++i) d[first + i] = d_part[i];
#else
    for (int i = 0; i < 4; ++i) d[first + i] = 0.0f;
#endif
#if defined(ASSAY_MATRIX_MFMA)
    const int own = 1;
#elif defined(ASSAY_MATRIX_MMAC)
    const int own = 2;
#else
    const int own = 0;
#endif
    if (blockIdx.x == 0 && threadIdx.x == 0) *family = own;
}

} // namespace

// hipErrorInvalidValue unless products is at least 1.
extern "C" int matrix_layout(const uint16_t* a, const uint16_t* b, const float* c, float* d,
                             int32_t* family, int products, hipStream_t stream) {
    if (products < 1) return hipErrorInvalidValue;
    hipLaunchKernelGGL(matrix_layout_kernel, dim3(products), dim3(64), 0, stream, a, b, c, d, family);
    return hipGetLastError();
}
