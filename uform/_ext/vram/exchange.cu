#include <algorithm>

#include "vram/elementwise.cuh"
#include "vram/launch.cuh"
#include "vram/operations.h"

namespace uform::vram {

namespace {

constexpr unsigned threads_k = 256;

/** The most devices of one process. */
constexpr std::uint32_t devices_capacity_k = 64;

/** All devices of the process while one exchange is put on their streams. */
class exchange {
public:
    exchange(uform_stream_t* const* streams, std::uint32_t devices, char const* operation)
        : streams_(streams), devices_(devices) {
        if (devices > devices_capacity_k)
            fail(uform_status_internal_k, operation, ": ", devices, " devices, the most are ", devices_capacity_k);
        for (std::uint32_t place = 0; place != devices; ++place)
            stream::of(streams[place]).operation = operation;
    }

    std::uint32_t devices() const noexcept { return devices_; }
    stream const& at(std::uint32_t place) const noexcept { return stream::of(streams_[place]); }

    /** What comes later on any stream waits for what came before on every stream. */
    void wait_for_all() const {
        for (std::uint32_t place = 0; place != devices_; ++place) {
            current_gpu const current(at(place).device, at(place).operation);
            check_cuda(cudaEventRecord(at(place).reached, at(place).handle), at(place));
        }
        for (std::uint32_t waits = 0; waits != devices_; ++waits) {
            current_gpu const current(at(waits).device, at(waits).operation);
            for (std::uint32_t awaited = 0; awaited != devices_; ++awaited)
                if (waits != awaited)
                    check_cuda(cudaStreamWaitEvent(at(waits).handle, at(awaited).reached, 0), at(waits));
        }
    }

    /** Calls `body(place, stream)` with each device current, between two waits for all. */
    template <typename body_at> void run(body_at&& body) const {
        wait_for_all();
        for (std::uint32_t place = 0; place != devices_; ++place) {
            current_gpu const current(at(place).device, at(place).operation);
            body(place, at(place));
        }
        wait_for_all();
    }

private:
    uform_stream_t* const* streams_;
    std::uint32_t devices_;
};

/** Between any two devices: addresses tell which. */
void copy(stream const& stream, void* to, void const* from, std::size_t bytes) {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.handle), stream);
}

/** Where each device's terms of a sum are read, and where the sum is written. */
template <typename value_at> struct summed_buffers {
    value_at const* from[devices_capacity_k];
    value_at* to[devices_capacity_k];
    std::uint32_t from_count, to_count;
};

template <typename value_at> struct alignas(16) vector_of {
    static constexpr unsigned values = 16 / sizeof(value_at);
    value_at lanes[values];
};

/** to[i] = from[0][i] + from[1][i] + ..., in the order of the devices; a vector a thread, then the values of the end.
 */
template <typename value_at>
__global__ void __launch_bounds__(threads_k)
    sum_buffers(__grid_constant__ summed_buffers<value_at> const buffers, std::size_t vectors, std::size_t count) {
    using vector = vector_of<value_at>;
    std::size_t const threads = std::size_t(gridDim.x) * threads_k;
    std::size_t const thread = std::size_t(blockIdx.x) * threads_k + threadIdx.x;
    for (std::size_t place = thread; place < vectors; place += threads) {
        vector sum = reinterpret_cast<vector const*>(buffers.from[0])[place];
#pragma unroll 4
        for (std::uint32_t device = 1; device < buffers.from_count; ++device) {
            vector const added = reinterpret_cast<vector const*>(buffers.from[device])[place];
#pragma unroll
            for (unsigned i = 0; i != vector::values; ++i)
                sum.lanes[i] += added.lanes[i];
        }
        for (std::uint32_t device = 0; device < buffers.to_count; ++device)
            reinterpret_cast<vector*>(buffers.to[device])[place] = sum;
    }
    for (std::size_t rest = vectors * vector::values + thread; rest < count; rest += threads) {
        value_at sum = buffers.from[0][rest];
        for (std::uint32_t device = 1; device < buffers.from_count; ++device)
            sum += buffers.from[device][rest];
        for (std::uint32_t device = 0; device < buffers.to_count; ++device)
            buffers.to[device][rest] = sum;
    }
}

/** Whether every buffer begins where vectors may: a part of a structure need not. */
template <typename value_at> bool holds_vectors(summed_buffers<value_at> const& buffers) {
    auto const aligned = [](void const* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; };
    return std::all_of(buffers.from, buffers.from + buffers.from_count, aligned) &&
           std::all_of(buffers.to, buffers.to + buffers.to_count, aligned);
}

template <typename value_at>
void launch_sum(stream const& stream, summed_buffers<value_at> const& buffers, std::size_t count) {
    unsigned const most = static_cast<unsigned>(stream.multiprocessors) * 8;
    unsigned const blocks = std::min(most, blocks_for(count, threads_k * vector_of<value_at>::values));
    std::size_t const vectors = holds_vectors(buffers) ? count / vector_of<value_at>::values : 0;
    launch(stream, sum_buffers<value_at>, blocks, threads_k, 0, buffers, vectors, count);
}

/** A device's part of the values: every value is summed on one device and written to all. */
struct slice {
    std::size_t begin, count;

    slice(std::size_t values, std::uint32_t devices, std::uint32_t place) noexcept {
        constexpr std::size_t granule = 64; // whole vectors and cache lines
        std::size_t const share = (values + devices - 1) / devices;
        std::size_t const whole = (share + granule - 1) / granule * granule;
        begin = std::min(values, whole * place);
        count = std::min(values - begin, whole);
    }
};

/** Reads every device's memory, and writes to it, where it lies. */
template <typename value_at>
void sum_directly(stream const& stream, value_at* const* buffers, std::uint32_t devices, slice part) {
    summed_buffers<value_at> summed{};
    summed.from_count = summed.to_count = devices;
    for (std::uint32_t device = 0; device != devices; ++device)
        summed.from[device] = summed.to[device] = buffers[device] + part.begin;
    launch_sum(stream, summed, part.count);
}

/** The same through this device's bounce buffer, for GPUs that can not read each other. */
template <typename value_at>
void sum_bounced(exchange const& among, std::uint32_t place, value_at* const* buffers, slice part) {
    stream const& stream = among.at(place);
    std::uint32_t const devices = among.devices();
    std::size_t const room = bounce_bytes_k / devices / 256 * 256 / sizeof(value_at);
    value_at* const bounce = static_cast<value_at*>(stream.bounce);
    for (std::size_t done = 0; done < part.count; done += room) {
        std::size_t const at = part.begin + done, count = std::min(room, part.count - done);
        summed_buffers<value_at> summed{};
        summed.from_count = devices, summed.to_count = 1;
        summed.to[0] = buffers[place] + at;
        for (std::uint32_t device = 0; device != devices; ++device) {
            summed.from[device] = device == place ? buffers[place] + at : bounce + device * room;
            if (device != place)
                copy(stream, bounce + device * room, buffers[device] + at, count * sizeof(value_at));
        }
        launch_sum(stream, summed, count);
        for (std::uint32_t device = 0; device != devices; ++device)
            if (device != place)
                copy(stream, buffers[device] + at, buffers[place] + at, count * sizeof(value_at));
    }
}

template <typename value_at>
uform_status_t sum_over_devices(char const* operation, uform_stream_t* const* streams, value_at* const* buffers,
                                std::uint32_t devices, std::uint64_t count) {
    return guard([&] {
        if (devices < 2 || count == 0)
            return;
        profiled_range const range(operation);
        exchange const among(streams, devices, operation);
        among.run([&](std::uint32_t place, stream const& stream) {
            slice const part(count, devices, place);
            if (stream.bounce)
                sum_bounced(among, place, buffers, part);
            else
                sum_directly(stream, buffers, devices, part);
        });
    });
}

} // namespace

uform_status_t reduce_sum(uform_stream_t* const* streams, float* const* buffers, std::uint32_t devices,
                          std::uint64_t count) {
    return sum_over_devices("reduce_sum", streams, buffers, devices, count);
}

uform_status_t reduce_terms(uform_stream_t* const* streams, double* const* buffers, std::uint32_t devices,
                            std::uint64_t count) {
    return sum_over_devices("reduce_terms", streams, buffers, devices, count);
}

uform_status_t gather(uform_stream_t* const* streams, void const* const* from, void* const* to, std::uint32_t devices,
                      std::uint64_t bytes) {
    return guard([&] {
        if (bytes == 0)
            return;
        constexpr char const* operation = "gather";
        profiled_range const range(operation);
        exchange const among(streams, devices, operation);
        // Every device fetches the blocks of all.
        among.run([&](std::uint32_t target, stream const& stream) {
            for (std::uint32_t source = 0; source != devices; ++source) {
                std::byte* const place = static_cast<std::byte*>(to[target]) + source * bytes;
                // A device's own block may lie in its place already.
                if (place != from[source])
                    copy(stream, place, from[source], bytes);
            }
        });
    });
}

} // namespace uform::vram
