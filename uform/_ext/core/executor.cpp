#include "core/executor.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include <unistd.h>

#include "core/evaluation_lists.h"

namespace uform {

namespace {
constexpr int32_t most_devices_k = 64;
constexpr int32_t most_threads_k = 1024;
} // namespace

executor::executor(uform_executor_kind_t kind, uform_operations_t const& operations, std::vector<int32_t> devices,
                   unsigned threads)
    : kind_(kind), operations_(operations), pool_(threads), indices_(std::move(devices)),
      evaluation_(std::make_unique<evaluation_lists>()) {}

void executor::open(char const* blas_path) {
    uform_backend_options_t options{};
    options.parallel = pool_.parallel();
    options.blas_path = blas_path;
    options.devices = indices_.data();
    options.devices_count = static_cast<uint32_t>(indices_.size());
    check(operations_.backend_create(&options, &backend_));
    gpu_class_ = operations_.backend_gpu_class(backend_);
    auto const open_streams = [&](std::vector<uform_stream_t*>& opened) {
        for (uint32_t place = 0; place != options.devices_count; ++place) {
            uform_stream_t* stream = nullptr;
            check(operations_.stream_create(backend_, place, &stream));
            opened.push_back(stream);
        }
    };
    open_streams(streams_);
    if (!operations_.host_memory)
        open_streams(uploads_);
}

executor::~executor() {
    for (uform_stream_t* stream : uploads_)
        operations_.stream_destroy(stream);
    for (uform_stream_t* stream : streams_)
        operations_.stream_destroy(stream);
    if (backend_)
        operations_.backend_destroy(backend_);
}

uform_backend_counters_t executor::counters() const {
    uform_backend_counters_t counted{};
    operations_.backend_counters(backend_, &counted);
    return counted;
}

uint32_t executor::place_of(int32_t device, char const* field) const {
    auto const found = std::find(indices_.begin(), indices_.end(), device);
    if (found != indices_.end())
        return static_cast<uint32_t>(found - indices_.begin());
    std::string owned;
    for (int32_t index : indices_)
        owned += (owned.empty() ? "" : ", ") + std::to_string(index);
    fail(uform_status_invalid_argument_k, field, ": device ", device, " is none of the executor's, ", owned);
}

/** A child of fork has the executor but none of its threads: waiting for them would never end, so there it is left
 * alone. */
std::shared_ptr<executor> executor::shared(executor* made) {
    return {made, [owner = getpid()](executor* one) {
                if (getpid() == owner)
                    delete one;
            }};
}

std::shared_ptr<executor> executor::on(uform_executor_kind_t kind, uform_operations_t const& operations,
                                       std::vector<int32_t> devices, unsigned threads, char const* blas_path) {
    std::shared_ptr<executor> made = shared(new executor(kind, operations, std::move(devices), threads));
    made->open(blas_path);
    return made;
}

std::shared_ptr<executor> executor::for_ram(int32_t devices, int32_t threads, char const* blas_path) {
    if (devices < 1 || devices > most_devices_k)
        fail(uform_status_invalid_argument_k, "devices: between 1 and ", most_devices_k, " virtual devices, not ",
             devices);
    if (threads < 0 || threads > most_threads_k)
        fail(uform_status_invalid_argument_k, "threads: between 0 and ", most_threads_k, ", not ", threads);
    std::vector<int32_t> indices(static_cast<size_t>(devices));
    std::iota(indices.begin(), indices.end(), 0);
    return on(uform_executor_kind_ram_k, ram_operations(), std::move(indices), static_cast<unsigned>(threads),
              blas_path);
}

std::shared_ptr<executor> executor::for_vram([[maybe_unused]] int32_t const* devices,
                                             [[maybe_unused]] size_t devices_count, [[maybe_unused]] unsigned threads) {
#if UFORM_WITH_VRAM
    std::vector<int32_t> const visible = vram_devices(); // says why where no GPU can be used
    std::vector<int32_t> const asked = devices ? std::vector<int32_t>(devices, devices + devices_count) : visible;
    if (asked.empty() || asked.size() > most_devices_k)
        fail(uform_status_invalid_argument_k, "devices: between 1 and ", most_devices_k, " GPUs, not ", asked.size());
    return on(uform_executor_kind_vram_k, vram_operations(), asked, threads, nullptr);
#else
    fail(uform_status_device_k,
         "this build of uform has no VRAM backend: build it where nvcc is found, or use Executor.for_ram");
#endif
}

} // namespace uform

extern "C" {

uform_status_t uform_executor_init_ram(int32_t devices, int32_t threads, char const* blas_path,
                                       uform_executor_t** executor) {
    return uform::guard(
        [&] { *executor = new uform_executor_t{uform::executor::for_ram(devices, threads, blas_path)}; });
}

uform_status_t uform_executor_init_vram(int32_t const* devices, size_t devices_count, uform_executor_t** executor) {
    return uform::guard([&] { *executor = new uform_executor_t{uform::executor::for_vram(devices, devices_count)}; });
}

void uform_executor_free(uform_executor_t* executor) { delete executor; }

int32_t uform_executor_kind(uform_executor_t const* executor) { return executor->body->kind(); }

int32_t uform_executor_devices(uform_executor_t const* executor) {
    return static_cast<int32_t>(executor->body->devices());
}

int32_t uform_executor_threads(uform_executor_t const* executor) {
    return static_cast<int32_t>(executor->body->pool().size());
}

int32_t uform_executor_gpu_class(uform_executor_t const* executor) { return executor->body->gpu_class(); }

int32_t uform_executor_device(uform_executor_t const* executor, int32_t place) {
    if (place < 0 || place >= uform_executor_devices(executor))
        return -1;
    return executor->body->device(static_cast<size_t>(place));
}

void* uform_executor_stream(uform_executor_t const* executor, int32_t place) {
    if (place < 0 || place >= uform_executor_devices(executor))
        return nullptr;
    // Not the one that computes: another thread's step may be captured there.
    return executor->body->operations().stream_handle(executor->body->upload_stream(static_cast<size_t>(place)));
}

char const* uform_executor_gemm(uform_executor_t const* executor) { return executor->body->gemm(); }
}
