// The lower half of the wave reads from the upper half, which is not there.
#include <hip/hip_runtime.h>
__global__ void kernel(const int* in, int* out) {
    int value = in[threadIdx.x] + 1;
    if (threadIdx.x < 32) value += __shfl_xor(value, 32);
    out[threadIdx.x] = value;
}
extern "C" int launch(const int* in, int* out, int, hipStream_t stream) {
    hipLaunchKernelGGL(kernel, dim3(1), dim3(64), 0, stream, in, out);
    return hipGetLastError();
}
