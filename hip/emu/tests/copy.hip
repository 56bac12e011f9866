// Copies the first n ints, 32 a block: clean if n is the size of the output.
#include <hip/hip_runtime.h>
__global__ void kernel(const int* in, int* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i];
}
extern "C" int launch(const int* in, int* out, int n, hipStream_t stream) {
    if (n < 1) return hipErrorInvalidValue;
    hipLaunchKernelGGL(kernel, dim3((n + 31) / 32), dim3(32), 0, stream, in, out, n);
    return hipGetLastError();
}
