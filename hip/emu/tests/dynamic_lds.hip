// Reverses through n ints of dynamic LDS; clean if the launch asks for that many.
#include <hip/hip_runtime.h>
__global__ void kernel(const int* in, int* out) {
    HIP_DYNAMIC_SHARED(int, tile)
    tile[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}
extern "C" int launch(const int* in, int* out, int n, hipStream_t stream) {
    hipLaunchKernelGGL(kernel, dim3(1), dim3(128), n * sizeof(int), stream, in, out);
    return hipGetLastError();
}
