/**
 *  Linear heads over rows of the hidden states. A tile of predictions becomes a tile of their gradients while it is in
 *  registers, so that no prediction is in memory; two more products then give the gradients of rows and weights.
 */
#pragma once

#include "vram/elementwise.cuh"
#include "vram/launch.cuh"
#include "vram/mma_tile.cuh"

namespace uform::vram {

/** Rows whose gradients of predictions are in memory at a time. */
inline constexpr std::uint32_t head_panel_rows_k = 16384;
/** Shares of a panel's rows whose parts of the weights' gradient are summed apart, then in order. */
inline constexpr unsigned head_splits_k = 16;

/** A head over the rows of one panel. */
struct head_panel {
    std::uint32_t hidden;  // a multiple of 8
    std::uint32_t outputs; // predictions of a row
    std::uint32_t stride;  // of `predictions`, a multiple of 8
    std::uint32_t first;   // the panel's first row, among the head's own
    std::uint32_t const* count;
    std::uint32_t const* before; // rows of `rows` before the head's first, or null: none
    __nv_bfloat16 const* rows;   // [before + count, hidden]
    __nv_bfloat16 const* weight; // [outputs, hidden]
    __nv_bfloat16* predictions;  // [panel rows, stride] their gradients
    float* parts;                // [splits, outputs, hidden] of the weights' gradient
    float* rows_gradient;        // as `rows`
    float* weight_gradient;      // [outputs, hidden] added to

    /** Where the panel begins in `rows`. */
    __device__ std::size_t begin() const { return (std::size_t(first) + (before ? *before : 0)) * hidden; }

    /** Rows of the panel that count. */
    __device__ std::uint32_t rows_here() const {
        std::uint32_t const all = *count;
        return all <= first ? 0 : min(all - first, head_panel_rows_k);
    }
};

/** The parts of a head's workspace. */
struct head_workspace {
    __nv_bfloat16* predictions;
    float* parts;
    double* losses; // [rows / 64 or more] by tile of rows, or of rows and outputs
    float2* values; // [rows] mean and inverse deviation of what is predicted, where it is normalised

    static constexpr std::uint32_t stride_of(std::uint32_t outputs) {
        return (outputs + lanes_k - 1) / lanes_k * lanes_k;
    }

    head_workspace(void* base, std::uint32_t hidden, std::uint32_t outputs, std::uint32_t rows, std::size_t tiles) {
        workspace_parts given(base);
        predictions = given.take<__nv_bfloat16>(std::size_t(panel_rows(rows)) * stride_of(outputs));
        parts = given.take<float>(std::size_t(head_splits_k) * outputs * hidden);
        losses = given.take<double>(tiles);
        values = given.take<float2>(rows);
    }

    static std::size_t bytes(std::uint32_t hidden, std::uint32_t outputs, std::uint32_t rows, std::size_t tiles) {
        return part_bytes<__nv_bfloat16>(std::size_t(panel_rows(rows)) * stride_of(outputs)) +
               part_bytes<float>(std::size_t(head_splits_k) * outputs * hidden) + part_bytes<double>(tiles) +
               part_bytes<float2>(rows);
    }

private:
    static std::uint32_t panel_rows(std::uint32_t rows) { return rows < head_panel_rows_k ? rows : head_panel_rows_k; }
};

/** rows_gradient = predictions weight, over the panel's rows. */
void multiply_back(stream const&, head_panel const& panel, std::uint32_t rows);

/** weight_gradient += predictions^T rows, in a fixed order. */
void multiply_across(stream const&, head_panel const& panel, std::uint32_t rows);

/** *loss += *scale * the sum of `losses`, in their order. @param scale Device-side, or null: `factor` alone counts. */
void add_losses(stream const&, double const* losses, std::size_t count, float const* scale, double factor,
                double* loss);

} // namespace uform::vram
