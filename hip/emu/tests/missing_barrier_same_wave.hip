// Reads what a neighbour in the same wave wrote, without a barrier.
#include <hip/hip_runtime.h>
__global__ void kernel(const int* in, int* out) {
    __shared__ int tile[64];
    tile[threadIdx.x] = in[threadIdx.x];
    out[threadIdx.x] = tile[63 - threadIdx.x];
}
extern "C" int launch(const int* in, int* out, int, hipStream_t stream) {
    hipLaunchKernelGGL(kernel, dim3(1), dim3(64), 0, stream, in, out);
    return hipGetLastError();
}
