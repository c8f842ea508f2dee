// The backend's life: devices, classes, streams, memory, weights, and how failures are told.
#include <cstdlib>
#include <numeric>
#include <utility>

#include "tests/gpu/native/gpu_check.h"
#include "vram/backend.h"
#include "vram/gemm_family.h"
#include "vram/launch.cuh"
#include "vram/outside_captures.h"
#include "vram/succession.cuh"

using namespace gpu_test;
using namespace uform;

namespace {

std::string message_of(uform_status_t status, uform_status_t expected) {
    return status == expected ? last_error() : "another status";
}

bool mentions(std::string const& message, std::string const& part) { return message.find(part) != std::string::npos; }

void test_classes() {
    check("class of 7.5", vram::gpu_class_of(7, 5) == uform_gpu_class_none_k);
    check("class of 8.0", vram::gpu_class_of(8, 0) == uform_gpu_class_ampere_k);
    check("class of 8.6", vram::gpu_class_of(8, 6) == uform_gpu_class_ampere_k);
    check("class of 8.9", vram::gpu_class_of(8, 9) == uform_gpu_class_ada_k);
    check("class of 9.0", vram::gpu_class_of(9, 0) == uform_gpu_class_hopper_k);
    check("class of 12.0", vram::gpu_class_of(12, 0) == uform_gpu_class_blackwell_k);
    check("class lowered", vram::lowered_gpu_class(uform_gpu_class_hopper_k, "AMPERE") == uform_gpu_class_ampere_k);
    check("class never raised",
          vram::lowered_gpu_class(uform_gpu_class_ampere_k, "HOPPER") == uform_gpu_class_ampere_k);
    bool refused = false;
    try {
        vram::lowered_gpu_class(uform_gpu_class_hopper_k, "VOLTA");
    } catch (error const& failure) {
        refused = mentions(failure.message, "UFORM_GPU_CLASS: VOLTA");
    }
    check("class of another name refused", refused);
}

/** Hopper's own kernels run where every GPU is a Hopper and the build has them; nothing else is ever lowered. */
void test_dispatch() {
    constexpr int ada = uform_gpu_class_ada_k, hopper = uform_gpu_class_hopper_k;
    constexpr int ampere = uform_gpu_class_ampere_k, blackwell = uform_gpu_class_blackwell_k;
    auto const chosen = [](int lowest, std::vector<int> const& own, bool compiled) {
        return vram::dispatched_gpu_class(lowest, own, compiled);
    };
    check("dispatch of Hoppers", chosen(hopper, {hopper, hopper}, true) == hopper);
    check("dispatch of Hoppers without their kernels", chosen(hopper, {hopper, hopper}, false) == ada);
    check("dispatch of a Hopper and a Blackwell", chosen(hopper, {hopper, blackwell}, true) == ada);
    check("dispatch of a Blackwell lowered to Hopper", chosen(hopper, {blackwell}, true) == ada);
    check("dispatch of a Blackwell", chosen(blackwell, {blackwell}, true) == blackwell);
    check("dispatch of a Blackwell without Hopper's kernels", chosen(blackwell, {blackwell}, false) == blackwell);
    check("dispatch of a Hopper and an Ampere", chosen(ampere, {hopper, ampere}, true) == ampere);
    check("dispatch of a Hopper lowered to Ampere", chosen(ampere, {hopper}, true) == ampere);
}

/** A Blackwell's class never selects kernels of Hopper's instructions. */
void test_family_of_blackwell() {
    int& chosen = vram::stream::of(stream()).gpu_class;
    int const own = std::exchange(chosen, int(uform_gpu_class_blackwell_k));
    check("family of a Blackwell", std::string(vram::gemm_family_of(vram::stream::of(stream())).name) == "sm80");
    chosen = own;
}

void test_unknown_device() {
    std::int32_t const index = 4096;
    uform_backend_options_t options{};
    options.devices = &index, options.devices_count = 1;
    void* made = nullptr;
    std::string const message = message_of(vram::backend_create(&options, &made), uform_status_device_k);
    check("unknown device refused: " + message, mentions(message, "devices[0]: 4096"));
}

void test_memory() {
    void* memory = nullptr;
    std::string const message =
        message_of(vram::memory_allocate(stream(), std::size_t(1) << 50, &memory), uform_status_out_of_memory_k);
    check("out of memory told: " + message, mentions(message, "1125899906842624 bytes") && mentions(message, "free"));

    constexpr std::size_t count = 100003;
    std::vector<std::uint32_t> values(count), back(count);
    std::iota(values.begin(), values.end(), 0u);
    require(vram::memory_allocate(stream(), count * sizeof(std::uint32_t), &memory), "memory_allocate");
    require(vram::memory_upload(stream(), memory, values.data(), count * sizeof(std::uint32_t)), "memory_upload");
    require(vram::memory_download(stream(), back.data(), memory, count * sizeof(std::uint32_t)), "memory_download");
    synchronize();
    check("memory upload and download", same_bits(values, back));
    require(vram::memory_zero(stream(), memory, count * sizeof(std::uint32_t)), "memory_zero");
    require(vram::memory_download(stream(), back.data(), memory, count * sizeof(std::uint32_t)), "memory_download");
    synchronize();
    check("memory zero", same_bits(back, std::vector<std::uint32_t>(count, 0)));
    vram::memory_release(stream(), memory);
    vram::memory_release(stream(), nullptr);

    require(vram::staging_allocate(stream(), 1000, &memory), "staging_allocate");
    std::memset(memory, 7, 1000);
    vram::staging_release(stream(), memory);
}

void test_places() {
    void* memory = nullptr;
    require(vram::memory_allocate(stream(), 1000, &memory), "memory_allocate");
    std::vector<std::uint8_t> const values(1000, 7);
    std::vector<std::uint8_t> back(1000);
    std::int32_t device = 99, within = 99, host = 99;
    require(vram::memory_device(stream(), memory, &device), "memory_device");
    require(vram::memory_device(stream(), static_cast<std::byte*>(memory) + 999, &within), "memory_device");
    require(vram::memory_device(stream(), values.data(), &host), "memory_device");
    check("places of memory", device == 0 && within == 0 && host == -1);
    void* pinned = nullptr;
    require(vram::staging_allocate(stream(), 1000, &pinned), "staging_allocate");
    require(vram::memory_device(stream(), pinned, &host), "memory_device");
    check("pinned memory is the host's", host == -1);
    vram::staging_release(stream(), pinned);

    require(vram::memory_copy(stream(), memory, values.data(), 500), "memory_copy");
    require(vram::memory_copy(stream(), static_cast<std::byte*>(memory) + 500, memory, 500), "memory_copy");
    require(vram::device_synchronize(stream()), "device_synchronize");
    require(vram::memory_copy(stream(), back.data(), memory, 1000), "memory_copy");
    synchronize();
    check("memory copied both ways", same_bits(values, back));
    vram::memory_release(stream(), memory);
    check("stream handle", vram::stream_handle(stream()) == vram::stream::of(stream()).handle);
}

void test_weights() {
    for (std::uint32_t columns : {64u, 27u}) {
        std::uint32_t const rows = 37;
        device_array<float> const plain(random_values(3).normal(rows * columns));
        check("weights bytes",
              vram::weights_bytes(uform_parameter_kind_matrix_k, rows, columns) == 2ull * rows * columns &&
                  vram::weights_bytes(uform_parameter_kind_vector_k, rows, 0) == 0);
        device_array<bf16> const working(rows * columns);
        require(
            vram::weights_import(stream(), uform_parameter_kind_matrix_k, rows, columns, plain.data(), working.data()),
            "weights_import");
        synchronize();
        check("weights import " + std::to_string(columns),
              same_bits(to_float(working.download()), rounded(plain.download())) && working.guarded());
    }
}

__global__ void do_nothing() {}

/** Whether the second of two kernels may begin before the first has ended, on a GPU that dispatches as a class. */
bool begins_early(int gpu_class) {
    vram::stream const own = vram::stream::of(stream());
    vram::stream as = own;
    as.gpu_class = gpu_class;
    require(cudaSetDevice(own.device), "cudaSetDevice");
    cudaGraph_t graph = nullptr;
    require(cudaStreamBeginCapture(own.handle, cudaStreamCaptureModeThreadLocal), "capture");
    vram::launch(as, do_nothing, 1, 1, 0);
    vram::launch_early(as, do_nothing, 1, 1, 0);
    require(cudaStreamEndCapture(own.handle, &graph), "capture");
    std::size_t count = 1;
    cudaGraphNode_t from{}, to{};
    cudaGraphEdgeData edge{};
#if CUDART_VERSION >= 13000
    require(cudaGraphGetEdges(graph, &from, &to, &edge, &count), "cudaGraphGetEdges");
#else
    require(cudaGraphGetEdges_v2(graph, &from, &to, &edge, &count), "cudaGraphGetEdges");
#endif
    cudaGraphDestroy(graph);
    return count == 1 && edge.type == cudaGraphDependencyTypeProgrammatic;
}

/** Where no one knows that a kernel waits for what came before, it begins behind it: a later GPU may run code that was
 *  compiled for an Ampere. */
void test_early_launches() {
    bool const hopper = vram::stream::of(stream()).gpu_class == uform_gpu_class_hopper_k;
    check("a Hopper's kernels begin early", !hopper || begins_early(uform_gpu_class_hopper_k));
    for (int other : {uform_gpu_class_ampere_k, uform_gpu_class_ada_k, uform_gpu_class_blackwell_k})
        check("those of class " + std::to_string(other) + " do not", !begins_early(other));
}

/** A launch that can not be: its error names the operation and does not stay behind. */
void test_failed_launch() {
    constexpr unsigned too_many_threads = 4096;
    uform_status_t const status = vram::operate("some_operation", stream(), [](vram::stream const& on) {
        vram::launch(on, do_nothing, 1, too_many_threads, 0);
    });
    std::string const message = message_of(status, uform_status_device_k);
    check("failed launch told: " + message, mentions(message, "some_operation: "));
    check("nothing stays behind", cudaPeekAtLastError() == cudaSuccess);
    require(
        vram::operate("do_nothing", stream(), [](vram::stream const& on) { vram::launch(on, do_nothing, 1, 1, 0); }),
        "do_nothing");
    synchronize();
}

/** A kernel that finds no room when it is first started, and every other failure of the runtime. */
void test_a_want_of_memory() {
    for (auto const& [result, status] : {std::pair{cudaErrorMemoryAllocation, uform_status_out_of_memory_k},
                                         {cudaErrorIllegalAddress, uform_status_device_k}}) {
        std::string const message = message_of(
            vram::operate("some_operation", stream(), [&](vram::stream const& on) { vram::check_cuda(result, on); }),
            status);
        check("status of a failure: " + message,
              mentions(message, "some_operation: ") && mentions(message, cudaGetErrorName(result)));
    }
}

CUstreamCaptureMode exchanged(CUstreamCaptureMode mode) {
    auto other = static_cast<cudaStreamCaptureMode>(mode);
    require(cudaThreadExchangeStreamCaptureMode(&other), "cudaThreadExchangeStreamCaptureMode");
    return static_cast<CUstreamCaptureMode>(other);
}

CUstreamCaptureMode capture_mode() {
    CUstreamCaptureMode const found = exchanged(CU_STREAM_CAPTURE_MODE_GLOBAL);
    exchanged(found);
    return found;
}

/** The thread is put back to what it was, however deep. */
void test_capture_modes() {
    constexpr auto global = CU_STREAM_CAPTURE_MODE_GLOBAL, local = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                   relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
    for (CUstreamCaptureMode own : {global, local, relaxed}) {
        CUstreamCaptureMode const before = exchanged(own);
        {
            vram::outside_captures const outside;
            check("mode within", capture_mode() == relaxed);
            {
                vram::outside_captures const nested;
                check("mode within the nested", capture_mode() == relaxed);
            }
            check("mode after the nested", capture_mode() == relaxed);
        }
        check("mode put back", capture_mode() == own);
        exchanged(before);
    }
    require(vram::capture_begin(stream()), "capture_begin");
    {
        vram::outside_captures const outside;
        check("mode within a capture", capture_mode() == local);
    }
    require(vram::capture_end(stream(), nullptr), "capture_end");
}

/** A plugin that waits for the GPU, or takes memory, while its work is captured is told at once. */
void test_waits_within_a_capture() {
    require(vram::capture_begin(stream()), "capture_begin");
    std::string message = message_of(vram::device_synchronize(stream()), uform_status_device_k);
    check("wait within a capture refused: " + message, mentions(message, "device_synchronize: what is captured"));
    void* memory = nullptr;
    message = message_of(vram::memory_allocate(stream(), 1000, &memory), uform_status_device_k);
    check("memory within a capture refused: " + message, mentions(message, "memory_allocate: "));
    require(vram::capture_end(stream(), nullptr), "capture_end");
    require(vram::device_synchronize(stream()), "device_synchronize");
    require(vram::memory_allocate(stream(), 1000, &memory), "memory_allocate");
    vram::memory_release(stream(), memory);
}

/** A capture that ends on a GPU that is lost still leaves the gate: who waits for the whole GPU is told, not kept. */
void test_a_lost_capture() {
    vram::stream& on = vram::stream::of(stream());
    require(vram::capture_begin(stream()), "capture_begin");
    constexpr int none = 4096; // of the same gate as GPU 0
    int const own = std::exchange(on.device, none);
    uform_graph_t* made = nullptr;
    check("capture on a lost GPU refused", vram::capture_end(stream(), &made) == uform_status_device_k && !made);
    on.device = own;
    cudaGraph_t captured = nullptr;
    check("capture ended", cudaStreamEndCapture(on.handle, &captured) == cudaSuccess);
    require(cudaGraphDestroy(captured), "cudaGraphDestroy");
    require(vram::device_synchronize(stream()), "device_synchronize");
}

} // namespace

int main() {
    test_classes();
    test_dispatch();
    test_family_of_blackwell();
    test_unknown_device();
    test_memory();
    test_places();
    test_weights();
    test_failed_launch();
    test_early_launches();
    test_a_want_of_memory();
    test_capture_modes();
    test_waits_within_a_capture();
    test_a_lost_capture();
    std::printf("gemm: %s\n", vram::backend_gemm(devices().backend()));
    return native_test::report();
}
