// One function a block over 128 floats: expf, exp2f, rsqrtf, a product that may be subnormal.
#include <hip/hip_runtime.h>
__global__ void kernel(const float* in, float* out) {
    const float x = in[threadIdx.x];
    float y = 0.0f;
    if (blockIdx.x == 0) y = expf(x);
    if (blockIdx.x == 1) y = exp2f(x);
    if (blockIdx.x == 2) y = rsqrtf(x);
    if (blockIdx.x == 3) y = x * 1e-38f;
    out[blockIdx.x * 128 + threadIdx.x] = y;
}
extern "C" int launch(const float* in, float* out, int, hipStream_t stream) {
    hipLaunchKernelGGL(kernel, dim3(4), dim3(128), 0, stream, in, out);
    return hipGetLastError();
}
