// Copies 128 ints, the last of them from index n.
#include <hip/hip_runtime.h>
__global__ void kernel(const int* in, int* out, int n) {
    out[threadIdx.x] = in[threadIdx.x == 127 ? n : static_cast<int>(threadIdx.x)];
}
extern "C" int launch(const int* in, int* out, int n, hipStream_t stream) {
    hipLaunchKernelGGL(kernel, dim3(1), dim3(128), 0, stream, in, out, n);
    return hipGetLastError();
}
