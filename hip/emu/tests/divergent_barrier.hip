// The two halves of the block wait at different barriers.
#include <hip/hip_runtime.h>
__global__ void kernel(const int* in, int* out) {
    if (threadIdx.x < 64) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    out[threadIdx.x] = in[threadIdx.x];
}
extern "C" int launch(const int* in, int* out, int, hipStream_t stream) {
    hipLaunchKernelGGL(kernel, dim3(1), dim3(128), 0, stream, in, out);
    return hipGetLastError();
}
