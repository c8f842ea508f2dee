/** The heads' kernels by products of groups of warps: Hopper alone. */
#include "vram/heads_sm90.h"
#include "vram/heads_tiles.cuh"
#include "vram/wgmma_tile.cuh"

namespace uform::vram {

namespace {

using launches = head_launches<wgmma_tile<128, bytes_k, 4, 1>, 1, wgmma_tile<128, 128, 3, 0>>;

/** Copies in bulk serve outputs in whole tiles of what a thread stores at once; others come by threads' own copies. */
void score_patches(stream const& stream, head_panel const& panel, std::uint32_t rows, patch_targets const& targets,
                   head_scale const& scale, double* losses) {
    if (!sm90::score_patches(stream, panel, rows, targets, scale, losses))
        launches::launch_score_patches(stream, panel, rows, targets, scale, losses);
}

} // namespace

head_family const wgmma_heads_k{hopper::box_k, sm90::score_bytes, score_patches, sm90::multiply_gradients};

} // namespace uform::vram
