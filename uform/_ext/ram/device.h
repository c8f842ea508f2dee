/** The backend's life, its streams and its memory, as the table has them. */
#pragma once

#include <cstddef>
#include <cstdint>

#include <uform/plugin.h>

namespace uform::ram {

uform_status_t backend_create(uform_backend_options_t const* options, void** made);
void backend_destroy(void* opaque);
char const* backend_gemm(void const* opaque);
std::int32_t backend_gpu_class(void const* opaque);

uform_status_t stream_create(void* owner, std::uint32_t device, uform_stream_t** made);
void stream_destroy(uform_stream_t* opaque);
uform_status_t stream_synchronize(uform_stream_t* opaque);
uform_status_t device_synchronize(uform_stream_t* opaque);
void* stream_handle(uform_stream_t* opaque);

/** Memory aligned to 64 bytes; a failure names the bytes asked for and free. */
uform_status_t memory_allocate(uform_stream_t* opaque, std::size_t bytes, void** memory);
void memory_release(uform_stream_t* opaque, void* memory);
uform_status_t staging_allocate(uform_stream_t* opaque, std::size_t bytes, void** memory);
void staging_release(uform_stream_t* opaque, void* memory);
uform_status_t memory_upload(uform_stream_t* opaque, void* device, void const* host, std::size_t bytes);
uform_status_t memory_download(uform_stream_t* opaque, void* host, void const* device, std::size_t bytes);
uform_status_t memory_zero(uform_stream_t* opaque, void* device, std::size_t bytes);
uform_status_t memory_copy(uform_stream_t* opaque, void* to, void const* from, std::size_t bytes);
uform_status_t memory_device(uform_stream_t* opaque, void const* memory, std::int32_t* device);

/** Work is done when its call returns, so that there is never anything to wait for. */
uform_status_t event_create(uform_stream_t* opaque, uform_event_t** made);
void event_destroy(uform_event_t* opaque);
uform_status_t event_record(uform_stream_t* opaque, uform_event_t* event);
uform_status_t stream_wait(uform_stream_t* opaque, uform_event_t* event);
uform_status_t host_wait(uform_event_t* event);
uform_status_t event_elapsed(uform_event_t* from, uform_event_t* to, double* seconds);
void backend_counters(void const* opaque, uform_backend_counters_t* counters);

/** Hidden states and working weights are plain float32. */
std::size_t state_bytes(std::uint32_t hidden);
std::size_t weights_bytes(std::uint32_t kind, std::uint32_t rows, std::uint32_t columns);
uform_status_t weights_import(uform_stream_t* opaque, std::uint32_t kind, std::uint32_t rows, std::uint32_t columns,
                              float const* plain, void* working);

} // namespace uform::ram
