#include "core/memory.h"

#include <limits>
#include <utility>

namespace uform {

size_t memory_plan::add(char const* purpose, size_t bytes) {
    size_t const offset = bytes_;
    if (bytes > std::numeric_limits<size_t>::max() / 2 - alignment_k - offset)
        fail(uform_status_out_of_memory_k, "the plan's ", purpose, " alone pass the address space");
    size_t const padded = (bytes + alignment_k - 1) / alignment_k * alignment_k;
    bytes_ += padded;
    for (share& known : shares_)
        if (known.purpose == purpose) {
            known.bytes += padded;
            return offset;
        }
    shares_.push_back({purpose, padded});
    return offset;
}

device_block::device_block(uform_operations_t const& operations, uform_stream_t* stream, size_t bytes)
    : operations_(operations), stream_(stream) {
    void* memory = nullptr;
    check(operations_.memory_allocate(stream_, bytes, &memory));
    base_ = static_cast<uint8_t*>(memory);
    uform_status_t const status = operations_.memory_zero(stream_, base_, bytes);
    if (status != uform_status_success_k) {
        error failure(status, last_error());
        operations_.memory_release(stream_, base_);
        throw failure;
    }
}

device_block::~device_block() {
    if (base_)
        operations_.memory_release(stream_, base_);
}

device_block::device_block(device_block&& other) noexcept
    : operations_(other.operations_), stream_(other.stream_), base_(std::exchange(other.base_, nullptr)) {}

staging_block::staging_block(uform_operations_t const& operations, uform_stream_t* stream, size_t bytes)
    : operations_(operations), stream_(stream) {
    void* memory = nullptr;
    check(operations_.staging_allocate(stream_, bytes, &memory));
    base_ = static_cast<uint8_t*>(memory);
}

staging_block::~staging_block() { operations_.staging_release(stream_, base_); }

} // namespace uform
