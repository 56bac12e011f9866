// Block 1 never ends.
#include <hip/hip_runtime.h>
__global__ void kernel(const int* in, int* out) {
    volatile const int* flag = in;
    while (blockIdx.x == 1 && *flag == 0) {
    }
    out[threadIdx.x] = in[threadIdx.x];
}
extern "C" int launch(const int* in, int* out, int, hipStream_t stream) {
    hipLaunchKernelGGL(kernel, dim3(2), dim3(64), 0, stream, in, out);
    return hipGetLastError();
}
