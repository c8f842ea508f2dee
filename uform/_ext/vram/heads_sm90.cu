/** The heads' kernels by products of groups of warps: Hopper alone. */
#include "vram/heads_tiles.cuh"
#include "vram/wgmma_tile.cuh"

namespace uform::vram {

namespace {

using launches = head_launches<wgmma_tile<128, bytes_k, 4, 1>, 1, wgmma_tile<128, 128, 3, 0>>;

} // namespace

head_family const wgmma_heads_k = launches::family;

} // namespace uform::vram
