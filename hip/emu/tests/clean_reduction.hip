// A block sum as it should be: shuffles within the waves, LDS between them.
#include <hip/hip_runtime.h>
__global__ void kernel(const int* in, int* out) {
    __shared__ int partial[4];
    int sum = in[threadIdx.x % 128];
    for (int offset = 32; offset > 0; offset /= 2) sum += __shfl_xor(sum, offset);
    if (threadIdx.x % 64 == 0) partial[threadIdx.x / 64] = sum;
    __syncthreads();
    sum = 0;
    for (int wave = 0; wave < 4; ++wave) sum += partial[wave];
    __syncthreads();
    if (threadIdx.x < 32) out[blockIdx.x * 32 + threadIdx.x] = sum + static_cast<int>(blockIdx.x);
}
extern "C" int launch(const int* in, int* out, int, hipStream_t stream) {
    hipLaunchKernelGGL(kernel, dim3(4), dim3(256), 0, stream, in, out);
    return hipGetLastError();
}
