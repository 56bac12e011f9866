// Recurses without end.
#include <hip/hip_runtime.h>
__device__ __noinline__ int descend(volatile int* at, int depth) {
    volatile int local[64];
    local[depth % 64] = depth;
    return descend(local, depth + 1) + local[0] + at[0];
}
__global__ void kernel(int* out) {
    volatile int local = 0;
    out[threadIdx.x] = descend(&local, 0);
}
extern "C" int launch(const int*, int* out, int, hipStream_t stream) {
    hipLaunchKernelGGL(kernel, dim3(1), dim3(64), 0, stream, out);
    return hipGetLastError();
}
