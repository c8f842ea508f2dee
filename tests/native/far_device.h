/**
 *  Devices whose memory is far: the operations of RAM over pages that nothing but an operation can touch. The host's
 * own code runs as it does for GPUs, and where it reads or writes what lies on a device, the program crashes. What
 * crosses does so as late as it may: a GPU that reaches all of the host's memory by itself copies nothing aside first.
 */
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include "core/executor.h"
#include "problem.h"

namespace native_test {

/** The memory of every far device of the process. */
class far_memory {
public:
    static constexpr size_t page_bytes_k = 4096;
    static constexpr size_t most_bytes_k = size_t(1) << 30;
    static constexpr int32_t host_k = -1;

    static far_memory& all() {
        static far_memory instance;
        return instance;
    }

    /** Lets the operations in its lifetime at the memory. */
    class opened {
    public:
        opened() : lock_(all().mutex_) {
            if (all().depth_++ != 0)
                return;
            all().protect(PROT_READ | PROT_WRITE);
            for (crossing const& one : std::exchange(all().crossings_, {}))
                std::memcpy(one.to, one.from, one.bytes);
        }
        ~opened() {
            if (--all().depth_ == 0)
                all().protect(PROT_NONE);
        }

    private:
        std::lock_guard<std::recursive_mutex> lock_;
    };

    void* allocate(int32_t device, size_t bytes) {
        opened const open;
        size_t const whole = (std::max<size_t>(bytes, 1) + page_bytes_k - 1) / page_bytes_k * page_bytes_k;
        if (whole > most_bytes_k)
            uform::fail(uform_status_out_of_memory_k, "far ", device, ": ", bytes, " bytes were asked for, ",
                        most_bytes_k, " are free");
        void* const memory = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            throw std::bad_alloc();
        std::memset(memory, 0xAB, whole);
        blocks_[address(memory)] = {whole, device};
        return memory;
    }

    /** Copies between the host and a device when the next operation comes, whichever it is. */
    void cross_later(void* to, void const* from, size_t bytes) {
        std::lock_guard const lock(mutex_);
        crossings_.push_back({to, from, bytes});
        most_crossed_ = std::max(most_crossed_, bytes);
    }

    /** As where a device is lost. */
    void forget_crossings() {
        std::lock_guard const lock(mutex_);
        crossings_.clear();
    }

    /** The most bytes that crossed at a time since it was last asked. */
    size_t take_most_crossed() {
        std::lock_guard const lock(mutex_);
        return std::exchange(most_crossed_, 0);
    }

    void release(void* memory) {
        opened const open;
        auto const found = blocks_.find(address(memory));
        if (found == blocks_.end())
            throw std::runtime_error("far memory was released that was not allocated");
        munmap(memory, found->second.bytes);
        blocks_.erase(found);
    }

    int32_t device_of(void const* memory) {
        std::lock_guard const lock(mutex_);
        auto after = blocks_.upper_bound(address(memory));
        if (after == blocks_.begin())
            return host_k;
        auto const& [begin, block] = *--after;
        return address(memory) < begin + block.bytes ? block.device : host_k;
    }

    size_t blocks() {
        std::lock_guard const lock(mutex_);
        return blocks_.size();
    }

private:
    struct block {
        size_t bytes;
        int32_t device;
    };

    struct crossing {
        void* to;
        void const* from;
        size_t bytes;
    };

    static uintptr_t address(void const* memory) { return reinterpret_cast<uintptr_t>(memory); }

    void protect(int access) {
        for (auto const& [begin, block] : blocks_)
            mprotect(reinterpret_cast<void*>(begin), block.bytes, access);
    }

    std::recursive_mutex mutex_;
    std::map<uintptr_t, block> blocks_; /* by their first address */
    std::vector<crossing> crossings_;   /* not done yet */
    size_t most_crossed_ = 0;
    int depth_ = 0;
};

/** An operation of RAM over far memory. */
template <auto slot_ak> struct far_operation;

template <typename... arguments_at, uform_status_t (*uform_operations_t::*slot_ak)(arguments_at...)>
struct far_operation<slot_ak> {
    static uform_status_t call(arguments_at... arguments) {
        far_memory::opened const open;
        return (uform::ram_operations().*slot_ak)(arguments...);
    }
};

/** Indices of devices by backend and by stream: RAM's own have none. */
inline std::map<void const*, std::vector<int32_t>>& far_backends() {
    static std::map<void const*, std::vector<int32_t>> instance;
    return instance;
}
inline std::map<uform_stream_t*, int32_t>& far_streams() {
    static std::map<uform_stream_t*, int32_t> instance;
    return instance;
}

inline uform_operations_t far_operations() {
    uform_operations_t table = uform::ram_operations();
    table.name = "far";
    table.host_memory = 0;
    table.backend_create = [](uform_backend_options_t const* options, void** backend) {
        uform_status_t const status = uform::ram_operations().backend_create(options, backend);
        if (status == uform_status_success_k)
            far_backends()[*backend].assign(options->devices, options->devices + options->devices_count);
        return status;
    };
    table.stream_create = [](void* backend, uint32_t place, uform_stream_t** stream) {
        uform_status_t const status = uform::ram_operations().stream_create(backend, place, stream);
        if (status == uform_status_success_k)
            far_streams()[*stream] = far_backends().at(backend).at(place);
        return status;
    };
    table.stream_handle = [](uform_stream_t* stream) { return static_cast<void*>(stream); };
    table.memory_allocate = [](uform_stream_t* stream, size_t bytes, void** memory) {
        return uform::guard([&] { *memory = far_memory::all().allocate(far_streams().at(stream), bytes); });
    };
    table.memory_release = [](uform_stream_t*, void* memory) { far_memory::all().release(memory); };
    table.memory_device = [](uform_stream_t*, void const* memory, int32_t* device) {
        *device = far_memory::all().device_of(memory);
        return uform_status_success_k;
    };
    table.memory_upload = table.memory_download = [](uform_stream_t*, void* to, void const* from, size_t bytes) {
        far_memory::all().cross_later(to, from, bytes);
        return uform_status_success_k;
    };
#define UFORM_FAR(slot) table.slot = far_operation<&uform_operations_t::slot>::call
    UFORM_FAR(memory_zero), UFORM_FAR(memory_copy), UFORM_FAR(stream_synchronize), UFORM_FAR(device_synchronize);
    UFORM_FAR(host_wait);
    UFORM_FAR(weights_import), UFORM_FAR(columns_expand), UFORM_FAR(update);
    UFORM_FAR(embedding_forward), UFORM_FAR(embedding_backward), UFORM_FAR(patches_forward);
    UFORM_FAR(patches_backward), UFORM_FAR(norm_qkv_forward), UFORM_FAR(attention_forward);
    UFORM_FAR(out_residual_forward), UFORM_FAR(norm_geglu_forward), UFORM_FAR(down_residual_forward);
    UFORM_FAR(down_residual_backward), UFORM_FAR(norm_geglu_backward), UFORM_FAR(out_residual_backward);
    UFORM_FAR(attention_backward), UFORM_FAR(norm_qkv_backward), UFORM_FAR(norm_forward), UFORM_FAR(norm_backward);
    UFORM_FAR(pool_forward), UFORM_FAR(pool_backward), UFORM_FAR(rows_gather), UFORM_FAR(rows_scatter);
    UFORM_FAR(bytes_head), UFORM_FAR(patches_head), UFORM_FAR(cross_entropy), UFORM_FAR(prefix_forward);
    UFORM_FAR(prefix_backward), UFORM_FAR(pairs_forward), UFORM_FAR(pairs_backward), UFORM_FAR(reduce_sum);
    UFORM_FAR(reduce_terms), UFORM_FAR(gather), UFORM_FAR(rows_narrow), UFORM_FAR(rows_widen);
    UFORM_FAR(choices_head);
#undef UFORM_FAR
    return table;
}

/** An executor on far devices of these indices. */
inline executor_ptr make_far_executor(std::vector<int32_t> devices) {
    static uform_operations_t const operations = far_operations();
    return executor_ptr(new uform_executor_t{
        uform::executor::on(uform_executor_kind_vram_k, operations, std::move(devices), 2, nullptr)});
}

} // namespace native_test
