/** The search for matches by Hopper's warp groups, in the place of that by warps. Defined where that architecture is
 *  compiled. */
#pragma once

#include "vram/maxsim.h"

namespace uform::vram::maxsim::sm90 {

/** The widest vectors of which a group's rows stay in registers while documents pass by. */
inline constexpr std::uint32_t resident_width_k = 128;

inline bool serves(stream const& stream, problem const& p) noexcept {
    return stream.gpu_class == uform_gpu_class_hopper_k && p.padded_width <= resident_width_k;
}

// maxsim_sm90.cu
void find_matches(stream const&, problem const&);

} // namespace uform::vram::maxsim::sm90
