/** Products of row-major float32 matrices: of a BLAS opened at run time, or our own. */
#pragma once

#include <cstddef>

namespace uform::ram {

class backend;

/**
 *  Products on the calling thread alone, so that tasks may call them. Small ones are ours in any case: there a call
 * into BLAS costs more than the work. The choice depends on the extents only.
 */
class gemm {
public:
    /** @param blas_path A shared library with the CBLAS interface and 32-bit integers, or null for our own. */
    explicit gemm(char const* blas_path);
    ~gemm();
    gemm(gemm const&) = delete;
    gemm& operator=(gemm const&) = delete;

    /** "openblas", or "plain" for our own. */
    char const* name() const noexcept;

    /** c[m, n] = alpha a[m, k] b[n, k]^T + beta c. The strides are between rows; with beta 0 `c` is not read. */
    void nt(std::size_t m, std::size_t n, std::size_t k, float alpha, float const* a, std::size_t a_stride,
            float const* b, std::size_t b_stride, float beta, float* c, std::size_t c_stride) const;

    /** c[m, n] = alpha a[m, k] b[k, n] + beta c. */
    void nn(std::size_t m, std::size_t n, std::size_t k, float alpha, float const* a, std::size_t a_stride,
            float const* b, std::size_t b_stride, float beta, float* c, std::size_t c_stride) const;

    /** c[m, n] = alpha a[k, m]^T b[k, n] + beta c. */
    void tn(std::size_t m, std::size_t n, std::size_t k, float alpha, float const* a, std::size_t a_stride,
            float const* b, std::size_t b_stride, float beta, float* c, std::size_t c_stride) const;

private:
    enum class transposed { none, second, first };
    using cblas_sgemm_t = void (*)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                                   float const* a, int a_stride, float const* b, int b_stride, float beta, float* c,
                                   int c_stride);

    void multiply(transposed which, std::size_t m, std::size_t n, std::size_t k, float alpha, float const* a,
                  std::size_t a_stride, float const* b, std::size_t b_stride, float beta, float* c,
                  std::size_t c_stride) const;

    void* library_ = nullptr;
    cblas_sgemm_t cblas_sgemm_ = nullptr;
};

/** Rows of a tall product that one task takes: few enough to share, enough to feed a GEMM. */
inline constexpr std::size_t product_rows_k = 256;

/** y[rows, outs] = x[rows, ins] weight[outs, ins]^T, on the worker threads; everything lies densely. */
void linear_forward(backend const& backend, std::size_t rows, std::size_t outs, std::size_t ins, float const* x,
                    float const* weight, float* y);

/** dx[rows, ins] = dy[rows, outs] weight[outs, ins]. */
void linear_backward(backend const& backend, std::size_t rows, std::size_t outs, std::size_t ins, float const* dy,
                     float const* weight, float* dx);

/** dw[outs, ins] += dy[rows, outs]^T x[rows, ins]. Every value of `dw` sums its rows in the same order. */
void linear_weight_gradient(backend const& backend, std::size_t rows, std::size_t outs, std::size_t ins,
                            float const* dy, float const* x, float* dw);

} // namespace uform::ram
