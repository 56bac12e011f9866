// probe_sgemm: y[m, n] = sum_k x[m, k] w[n, k] in f32, one result a thread, by fused multiply-add in
// the order of k. What an f32 product has to look like to the probes of GEMMs.
#include <hip/hip_runtime.h>

namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float multiply_add(float x, float w, float sum) {
    return fmaf(x, w, sum);
}

__global__ __launch_bounds__(kThreads) void sgemm_kernel(const float* x, const float* w, float* y,
                                                         int m, int n, int k) {
    const int i = blockIdx.x * kThreads + threadIdx.x;
    if (i >= m * n) return;
    const float* row = x + static_cast<size_t>(i / n) * k;
    const float* column = w + static_cast<size_t>(i % n) * k;
    float sum = 0.0f;
    for (int j = 0; j < k; ++j) sum = multiply_add(row[j], column[j], sum);
    y[i] = sum;
}

} // namespace

extern "C" int probe_sgemm(const float* x, const float* w, float* y, int m, int n, int k,
                           hipStream_t stream) {
    if (m < 1 || n < 1 || k < 1 || m > 0x7fffffff / n - kThreads) return hipErrorInvalidValue;
    hipLaunchKernelGGL(sgemm_kernel, dim3((m * n + kThreads - 1) / kThreads), dim3(kThreads), 0,
                       stream, x, w, y, m, n, k);
    return hipGetLastError();
}
