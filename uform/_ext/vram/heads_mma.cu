/** The heads' kernels by products of warps: every GPU since Ampere. */
#include "vram/heads_tiles.cuh"

namespace uform::vram {

namespace {

using launches = head_launches<mma_tile<64, bytes_k, 1, 4, 2>, 2, mma_tile<128, 128, 2, 2, 3>>;

} // namespace

head_family const mma_heads_k = launches::family;

} // namespace uform::vram
