/** Memory of one device, planned whole before any of it is taken. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/operations.h"

namespace uform {

/** Offsets into one block, handed out in order and summed by purpose. */
class memory_plan {
public:
    static constexpr size_t alignment_k = 256;

    /** Reserves bytes and answers their offset; `purpose` is what `describe` calls them. */
    size_t add(char const* purpose, size_t bytes);
    size_t bytes() const { return bytes_; }

    struct share {
        std::string purpose;
        size_t bytes;
    };
    std::vector<share> const& shares() const { return shares_; }

private:
    size_t bytes_ = 0;
    std::vector<share> shares_;
};

/** One block of a device's memory, zeroed, released with its owner. */
class device_block {
public:
    device_block(uform_operations_t const& operations, uform_stream_t* stream, size_t bytes);
    ~device_block();
    device_block(device_block&& other) noexcept;
    device_block(device_block const&) = delete;
    device_block& operator=(device_block const&) = delete;
    device_block& operator=(device_block&&) = delete;

    template <typename value_at> value_at* at(size_t offset) const {
        return reinterpret_cast<value_at*>(base_ + offset);
    }

private:
    uform_operations_t const& operations_;
    uform_stream_t* stream_;
    uint8_t* base_ = nullptr;
};

/** Host memory that uploads read at full speed, released with its owner. */
class staging_block {
public:
    staging_block(uform_operations_t const& operations, uform_stream_t* stream, size_t bytes);
    ~staging_block();
    staging_block(staging_block const&) = delete;
    staging_block& operator=(staging_block const&) = delete;

    uint8_t* data() const { return base_; }

private:
    uform_operations_t const& operations_;
    uform_stream_t* stream_;
    uint8_t* base_ = nullptr;
};

} // namespace uform
