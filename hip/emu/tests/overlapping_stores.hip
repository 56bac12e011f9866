// Tiles of 36 at a stride of 32: neighbouring blocks write four elements twice.
#include <hip/hip_runtime.h>
__global__ void kernel(const int* in, int* out) {
    const int i = blockIdx.x * 32 + threadIdx.x;
    if (i < 128) out[i] = in[i];
}
extern "C" int launch(const int* in, int* out, int, hipStream_t stream) {
    hipLaunchKernelGGL(kernel, dim3(4), dim3(36), 0, stream, in, out);
    return hipGetLastError();
}
