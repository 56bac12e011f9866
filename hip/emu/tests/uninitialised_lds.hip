// Only half of the tile is written before all of it is read.
#include <hip/hip_runtime.h>
__global__ void kernel(const int* in, int* out) {
    __shared__ int tile[128];
    if (threadIdx.x < 64) tile[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x];
}
extern "C" int launch(const int* in, int* out, int, hipStream_t stream) {
    hipLaunchKernelGGL(kernel, dim3(1), dim3(128), 0, stream, in, out);
    return hipGetLastError();
}
