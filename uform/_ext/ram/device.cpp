#include "ram/device.h"

#include <cstdlib>
#include <cstring>

#include <unistd.h>

#include "ram/backend.h"

namespace uform::ram {

uform_status_t backend_create(uform_backend_options_t const* options, void** made) {
    return guard([&] { *made = new backend(*options); });
}

void backend_destroy(void* opaque) { delete static_cast<backend*>(opaque); }

std::int32_t backend_gpu_class(void const*) { return uform_gpu_class_none_k; }

char const* backend_gemm(void const* opaque) { return static_cast<backend const*>(opaque)->gemm().name(); }

uform_status_t stream_create(void* owner, std::uint32_t device, uform_stream_t** made) {
    return guard(
        [&] { *made = reinterpret_cast<uform_stream_t*>(new stream{*static_cast<backend const*>(owner), device}); });
}

void stream_destroy(uform_stream_t* opaque) { delete reinterpret_cast<stream*>(opaque); }

uform_status_t stream_synchronize(uform_stream_t*) { return uform_status_success_k; }

uform_status_t device_synchronize(uform_stream_t*) { return uform_status_success_k; }

void* stream_handle(uform_stream_t*) { return nullptr; }

namespace {

/** Bytes of the machine's memory, and of what is free of it. */
struct machine_memory {
    std::size_t whole, free;

    machine_memory()
        : whole(pages(_SC_PHYS_PAGES) * pages(_SC_PAGESIZE)), free(pages(_SC_AVPHYS_PAGES) * pages(_SC_PAGESIZE)) {}

private:
    static std::size_t pages(int name) {
        long const value = sysconf(name);
        return value > 0 ? static_cast<std::size_t>(value) : 0;
    }
};

} // namespace

uform_status_t memory_allocate(uform_stream_t* opaque, std::size_t bytes, void** memory) {
    return guard([&] {
        stream::of(opaque).backend.count_allocation();
        // The kernel promises more than it has and kills who believes it: more than the machine's memory is refused
        // here.
        machine_memory const machine;
        void* const made =
            bytes <= machine.whole ? std::aligned_alloc(alignment_k, aligned(bytes ? bytes : 1)) : nullptr;
        if (made == nullptr)
            fail(uform_status_out_of_memory_k, "RAM: ", bytes, " bytes were asked for, ", machine.free, " are free of ",
                 machine.whole);
        *memory = made;
    });
}

void memory_release(uform_stream_t*, void* memory) { std::free(memory); }

uform_status_t staging_allocate(uform_stream_t* opaque, std::size_t bytes, void** memory) {
    return memory_allocate(opaque, bytes, memory);
}

void staging_release(uform_stream_t* opaque, void* memory) { memory_release(opaque, memory); }

uform_status_t memory_upload(uform_stream_t*, void* device, void const* host, std::size_t bytes) {
    if (bytes)
        std::memcpy(device, host, bytes);
    return uform_status_success_k;
}

uform_status_t memory_download(uform_stream_t*, void* host, void const* device, std::size_t bytes) {
    if (bytes)
        std::memcpy(host, device, bytes);
    return uform_status_success_k;
}

uform_status_t memory_zero(uform_stream_t* opaque, void* device, std::size_t bytes) {
    return guard([&] {
        constexpr std::size_t bytes_per_task = std::size_t(1) << 20;
        stream::of(opaque).backend.parallel_chunks(bytes, bytes_per_task, [&](std::size_t begin, std::size_t end) {
            std::memset(static_cast<std::byte*>(device) + begin, 0, end - begin);
        });
    });
}

uform_status_t memory_copy(uform_stream_t*, void* to, void const* from, std::size_t bytes) {
    if (bytes)
        std::memcpy(to, from, bytes);
    return uform_status_success_k;
}

uform_status_t memory_device(uform_stream_t*, void const*, std::int32_t* device) {
    *device = -1;
    return uform_status_success_k;
}

uform_status_t event_create(uform_stream_t*, uform_event_t** made) {
    return guard([&] { *made = reinterpret_cast<uform_event_t*>(new event); });
}

void event_destroy(uform_event_t* opaque) { delete reinterpret_cast<event*>(opaque); }

uform_status_t event_record(uform_stream_t*, uform_event_t* opaque) {
    reinterpret_cast<event*>(opaque)->at = std::chrono::steady_clock::now();
    return uform_status_success_k;
}

uform_status_t stream_wait(uform_stream_t*, uform_event_t*) { return uform_status_success_k; }

uform_status_t host_wait(uform_event_t*) { return uform_status_success_k; }

uform_status_t event_elapsed(uform_event_t* from, uform_event_t* to, double* seconds) {
    *seconds =
        std::chrono::duration<double>(reinterpret_cast<event const*>(to)->at - reinterpret_cast<event const*>(from)->at)
            .count();
    return uform_status_success_k;
}

void backend_counters(void const* opaque, uform_backend_counters_t* counters) {
    *counters = {static_cast<backend const*>(opaque)->allocations(), 0};
}

std::size_t state_bytes(std::uint32_t hidden) { return hidden * sizeof(float); }

std::size_t weights_bytes(std::uint32_t, std::uint32_t, std::uint32_t) { return 0; }

uform_status_t weights_import(uform_stream_t*, std::uint32_t, std::uint32_t, std::uint32_t, float const*, void*) {
    return uform_status_success_k; // the working form is the plain one
}

} // namespace uform::ram
