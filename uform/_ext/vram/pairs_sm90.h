/** Pairwise losses' passes over tiles by Hopper's warp groups, in the place of those by warps. Defined where that
 *  architecture is compiled. */
#pragma once

#include "vram/pairs_forces.cuh"
#include "vram/pairs_sums.cuh"

namespace uform::vram::pairs::sm90 {

/** The widest vectors of which a tile's rows stay in shared memory while its columns pass by. */
inline constexpr std::uint32_t resident_width_k = 512;

/** Whether these kernels run on the stream's GPU. Products take any width, scores up to `resident_width_k`. */
inline bool serves(stream const& stream) noexcept { return stream.gpu_class == uform_gpu_class_hopper_k; }

inline bool serves_scores(stream const& stream, problem const& p) noexcept {
    return serves(stream) && p.padded_width <= resident_width_k;
}

// pairs_scores_sm90.cu
/** Sums a span's ambient pairs into its memory. */
void sum_tiles(stream const&, problem const&, span_view const&);
/** The coefficients of a panel's pairs, both directions together, into the panel, and their sums. */
void fill_panel(stream const&, problem const&, panel_view const&);

// pairs_products_sm90.cu
/** Adds the panel's products with the vectors to the gradients of its rows and of its columns, and merges their sums.
 */
void multiply_panel(stream const&, problem const&, panel_view const&);

} // namespace uform::vram::pairs::sm90
