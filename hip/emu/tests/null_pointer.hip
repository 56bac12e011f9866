// Reads through a null pointer.
#include <hip/hip_runtime.h>
__global__ void kernel(const int* nothing, int* out) { out[threadIdx.x] = nothing[threadIdx.x]; }
extern "C" int launch(const int*, int* out, int, hipStream_t stream) {
    const int* nothing = nullptr;
    hipLaunchKernelGGL(kernel, dim3(1), dim3(128), 0, stream, nothing, out);
    return hipGetLastError();
}
