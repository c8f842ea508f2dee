#include "vram/gemm_fused.h"

#include "vram/geglu.h"
#include "vram/gemm.h"
#include "vram/gemm_family.h"
#include "vram/layer.h"
#include "vram/rotary.h"
#include "vram/weights.h"

namespace uform::vram {

namespace {

/** Tiles of a fused product have gates and what they gate, 64 each. */
constexpr std::uint32_t gates_of_tile_k = 64;

/** What a kernel needs that applies the norm itself. */
void prepare(stream const& stream, norm_before const& norm, std::uint32_t outs, __nv_bfloat16 const* weight) {
    if (norm.squares)
        launch_norm_inverses(stream, norm.rows, norm.squares, norm.inverses);
    else
        launch_norm_inverses(stream, norm.rows, norm.x, norm.inverses);
    launch_scale_columns(stream, outs, norm.rows.hidden, weight, norm.gain, norm.scaled);
}

/** y = normed weight^T, one after the other. */
void normalize_and_multiply(stream const& stream, norm_before const& norm, std::uint32_t outs,
                            __nv_bfloat16 const* weight, __nv_bfloat16* y) {
    launch_norm_forward(stream, norm.rows, norm.x, norm.gain, norm.normed, norm.inverses);
    gemm_forward(stream, {norm.rows.active, outs, norm.rows.hidden}, norm.normed, weight, nullptr, y);
}

} // namespace

void gemm_residual_forward(stream const& stream, linear_extents const& extents, __nv_bfloat16 const* x,
                           __nv_bfloat16 const* weight, __nv_bfloat16 const* residual, __nv_bfloat16* y,
                           float* squares) {
    auto const [rows, outs, ins] = extents;
    gemm_family const& family = gemm_family_of(stream);
    if (family.residual_forward)
        return family.residual_forward(stream, {rows, outs, ins, 1, x, weight, residual, y}, squares);
    gemm_forward(stream, extents, x, weight, residual, y);
}

void gemm_gated_forward(stream const& stream, gated_problem const& problem) {
    auto const& [norm, inner, weight, gate_up, product] = problem;
    gemm_family const& family = gemm_family_of(stream);
    if (family.gated_forward && inner % gates_of_tile_k == 0) {
        prepare(stream, norm, 2 * inner, weight);
        return family.gated_forward(stream, problem);
    }
    normalize_and_multiply(stream, norm, 2 * inner, weight, gate_up);
    launch_geglu_forward(stream, {norm.rows.active, norm.rows.count, inner}, gate_up, product);
}

void gemm_gated_backward(stream const& stream, gated_gradient_problem const& problem) {
    auto const [rows, inner, hidden, count, dy, weight, gate_up, gate_up_gradient, incoming] = problem;
    gemm_family const& family = gemm_family_of(stream);
    if (family.gated_backward)
        return family.gated_backward(stream, problem);
    gemm_data_gradient(stream, {rows, hidden, inner}, dy, weight, nullptr, incoming);
    launch_geglu_backward(stream, {rows, count, inner}, gate_up, incoming, gate_up_gradient);
}

void gemm_turned_forward(stream const& stream, turned_problem const& problem) {
    auto const& [norm, columns, weight, qkv, turns] = problem;
    std::uint32_t const hidden = norm.rows.hidden;
    gemm_family const& family = gemm_family_of(stream);
    if (family.turned_forward) {
        prepare(stream, norm, 3 * hidden, weight);
        launch_rotary_turns(stream, columns, 1.f, turns);
        return family.turned_forward(stream, problem);
    }
    normalize_and_multiply(stream, norm, 3 * hidden, weight, qkv);
    launch_rotary(stream, columns, hidden / head_width_k, qkv, rotary_direction::forward);
}

} // namespace uform::vram
