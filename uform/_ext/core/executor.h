/** The devices of this process that work is submitted to, and the worker threads of the host. */
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "core/operations.h"
#include "core/threads.h"

namespace uform {

struct evaluation_lists;

class executor {
public:
    static std::shared_ptr<executor> for_ram(int32_t devices, int32_t threads, char const* blas_path);
    /** @param threads Of the host; 0 takes the size of the affinity mask. */
    static std::shared_ptr<executor> for_vram(int32_t const* devices, size_t devices_count, unsigned threads = 0);
    /** The same on any table of operations. */
    static std::shared_ptr<executor> on(uform_executor_kind_t kind, uform_operations_t const& operations,
                                        std::vector<int32_t> devices, unsigned threads, char const* blas_path);
    ~executor();
    executor(executor const&) = delete;
    executor& operator=(executor const&) = delete;

    uform_executor_kind_t kind() const { return kind_; }
    int32_t gpu_class() const { return gpu_class_; }
    uform_operations_t const& operations() const { return operations_; }
    thread_pool& pool() { return pool_; }
    thread_pool const& pool() const { return pool_; }
    uint32_t devices() const { return static_cast<uint32_t>(streams_.size()); }
    int32_t device(size_t place) const { return indices_[place]; }
    /** The first place of a device by its index; the refusal of one that is not the executor's names the field. */
    uint32_t place_of(int32_t device, char const* field) const;
    uform_stream_t* stream(size_t place) const { return streams_[place]; }
    uform_stream_t* const* streams() const { return streams_.data(); }
    /** Another order of work on the device at a place, so that uploads overlap what runs; the same one in RAM. */
    uform_stream_t* upload_stream(size_t place) const { return uploads_.empty() ? streams_[place] : uploads_[place]; }
    uform_backend_counters_t counters() const;
    char const* gemm() const { return operations_.backend_gemm(backend_); }

    /** Held while a verb puts its work on the streams, and by all but a step until it is done. */
    std::mutex& order() { return order_; }
    /** For whoever holds `order`. */
    evaluation_lists& evaluation() { return *evaluation_; }

private:
    executor(uform_executor_kind_t kind, uform_operations_t const& operations, std::vector<int32_t> devices,
             unsigned threads);
    static std::shared_ptr<executor> shared(executor* made);
    void open(char const* blas_path);

    uform_executor_kind_t kind_;
    int32_t gpu_class_ = uform_gpu_class_none_k;
    uform_operations_t const& operations_;
    thread_pool pool_;
    std::vector<int32_t> indices_;
    void* backend_ = nullptr;
    std::vector<uform_stream_t*> streams_;
    std::vector<uform_stream_t*> uploads_; /* none where device memory is the host's */
    std::mutex order_;
    std::unique_ptr<evaluation_lists> evaluation_;
};

} // namespace uform

struct uform_executor_t {
    std::shared_ptr<uform::executor> body;
};
