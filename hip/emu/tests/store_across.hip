// Copies 128 ints and then stores two at once from index n.
#include <hip/hip_runtime.h>
__global__ void kernel(const int* in, int* out, int n) {
    out[threadIdx.x] = in[threadIdx.x];
    if (threadIdx.x == 3) *reinterpret_cast<long long*>(out + n) = in[3];
}
extern "C" int launch(const int* in, int* out, int n, hipStream_t stream) {
    hipLaunchKernelGGL(kernel, dim3(1), dim3(128), 0, stream, in, out, n);
    return hipGetLastError();
}
