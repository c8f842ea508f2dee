#include "vram/gemm.h"

#include "vram/gemm_family.h"
#include "vram/launch.cuh"

namespace uform::vram {

namespace {

#if UFORM_WITH_SM90
constexpr gemm_family hopper_k{"sm90",
                               sm90::gemm_forward,
                               sm90::gemm_forward_float,
                               sm90::gemm_data_gradient,
                               sm90::gemm_weight_gradient,
                               sm90::gemm_stream_k_gradient,
                               sm90::gemm_residual_forward,
                               sm90::gemm_gated_forward,
                               sm90::gemm_gated_backward,
                               sm90::gemm_turned_forward};
#endif
constexpr gemm_family ampere_k{"sm80",
                               sm80::gemm_forward,
                               sm80::gemm_forward_float,
                               sm80::gemm_data_gradient,
                               sm80::gemm_weight_gradient,
                               nullptr,
                               nullptr,
                               nullptr,
                               nullptr,
                               nullptr};

/** Refuses what no kernel takes: loads are of 16 bytes. */
void check_extents(stream const& stream, linear_extents const& extents) {
    constexpr std::uint32_t values = 8;
    if (extents.outs % values != 0 || extents.ins % values != 0 || extents.outs == 0 || extents.ins == 0)
        fail(uform_status_internal_k, stream.operation, ": a linear map of ", extents.ins, " to ", extents.outs,
             " values, but both must be multiples of ", values);
}

void check_aligned(stream const& stream, char const* field, void const* memory) {
    constexpr std::uintptr_t alignment = 16;
    if (reinterpret_cast<std::uintptr_t>(memory) % alignment != 0)
        fail(uform_status_internal_k, stream.operation, ": ", field, " at ", memory, " is not aligned to ", alignment,
             " bytes");
}

} // namespace

gemm_family const& gemm_family_of([[maybe_unused]] stream const& stream) noexcept {
#if UFORM_WITH_SM90
    // Its instructions are Hopper's own: a later GPU does not run them.
    if (stream.gpu_class == uform_gpu_class_hopper_k)
        return hopper_k;
#endif
    return ampere_k;
}

void gemm_forward(stream const& stream, linear_extents const& extents, __nv_bfloat16 const* x,
                  __nv_bfloat16 const* weight, __nv_bfloat16 const* residual, __nv_bfloat16* y) {
    auto const [rows, outs, ins] = extents;
    if (rows == 0)
        return;
    check_extents(stream, extents);
    check_aligned(stream, "x", x);
    check_aligned(stream, "weight", weight);
    check_aligned(stream, "residual", residual);
    check_aligned(stream, "y", y);
    gemm_tile const tile = product_tile(rows, outs, ins, stream.multiprocessors);
    gemm_family_of(stream).forward(stream, tile, {rows, outs, ins, 1, x, weight, residual, y});
}

void gemm_forward(stream const& stream, linear_extents const& extents, __nv_bfloat16 const* x,
                  __nv_bfloat16 const* weight, float* y) {
    auto const [rows, outs, ins] = extents;
    if (rows == 0)
        return;
    check_extents(stream, extents);
    check_aligned(stream, "x", x);
    check_aligned(stream, "weight", weight);
    check_aligned(stream, "y", y);
    gemm_family_of(stream).forward_float(stream, {rows, outs, ins, 1, x, weight, nullptr, y});
}

void gemm_data_gradient(stream const& stream, linear_extents const& extents, __nv_bfloat16 const* dy,
                        __nv_bfloat16 const* weight, __nv_bfloat16 const* residual, __nv_bfloat16* dx) {
    auto const [rows, outs, ins] = extents;
    if (rows == 0)
        return;
    check_extents(stream, extents);
    check_aligned(stream, "dy", dy);
    check_aligned(stream, "weight", weight);
    check_aligned(stream, "residual", residual);
    check_aligned(stream, "dx", dx);
    gemm_tile const tile = product_tile(rows, ins, outs, stream.multiprocessors);
    gemm_family_of(stream).data_gradient(stream, tile, {rows, ins, outs, 1, dy, weight, residual, dx});
}

void gemm_weight_gradient(stream const& stream, linear_extents const& extents, __nv_bfloat16 const* dy,
                          __nv_bfloat16 const* x, float* dw, void* workspace, std::size_t workspace_bytes) {
    auto const [rows, outs, ins] = extents;
    if (rows == 0)
        return;
    check_extents(stream, extents);
    check_aligned(stream, "dy", dy);
    check_aligned(stream, "x", x);
    check_aligned(stream, "dw", dw);
    check_aligned(stream, "workspace", workspace);
    check_bytes("workspace_bytes", workspace_bytes, gemm_weight_gradient_workspace_bytes(extents));

    gemm_family const& family = gemm_family_of(stream);
    stream_k_plan const plan = stream_k_of(rows, outs, ins, stream.multiprocessors);
    if (family.stream_k_gradient && is_stream_k_faster(plan, rows, outs, ins, stream.multiprocessors))
        return family.stream_k_gradient(stream, {rows, outs, ins, dy, x, dw, workspace, plan});

    gradient_slices const cut = weight_gradient_slices(rows, outs, ins, stream.multiprocessors);
    family.weight_gradient(stream, cut.tile, {outs, ins, cut.slice_rows, cut.slices, dy, x, nullptr, workspace});
    std::size_t const sliced = std::size_t(cut.slices) * cut.slice_rows;
    partial_sums const sums{outs,
                            ins,
                            cut.slices,
                            static_cast<float const*>(workspace),
                            cut.rest_rows,
                            dy + sliced * outs,
                            x + sliced * ins};
    launch_sum_partials(stream, sums, dw);
}

std::size_t gemm_weight_gradient_workspace_bytes(linear_extents const& extents) noexcept {
    auto const [rows, outs, ins] = extents;
    return part_bytes<float>(std::size_t(most_slices(rows, outs, ins)) * outs * ins);
}

} // namespace uform::vram
