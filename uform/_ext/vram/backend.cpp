#include "vram/backend.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/operations.h"
#include "vram/capture_gate.h"
#include "vram/current_gpu.h"
#include "vram/device.h"
#include "vram/operations.h"
#include "vram/outside_captures.h"

namespace uform {

std::vector<visible_gpu> vram_gpus() {
    vram::device_inventory const inventory = vram::list_devices();
    if (!inventory.reason.empty())
        fail(uform_status_device_k, inventory.reason);
    std::vector<visible_gpu> gpus;
    for (vram::device_info const& one : inventory.devices)
        gpus.push_back({one.index, one.name, one.capability_major, one.capability_minor, one.memory_bytes});
    return gpus;
}

std::vector<std::int32_t> vram_devices() {
    std::vector<std::int32_t> indices;
    for (visible_gpu const& one : vram_gpus())
        indices.push_back(one.index);
    return indices;
}

} // namespace uform

namespace uform::vram {

namespace {

constexpr std::array<std::pair<std::string_view, int>, 4> class_names_k = {{
    {"AMPERE", uform_gpu_class_ampere_k},
    {"ADA", uform_gpu_class_ada_k},
    {"HOPPER", uform_gpu_class_hopper_k},
    {"BLACKWELL", uform_gpu_class_blackwell_k},
}};

device_info const& find_device(device_inventory const& inventory, std::uint32_t place, std::int32_t index) {
    for (device_info const& one : inventory.devices)
        if (one.index == index)
            return one;
    fail(uform_status_device_k, "devices[", place, "]: ", index, " is no GPU: ", inventory.devices.size(),
         " are visible, counted from 0");
}

#if UFORM_WITH_SM90
constexpr bool has_hopper_kernels_k = true;
#else
constexpr bool has_hopper_kernels_k = false;
#endif

/** Memory of the stream's GPU, which is current. */
void* allocate(stream const& on, std::size_t bytes) {
    void* memory = nullptr;
    cudaError_t const result = cudaMalloc(&memory, bytes ? bytes : 1);
    if (result != cudaErrorMemoryAllocation) {
        check_cuda(result, on);
        return memory;
    }
    cudaGetLastError();
    std::size_t free = 0, whole = 0;
    check_cuda(cudaMemGetInfo(&free, &whole), on);
    fail(uform_status_out_of_memory_k, "GPU ", on.device, ": ", bytes, " bytes were asked for, ", free, " are free of ",
         whole);
}

int class_of_device(device_info const& one, std::uint32_t place) {
    int const own = gpu_class_of(one.capability_major, one.capability_minor);
    if (own == uform_gpu_class_none_k)
        fail(uform_status_device_k, "devices[", place, "]: GPU ", one.index, " (", one.name,
             ") has compute capability ", one.capability_major, ".", one.capability_minor, "; 8.0 is the least");
    return own;
}

void check_kernels(device_info const& one, std::uint32_t place) {
    if (!has_kernels_for(one.index))
        fail(uform_status_device_k, "devices[", place, "]: this build has no kernels for GPU ", one.index, " (",
             one.name, ", compute capability ", one.capability_major, ".", one.capability_minor,
             "); UFORM_CUDA_ARCHS says for which it is built");
}

} // namespace

/** A want of memory is no fault of the device: kernels are loaded when they are first started, and may find no room. */
void fail_cuda(cudaError_t result, char const* operation) {
    cudaGetLastError(); // told here: the next call must not find it, unless the device itself is lost
    fail(result == cudaErrorMemoryAllocation ? uform_status_out_of_memory_k : uform_status_device_k, operation, ": ",
         cudaGetErrorString(result), " (", cudaGetErrorName(result), ")");
}

int gpu_class_of(int major, int minor) noexcept {
    int const capability = 10 * major + minor;
    int result = uform_gpu_class_none_k;
    for (auto const& [name, value] : class_names_k)
        if (capability >= value)
            result = value;
    return result;
}

int lowered_gpu_class(int own, char const* wish) {
    if (wish == nullptr || *wish == '\0')
        return own;
    for (auto const& [name, value] : class_names_k)
        if (name == wish)
            return std::min(own, value);
    fail(uform_status_invalid_argument_k, "UFORM_GPU_CLASS: ", wish, " is none of AMPERE, ADA, HOPPER, BLACKWELL");
}

int dispatched_gpu_class(int lowest, std::span<int const> own, bool has_hopper_kernels) noexcept {
    constexpr int hopper = uform_gpu_class_hopper_k;
    bool const all_hopper = std::ranges::all_of(own, [](int one) { return one == hopper; });
    return lowest == hopper && !(all_hopper && has_hopper_kernels) ? int(uform_gpu_class_ada_k) : lowest;
}

backend::backend(uform_backend_options_t const& options) {
    device_inventory const inventory = list_devices();
    if (!inventory.reason.empty())
        fail(uform_status_device_k, inventory.reason);
    if (options.devices_count == 0)
        fail(uform_status_invalid_argument_k, "devices: at least one GPU is needed");
    std::vector<int> own;
    for (std::uint32_t place = 0; place != options.devices_count; ++place) {
        device_info const& one = find_device(inventory, place, options.devices[place]);
        own.push_back(class_of_device(one, place));
        check_kernels(one, place);
        devices_.push_back(one.index);
        multiprocessors_.push_back(one.multiprocessors);
    }
    gpu_class_ = lowered_gpu_class(std::ranges::min(own), std::getenv("UFORM_GPU_CLASS"));
    dispatched_ = dispatched_gpu_class(gpu_class_, own, has_hopper_kernels_k);
    connect_peers();
}

void backend::connect_peers() {
    constexpr char const* operation = "backend_create";
    for (int from : devices_)
        for (int to : devices_) {
            if (from == to)
                continue;
            int can_access = 0;
            check_cuda(cudaDeviceCanAccessPeer(&can_access, from, to), operation);
            if (!can_access) {
                connected_ = false;
                continue;
            }
            current_gpu const current(from, operation);
            cudaError_t const result = cudaDeviceEnablePeerAccess(to, 0);
            if (result != cudaErrorPeerAccessAlreadyEnabled)
                check_cuda(result, operation);
            else
                cudaGetLastError();
        }
}

stream* backend::create_stream(std::uint32_t place) {
    constexpr char const* operation = "stream_create";
    if (place >= devices_.size())
        fail(uform_status_internal_k, operation, ": place ", place, ", but there are ", devices_.size(), " devices");
    auto const destroy = [](stream* one) { destroy_stream(one); };
    std::unique_ptr<stream, decltype(destroy)> made(new stream);
    made->device = devices_[place];
    made->multiprocessors = multiprocessors_[place];
    made->gpu_class = dispatched_;
    made->place = place;
    made->counters = &counters_;
    current_gpu const current(made->device, operation);
    check_cuda(cudaStreamCreateWithFlags(&made->handle, cudaStreamNonBlocking), operation);
    check_cuda(cudaEventCreateWithFlags(&made->reached, cudaEventDisableTiming), operation);
    if (!connected_)
        made->bounce = allocate(*made, bounce_bytes_k);
    return made.release();
}

void backend::destroy_stream(stream* made) noexcept {
    if (made == nullptr)
        return;
    // A device that is lost answers every call with its error: there is nothing more to give back then.
    outside_captures const outside;
    current_gpu const current = current_gpu::for_release(made->device);
    if (made->handle)
        cudaStreamSynchronize(made->handle);
    cudaFree(made->bounce);
    if (made->reached)
        cudaEventDestroy(made->reached);
    if (made->handle)
        cudaStreamDestroy(made->handle);
    cudaGetLastError();
    delete made;
}

uform_status_t backend_create(uform_backend_options_t const* options, void** made) {
    outside_captures const outside;
    return guard([&] { *made = new backend(*options); });
}

void backend_destroy(void* opaque) { delete static_cast<backend*>(opaque); }

std::int32_t backend_gpu_class(void const* opaque) { return static_cast<backend const*>(opaque)->gpu_class(); }

char const* backend_gemm(void const* opaque) {
    bool const hopper = static_cast<backend const*>(opaque)->dispatched() == uform_gpu_class_hopper_k;
    return hopper ? "cutlass-sm90" : "cutlass-sm80";
}

uform_status_t stream_create(void* owner, std::uint32_t place, uform_stream_t** made) {
    outside_captures const outside;
    return guard(
        [&] { *made = reinterpret_cast<uform_stream_t*>(static_cast<backend*>(owner)->create_stream(place)); });
}

void stream_destroy(uform_stream_t* opaque) { backend::destroy_stream(reinterpret_cast<stream*>(opaque)); }

namespace {

/** Runs `body(stream)` with the stream's GPU current, under an operation's name. */
template <typename body_at> uform_status_t on_stream(uform_stream_t* opaque, char const* operation, body_at&& body) {
    return guard([&] {
        stream& on = stream::of(opaque);
        on.operation = operation;
        current_gpu const current(on.device, operation);
        body(static_cast<stream const&>(on));
    });
}

/** The same for what CUDA forbids while another thread captures. */
template <typename body_at> uform_status_t outside(uform_stream_t* opaque, char const* operation, body_at&& body) {
    outside_captures const outside;
    return on_stream(opaque, operation, body);
}

} // namespace

/** Errors of kernels come up here: the message says which operation was started last on the stream. */
uform_status_t stream_synchronize(uform_stream_t* opaque) {
    outside_captures const outside;
    return guard([&] {
        stream const& on = stream::of(opaque);
        current_gpu const current(on.device, on.operation);
        ++on.counters->host_waits;
        check_cuda(cudaStreamSynchronize(on.handle), on);
    });
}

uform_status_t device_synchronize(uform_stream_t* opaque) {
    return on_stream(opaque, "device_synchronize", [](stream const& on) {
        if (capture_gate::entered_here())
            fail(uform_status_device_k, on.operation, ": what is captured can wait for nothing");
        cudaError_t result = cudaSuccess;
        capture_gate::of(on.device).while_closed([&] { result = cudaDeviceSynchronize(); });
        if (result != cudaErrorStreamCaptureUnsupported)
            return check_cuda(result, on);
        cudaGetLastError();
        fail(uform_status_device_k, on.operation, ": CUDA lets nobody wait for all of GPU ", on.device,
             " while another library captures a graph on it, and has given up that capture");
    });
}

void* stream_handle(uform_stream_t* opaque) { return stream::of(opaque).handle; }

uform_status_t memory_allocate(uform_stream_t* opaque, std::size_t bytes, void** memory) {
    return outside(opaque, "memory_allocate", [&](stream const& on) {
        ++on.counters->allocations;
        *memory = allocate(on, bytes);
    });
}

void memory_release(uform_stream_t* opaque, void* memory) {
    outside_captures const outside;
    current_gpu const current = current_gpu::for_release(stream::of(opaque).device);
    cudaFree(memory);
    cudaGetLastError();
}

/** Pinned, so that the GPU reads it by itself while the host goes on. */
uform_status_t staging_allocate(uform_stream_t* opaque, std::size_t bytes, void** memory) {
    return outside(opaque, "staging_allocate", [&](stream const& on) {
        ++on.counters->allocations;
        cudaError_t const result = cudaHostAlloc(memory, bytes ? bytes : 1, cudaHostAllocDefault);
        if (result != cudaErrorMemoryAllocation)
            return check_cuda(result, on);
        cudaGetLastError();
        fail(uform_status_out_of_memory_k, "the host cannot pin the ", bytes, " bytes that were asked for");
    });
}

void staging_release(uform_stream_t* opaque, void* memory) {
    outside_captures const outside;
    current_gpu const current = current_gpu::for_release(stream::of(opaque).device);
    cudaFreeHost(memory);
    cudaGetLastError();
}

uform_status_t memory_upload(uform_stream_t* opaque, void* device, void const* host, std::size_t bytes) {
    return on_stream(opaque, "memory_upload", [&](stream const& on) {
        if (bytes)
            check_cuda(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, on.handle), on);
    });
}

uform_status_t memory_download(uform_stream_t* opaque, void* host, void const* device, std::size_t bytes) {
    return on_stream(opaque, "memory_download", [&](stream const& on) {
        if (bytes)
            check_cuda(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, on.handle), on);
    });
}

uform_status_t memory_zero(uform_stream_t* opaque, void* device, std::size_t bytes) {
    return on_stream(opaque, "memory_zero", [&](stream const& on) {
        if (bytes)
            check_cuda(cudaMemsetAsync(device, 0, bytes, on.handle), on);
    });
}

uform_status_t memory_copy(uform_stream_t* opaque, void* to, void const* from, std::size_t bytes) {
    return on_stream(opaque, "memory_copy", [&](stream const& on) {
        if (bytes)
            check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, on.handle), on);
    });
}

uform_status_t memory_device(uform_stream_t* opaque, void const* memory, std::int32_t* device) {
    return on_stream(opaque, "memory_device", [&](stream const& on) {
        cudaPointerAttributes attributes{};
        check_cuda(cudaPointerGetAttributes(&attributes, memory), on);
        bool const own = attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
        *device = own ? attributes.device : -1;
    });
}

uform_status_t event_create(uform_stream_t* opaque, uform_event_t** made) {
    return on_stream(opaque, "event_create", [&](stream const& on) {
        auto one = std::make_unique<event>(nullptr, on.device, on.counters);
        check_cuda(cudaEventCreate(&one->handle), on);
        *made = reinterpret_cast<uform_event_t*>(one.release());
    });
}

void event_destroy(uform_event_t* opaque) {
    if (opaque == nullptr)
        return;
    std::unique_ptr<event> const one(&event::of(opaque));
    current_gpu const current = current_gpu::for_release(one->device);
    cudaEventDestroy(one->handle);
    cudaGetLastError();
}

uform_status_t event_record(uform_stream_t* opaque, uform_event_t* recorded) {
    return on_stream(opaque, "event_record",
                     [&](stream const& on) { check_cuda(cudaEventRecord(event::of(recorded).handle, on.handle), on); });
}

uform_status_t stream_wait(uform_stream_t* opaque, uform_event_t* awaited) {
    return on_stream(opaque, "stream_wait", [&](stream const& on) {
        check_cuda(cudaStreamWaitEvent(on.handle, event::of(awaited).handle, 0), on);
    });
}

/** Errors of kernels come up here as well; which operation's they are is not known any more. */
uform_status_t host_wait(uform_event_t* opaque) {
    outside_captures const outside;
    return guard([&] {
        event const& one = event::of(opaque);
        current_gpu const current(one.device, "host_wait");
        ++one.counters->host_waits;
        check_cuda(cudaEventSynchronize(one.handle), "host_wait");
    });
}

uform_status_t event_elapsed(uform_event_t* from, uform_event_t* to, double* seconds) {
    return guard([&] {
        constexpr char const* operation = "event_elapsed";
        // Where none is current, the runtime would make a context on GPU 0, whosever that is.
        current_gpu const current(event::of(from).device, operation);
        float milliseconds = 0;
        check_cuda(cudaEventElapsedTime(&milliseconds, event::of(from).handle, event::of(to).handle), operation);
        *seconds = 1e-3 * static_cast<double>(milliseconds);
    });
}

void backend_counters(void const* opaque, uform_backend_counters_t* counters) {
    work_counters const& counted = static_cast<backend const*>(opaque)->counters();
    *counters = {counted.allocations, counted.host_waits};
}

/** Other threads go on with whatever they do, but for waiting for the GPU: only this one's work is captured. */
uform_status_t capture_begin(uform_stream_t* opaque) {
    return on_stream(opaque, "capture_begin", [&](stream const& on) {
        capture_gate& gate = capture_gate::of(on.device);
        gate.enter();
        cudaError_t const begun = cudaStreamBeginCapture(on.handle, cudaStreamCaptureModeThreadLocal);
        if (begun != cudaSuccess)
            gate.leave();
        check_cuda(begun, on);
    });
}

uform_status_t capture_end(uform_stream_t* opaque, uform_graph_t** made) {
    // Left whatever comes: on a GPU that is lost, nothing below may be reached.
    capture_gate::left const gate(capture_gate::of(stream::of(opaque).device));
    return outside(opaque, "capture_end", [&](stream const& on) {
        cudaGraph_t captured = nullptr;
        cudaError_t const ended = cudaStreamEndCapture(on.handle, &captured);
        auto const forget = [](cudaGraph_t one) { cudaGraphDestroy(one); };
        std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, decltype(forget)> const owner(captured);
        if (made == nullptr) {
            cudaGetLastError(); // whatever broke the capture has been told
            return;
        }
        check_cuda(ended, on);
        auto const destroy = [](graph* one) { graph_destroy(reinterpret_cast<uform_graph_t*>(one)); };
        std::unique_ptr<graph, decltype(destroy)> one(new graph{nullptr, on.device});
        check_cuda(cudaGraphInstantiate(&one->handle, captured, 0), on);
        // What memory it takes on the GPU it takes here, where a want of it leaves the graph out, and not the step.
        check_cuda(cudaGraphUpload(one->handle, on.handle), on);
        *made = reinterpret_cast<uform_graph_t*>(one.release());
    });
}

uform_status_t graph_launch(uform_stream_t* opaque, uform_graph_t* launched) {
    return outside(opaque, "graph_launch",
                   [&](stream const& on) { check_cuda(cudaGraphLaunch(graph::of(launched).handle, on.handle), on); });
}

void graph_destroy(uform_graph_t* opaque) {
    outside_captures const outside;
    std::unique_ptr<graph> const one(&graph::of(opaque));
    current_gpu const current = current_gpu::for_release(one->device);
    if (one->handle)
        cudaGraphExecDestroy(one->handle);
    cudaGetLastError();
}

} // namespace uform::vram
