#include "ram/gemm.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>

#include <dlfcn.h>

#include "core/operations.h"
#include "ram/backend.h"
#include "ram/elementwise.h"

namespace uform::ram {

namespace {

// CBLAS's own constants.
constexpr int cblas_row_major_k = 101;
constexpr int cblas_plain_k = 111;
constexpr int cblas_transposed_k = 112;

// Below so many products our own loops are done before BLAS has begun.
constexpr std::size_t small_product_k = 24 * 24 * 24;

// Our own GEMM multiplies tiles of 6 x 8, held in registers, from packed blocks that fit the first two caches.
constexpr std::size_t tile_rows_k = 6;
constexpr std::size_t tile_columns_k = 8;
constexpr std::size_t block_rows_k = 48;
constexpr std::size_t block_columns_k = 64;
constexpr std::size_t block_depth_k = 256;

constexpr std::size_t blocks_of(std::size_t count, std::size_t size) noexcept { return (count + size - 1) / size; }

/** The part of a weight's gradient that one task takes: as large as leaves a few for every thread. */
struct gradient_block {
    std::size_t outs, ins;

    static gradient_block of(std::size_t outs, std::size_t ins) noexcept {
        constexpr std::size_t enough_tasks = 8;
        for (std::size_t size : {256, 128, 64})
            if (blocks_of(outs, size) * blocks_of(ins, size) >= enough_tasks)
                return {size, size};
        return {32, 64};
    }
};

/** An operand as it is indexed in the product: element (i, j) of a, or of b, whichever way it lies in memory. */
struct operand {
    float const* values;
    std::size_t row_step, column_step;

    float const* at(std::size_t row, std::size_t column) const noexcept {
        return values + row * row_step + column * column_step;
    }
};

/** Packs `wide` lines of the operand into panels of `panel_ak` lines, each depth by depth; missing lines are zero. */
template <std::size_t panel_ak>
void pack(float const* values, std::size_t line_step, std::size_t depth_step, std::size_t wide, std::size_t deep,
          float* __restrict to) noexcept {
    for (std::size_t first = 0; first < wide; first += panel_ak, to += panel_ak * deep) {
        std::size_t const lines = std::min(panel_ak, wide - first);
        float const* const from = values + first * line_step;
        if (lines == panel_ak && line_step == 1) {
            for (std::size_t d = 0; d != deep; ++d)
                std::memcpy(to + d * panel_ak, from + d * depth_step, panel_ak * sizeof(float));
            continue;
        }
        if (lines != panel_ak)
            std::memset(to, 0, panel_ak * deep * sizeof(float));
        for (std::size_t line = 0; line != lines; ++line)
            for (std::size_t d = 0; d != deep; ++d)
                to[d * panel_ak + line] = from[line * line_step + d * depth_step];
    }
}

/** One tile of products of two packed panels. */
void multiply_tile(std::size_t deep, float const* a, float const* b, float tile[tile_rows_k][tile_columns_k]) noexcept {
    lanes_t sums[tile_rows_k][2] = {};
    for (std::size_t d = 0; d != deep; ++d, a += tile_rows_k, b += tile_columns_k) {
        lanes_t const left = load_lanes(b), right = load_lanes(b + 4);
        for (std::size_t row = 0; row != tile_rows_k; ++row) {
            sums[row][0] += a[row] * left;
            sums[row][1] += a[row] * right;
        }
    }
    std::memcpy(tile, sums, sizeof sums);
}

/** Multiplies two packed blocks, tile by tile, and adds `alpha` times the product to `c`. */
void multiply_blocks(std::size_t rows, std::size_t columns, std::size_t deep, float alpha, float const* a,
                     float const* b, float* c, std::size_t c_stride) noexcept {
    float tile[tile_rows_k][tile_columns_k];
    for (std::size_t column = 0; column < columns; column += tile_columns_k)
        for (std::size_t row = 0; row < rows; row += tile_rows_k) {
            multiply_tile(deep, a + row * deep, b + column * deep, tile);
            std::size_t const height = std::min(tile_rows_k, rows - row);
            std::size_t const width = std::min(tile_columns_k, columns - column);
            for (std::size_t i = 0; i != height; ++i)
                add_scaled(c + (row + i) * c_stride + column, tile[i], alpha, width);
        }
}

/** c *= beta; zero does not read it. */
void scale_rows(std::size_t m, std::size_t n, float beta, float* c, std::size_t c_stride) noexcept {
    if (beta == 1)
        return;
    for (std::size_t row = 0; row != m; ++row) {
        float* const values = c + row * c_stride;
        if (beta == 0)
            std::fill_n(values, n, 0.f);
        else
            for (std::size_t i = 0; i != n; ++i)
                values[i] *= beta;
    }
}

void multiply_plainly(std::size_t m, std::size_t n, std::size_t k, float alpha, operand a, operand b, float beta,
                      float* c, std::size_t c_stride) noexcept {
    alignas(alignment_k) float packed_a[block_rows_k * block_depth_k];
    alignas(alignment_k) float packed_b[block_columns_k * block_depth_k];
    scale_rows(m, n, beta, c, c_stride);
    for (std::size_t depth = 0; depth < k; depth += block_depth_k) {
        std::size_t const deep = std::min(block_depth_k, k - depth);
        for (std::size_t column = 0; column < n; column += block_columns_k) {
            std::size_t const columns = std::min(block_columns_k, n - column);
            pack<tile_columns_k>(b.at(depth, column), b.column_step, b.row_step, columns, deep, packed_b);
            for (std::size_t row = 0; row < m; row += block_rows_k) {
                std::size_t const rows = std::min(block_rows_k, m - row);
                pack<tile_rows_k>(a.at(row, depth), a.row_step, a.column_step, rows, deep, packed_a);
                multiply_blocks(rows, columns, deep, alpha, packed_a, packed_b, c + row * c_stride + column, c_stride);
            }
        }
    }
}

/** The first of the symbols that the library has, or null. */
template <typename function_at> function_at find_symbol(void* library, std::initializer_list<char const*> names) {
    for (char const* name : names)
        if (void* const symbol = dlsym(library, name))
            return reinterpret_cast<function_at>(symbol);
    return nullptr;
}

} // namespace

gemm::gemm(char const* blas_path) {
#if !defined(UFORM_SANITIZED) // an instrumented program learns nothing from a foreign BLAS
    if (blas_path == nullptr)
        return;
    library_ = dlopen(blas_path, RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) {
        char const* const reason = dlerror();
        fail(uform_status_file_k, "blas_path: ", blas_path, ": ", reason ? reason : "it can not be opened");
    }
    cblas_sgemm_ = find_symbol<cblas_sgemm_t>(library_, {"scipy_cblas_sgemm", "cblas_sgemm"});
    if (cblas_sgemm_ == nullptr) {
        dlclose(library_);
        fail(uform_status_file_k, "blas_path: ", blas_path, ": it has no cblas_sgemm");
    }
    // Our own threads share the work out, so a call has one.
    using set_threads_t = void (*)(int);
    if (auto const set_threads =
            find_symbol<set_threads_t>(library_, {"scipy_openblas_set_num_threads", "openblas_set_num_threads"}))
        set_threads(1);
#else
    (void)blas_path;
#endif
}

gemm::~gemm() {
    // The library stays loaded: its own threads may still run its code.
}

char const* gemm::name() const noexcept { return cblas_sgemm_ ? "openblas" : "plain"; }

void gemm::multiply(transposed which, std::size_t m, std::size_t n, std::size_t k, float alpha, float const* a,
                    std::size_t a_stride, float const* b, std::size_t b_stride, float beta, float* c,
                    std::size_t c_stride) const {
    if (m == 0 || n == 0)
        return;
    if (cblas_sgemm_ && m * n * k > small_product_k) {
        cblas_sgemm_(cblas_row_major_k, which == transposed::first ? cblas_transposed_k : cblas_plain_k,
                     which == transposed::second ? cblas_transposed_k : cblas_plain_k, static_cast<int>(m),
                     static_cast<int>(n), static_cast<int>(k), alpha, a, static_cast<int>(a_stride), b,
                     static_cast<int>(b_stride), beta, c, static_cast<int>(c_stride));
        return;
    }
    operand const first = which == transposed::first ? operand{a, 1, a_stride} : operand{a, a_stride, 1};
    operand const second = which == transposed::second ? operand{b, 1, b_stride} : operand{b, b_stride, 1};
    multiply_plainly(m, n, k, alpha, first, second, beta, c, c_stride);
}

void gemm::nt(std::size_t m, std::size_t n, std::size_t k, float alpha, float const* a, std::size_t a_stride,
              float const* b, std::size_t b_stride, float beta, float* c, std::size_t c_stride) const {
    multiply(transposed::second, m, n, k, alpha, a, a_stride, b, b_stride, beta, c, c_stride);
}

void gemm::nn(std::size_t m, std::size_t n, std::size_t k, float alpha, float const* a, std::size_t a_stride,
              float const* b, std::size_t b_stride, float beta, float* c, std::size_t c_stride) const {
    multiply(transposed::none, m, n, k, alpha, a, a_stride, b, b_stride, beta, c, c_stride);
}

void gemm::tn(std::size_t m, std::size_t n, std::size_t k, float alpha, float const* a, std::size_t a_stride,
              float const* b, std::size_t b_stride, float beta, float* c, std::size_t c_stride) const {
    multiply(transposed::first, m, n, k, alpha, a, a_stride, b, b_stride, beta, c, c_stride);
}

void linear_forward(backend const& backend, std::size_t rows, std::size_t outs, std::size_t ins, float const* x,
                    float const* weight, float* y) {
    backend.parallel_chunks(rows, product_rows_k, [&](std::size_t begin, std::size_t end) {
        backend.gemm().nt(end - begin, outs, ins, 1, x + begin * ins, ins, weight, ins, 0, y + begin * outs, outs);
    });
}

void linear_backward(backend const& backend, std::size_t rows, std::size_t outs, std::size_t ins, float const* dy,
                     float const* weight, float* dx) {
    backend.parallel_chunks(rows, product_rows_k, [&](std::size_t begin, std::size_t end) {
        backend.gemm().nn(end - begin, ins, outs, 1, dy + begin * outs, outs, weight, ins, 0, dx + begin * ins, ins);
    });
}

void linear_weight_gradient(backend const& backend, std::size_t rows, std::size_t outs, std::size_t ins,
                            float const* dy, float const* x, float* dw) {
    if (rows == 0)
        return;
    gradient_block const block = gradient_block::of(outs, ins);
    std::size_t const across = blocks_of(ins, block.ins), down = blocks_of(outs, block.outs);
    backend.parallel_for(across * down, [&](std::size_t task) {
        std::size_t const out = task / across * block.outs, in = task % across * block.ins;
        backend.gemm().tn(std::min(block.outs, outs - out), std::min(block.ins, ins - in), rows, 1, dy + out, outs,
                          x + in, ins, 1, dw + out * ins + in, ins);
    });
}

} // namespace uform::ram
