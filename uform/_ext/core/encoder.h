/** The encoder's blocks, forward and backward, as a sequence of operations. */
#pragma once

#include <span>

#include "core/operations.h"

namespace uform {

/** Runs every block; the last one's output is the state that the final norm reads. */
void encoder_forward(uform_operations_t const& operations, uform_stream_t* stream,
                     std::span<uform_layer_t const> layers);

/** Runs every block back, turning the gradient of the last output into that of the first input. */
void encoder_backward(uform_operations_t const& operations, uform_stream_t* stream,
                      std::span<uform_layer_t const> layers);

} // namespace uform
