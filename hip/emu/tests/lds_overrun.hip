// The column index runs one past the row: column 16 of a row is column 0 of the next.
#include <hip/hip_runtime.h>
__global__ void kernel(const int* in, int* out) {
    __shared__ int rows[8][16];
    const int row = threadIdx.x / 16, column = threadIdx.x % 16;
    rows[row][column] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = row < 7 ? rows[row][column + 1] : 0;
}
extern "C" int launch(const int* in, int* out, int, hipStream_t stream) {
    hipLaunchKernelGGL(kernel, dim3(1), dim3(128), 0, stream, in, out);
    return hipGetLastError();
}
