// Overwrites the tile while other waves may still read it: the second barrier is missing.
#include <hip/hip_runtime.h>
__global__ void kernel(const int* in, int* out) {
    __shared__ int tile[128];
    int sum = 0;
    for (int round = 0; round < 2; ++round) {
        tile[threadIdx.x] = in[threadIdx.x] + round;
        __syncthreads();
        sum += tile[0];
    }
    out[threadIdx.x] = sum;
}
extern "C" int launch(const int* in, int* out, int, hipStream_t stream) {
    hipLaunchKernelGGL(kernel, dim3(1), dim3(128), 0, stream, in, out);
    return hipGetLastError();
}
