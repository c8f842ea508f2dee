#include "core/encoder.h"

namespace uform {

void encoder_forward(uform_operations_t const& operations, uform_stream_t* stream,
                     std::span<uform_layer_t const> layers) {
    for (uform_layer_t const& layer : layers) {
        check(operations.norm_qkv_forward(stream, &layer));
        check(operations.attention_forward(stream, &layer));
        check(operations.out_residual_forward(stream, &layer));
        check(operations.norm_geglu_forward(stream, &layer));
        check(operations.down_residual_forward(stream, &layer));
    }
}

void encoder_backward(uform_operations_t const& operations, uform_stream_t* stream,
                      std::span<uform_layer_t const> layers) {
    for (size_t place = layers.size(); place-- != 0;) {
        uform_layer_t const& layer = layers[place];
        check(operations.down_residual_backward(stream, &layer));
        check(operations.norm_geglu_backward(stream, &layer));
        check(operations.out_residual_backward(stream, &layer));
        check(operations.attention_backward(stream, &layer));
        check(operations.norm_qkv_backward(stream, &layer));
    }
}

} // namespace uform
