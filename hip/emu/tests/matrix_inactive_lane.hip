// One lane of the wave leaves a matrix instruction out.
#define ASSAY_EMU_MATRIX_MMAC
#include "assay_matrix.h"
__global__ void kernel(const int* in, float* out) {
    const short one = 0x3f80;
    const matrix_bf16x4 ones = {one, one, one, one};
    matrix_f32x4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    if (threadIdx.x != 5) sum = matrix_multiply_add(ones, ones, sum);
    out[threadIdx.x] = sum[0] + in[0];
}
extern "C" int launch(const int* in, float* out, int, hipStream_t stream) {
    hipLaunchKernelGGL(kernel, dim3(1), dim3(64), 0, stream, in, out);
    return hipGetLastError();
}
