// Sums over 8 blocks of 128 threads, through LDS and directly.
#include <hip/hip_runtime.h>
__global__ void kernel(const int* in, int* out) {
    __shared__ int sum;
    __shared__ float float_sum;
    if (threadIdx.x == 0) {
        sum = 0;
        float_sum = 0.0f;
    }
    __syncthreads();
    const int value = in[threadIdx.x];
    atomicAdd(&sum, value);
    atomicAdd(&float_sum, 0.5f);
    __syncthreads();
    if (threadIdx.x != 0) return;
    atomicAdd(&out[0], sum);
    atomicMax(&out[1], sum + static_cast<int>(blockIdx.x));
    atomicMin(reinterpret_cast<unsigned*>(&out[2]), 7u + blockIdx.x);
    atomicAdd(reinterpret_cast<float*>(&out[3]), float_sum);
    atomicCAS(&out[4], 0, 42);
    atomicExch(&out[5], 5);
}
extern "C" int launch(const int* in, int* out, int, hipStream_t stream) {
    hipLaunchKernelGGL(kernel, dim3(8), dim3(128), 0, stream, in, out);
    return hipGetLastError();
}
