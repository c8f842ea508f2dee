/**
 *  Linear heads over rows of the hidden states. A tile of predictions becomes a tile of their gradients while it is in
 *  registers, so that no prediction is in memory; two more products then give the gradients of rows and weights.
 */
#pragma once

#include "vram/elementwise.cuh"
#include "vram/launch.cuh"
#include "vram/row_shares.cuh"
#include "vram/values.cuh"

namespace uform::vram {

/** Rows whose gradients of predictions are in memory at a time. */
inline constexpr std::uint32_t head_panel_rows_k = 65536;
/** Most shares of a panel's rows whose parts of the weights' gradient are summed apart, then in order. */
inline constexpr unsigned head_splits_k = 32;
/** Rows and columns of the tiles of products, but for those that hold all bytes. */
inline constexpr unsigned head_tile_k = 128;
/** Outputs of the head of bytes. */
inline constexpr std::uint32_t bytes_k = 256;

/** A head over the rows of one panel. */
struct head_panel {
    std::uint32_t hidden;        // a multiple of 8
    std::uint32_t outputs;       // predictions of a row
    std::uint32_t stride;        // of `predictions`, a multiple of 8
    row_shares shares;           // the panel's rows, among the head's own, and their shares in the weights' gradient
    std::uint32_t const* before; // rows of `rows` before the head's first, or null: none
    __nv_bfloat16 const* rows;   // [before + count, hidden]
    __nv_bfloat16 const* weight; // [outputs, hidden]
    __nv_bfloat16* predictions;  // [panel rows, stride] their gradients
    float* parts;                // [splits, outputs, hidden] of the weights' gradient
    unsigned* parts_used;        // how many of them there are
    float* rows_gradient;        // as `rows`
    float* weight_gradient;      // [outputs, hidden] added to

    /** The panel's first row among `rows`, and its first value. */
    __device__ std::size_t first_row() const { return std::size_t(shares.first) + (before ? *before : 0); }
    __device__ std::size_t begin() const { return first_row() * hidden; }
};

/** The parts of a head's workspace. */
struct head_workspace {
    __nv_bfloat16* predictions;
    float* parts;
    unsigned* parts_used;
    double* losses; // [rows / 64 or more] by tile of rows, or of rows and outputs
    float2* values; // [rows] mean and inverse deviation of what is predicted, where it is normalised

    static constexpr std::uint32_t stride_of(std::uint32_t outputs) {
        return (outputs + lanes_k - 1) / lanes_k * lanes_k;
    }

    head_workspace(void* base, std::uint32_t hidden, std::uint32_t outputs, std::uint32_t rows, std::size_t tiles) {
        workspace_parts given(base);
        predictions = given.take<__nv_bfloat16>(std::size_t(panel_rows(rows)) * stride_of(outputs));
        parts = given.take<float>(std::size_t(head_splits_k) * outputs * hidden);
        parts_used = given.take<unsigned>(1);
        losses = given.take<double>(tiles);
        values = given.take<float2>(rows);
    }

    static std::size_t bytes(std::uint32_t hidden, std::uint32_t outputs, std::uint32_t rows, std::size_t tiles) {
        return part_bytes<__nv_bfloat16>(std::size_t(panel_rows(rows)) * stride_of(outputs)) +
               part_bytes<float>(std::size_t(head_splits_k) * outputs * hidden) + part_bytes<unsigned>(1) +
               part_bytes<double>(tiles) + part_bytes<float2>(rows);
    }

private:
    static std::uint32_t panel_rows(std::uint32_t rows) { return rows < head_panel_rows_k ? rows : head_panel_rows_k; }
};

/** The gradient's factor and where predictions' gradients are wanted. */
struct head_scale {
    float const *scale, *weight; // device-side
    bool backward;

    __device__ float factor() const { return *scale * *weight; }
};

/** Raw values of covered patches, and what normalises each patch. */
struct patch_targets {
    std::uint32_t element;        // uform_element_t
    void const* values;           // [*, width]
    std::uint32_t const* patches; // [count] the patch of each covered row
    std::uint32_t width;
    value_scale scale;
    float2 const* measures; // [count] mean and inverse deviation
};

/** Kernels over tiles of one generation of products, for the rows of a panel. */
struct head_family {
    /** Rows of a tile of `score_bytes`, which leaves a loss each; `score_patches` does so by `head_tile_k` squared. */
    unsigned bytes_rows;
    /** Cross-entropy of bytes; their predictions' gradients where wanted. */
    void (*score_bytes)(stream const&, head_panel const&, std::uint32_t rows, std::uint8_t const* targets,
                        head_scale const&, double* losses);
    /** Squared errors of patches, mean over outputs; their predictions' gradients where wanted. */
    void (*score_patches)(stream const&, head_panel const&, std::uint32_t rows, patch_targets const&, head_scale const&,
                          double* losses);
    /** rows_gradient = predictions weight, and parts = predictions^T rows by shares of the rows: those wanted. */
    void (*multiply_gradients)(stream const&, head_panel const&, std::uint32_t rows);
};

extern head_family const mma_heads_k; // heads_mma.cu
#if UFORM_WITH_SM90
extern head_family const wgmma_heads_k; // heads_sm90.cu
#endif

inline constexpr unsigned loss_threads_k = 256;

/** The sum of losses in a fixed order, by a block of `loss_threads_k`. @param scratch [warps] in shared memory. */
__device__ __forceinline__ double sum_losses(double const* losses, std::size_t count, double* scratch) {
    constexpr unsigned at_once = 8; // that a thread loads at a time; past the last one that one again
    double sum = 0;
    for (std::size_t begin = threadIdx.x; begin < count; begin += at_once * loss_threads_k) {
        double loaded[at_once];
#pragma unroll
        for (unsigned i = 0; i != at_once; ++i)
            loaded[i] = losses[min(begin + i * loss_threads_k, count - 1)];
#pragma unroll
        for (unsigned i = 0; i != at_once; ++i)
            sum += begin + i * loss_threads_k < count ? loaded[i] : 0;
    }
    return sum_block(sum, scratch);
}

} // namespace uform::vram
