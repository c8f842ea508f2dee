#include <cstring>

#include "ram/operations.h"

namespace uform::ram {

namespace {

constexpr std::size_t values_per_task_k = 16384;

/** Every buffer becomes the sum of all, added up in the order of the devices. */
template <typename value_at>
void sum_buffers(stream const& stream, value_at* const* buffers, std::uint32_t devices, std::uint64_t count) {
    if (devices < 2)
        return;
    stream.backend.parallel_chunks(count, values_per_task_k, [&](std::size_t begin, std::size_t end) {
        value_at* const sums = buffers[0];
        for (std::uint32_t device = 1; device != devices; ++device) {
            value_at const* const added = buffers[device];
            for (std::size_t i = begin; i != end; ++i)
                sums[i] += added[i];
        }
        for (std::uint32_t device = 1; device != devices; ++device)
            std::memcpy(buffers[device] + begin, sums + begin, (end - begin) * sizeof(value_at));
    });
}

} // namespace

void reduce_sum(stream const& stream, float* const* buffers, std::uint32_t devices, std::uint64_t count) {
    sum_buffers(stream, buffers, devices, count);
}

void reduce_terms(stream const& stream, double* const* buffers, std::uint32_t devices, std::uint64_t count) {
    sum_buffers(stream, buffers, devices, count);
}

void gather(stream const& stream, void const* const* from, void* const* to, std::uint32_t devices,
            std::uint64_t bytes) {
    if (bytes == 0)
        return;
    stream.backend.parallel_for(std::size_t(devices) * devices, [&](std::size_t task) {
        std::size_t const source = task / devices, target = task % devices;
        std::byte* const place = static_cast<std::byte*>(to[target]) + source * bytes;
        // A device's own block may lie in its place already.
        if (place != from[source])
            std::memcpy(place, from[source], bytes);
    });
}

} // namespace uform::ram
