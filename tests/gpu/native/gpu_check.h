/** What every GPU test program shares: a device, memory with guard zones and NaN poison, comparisons, timings. */
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "tests/native/ram_device.h"
#include "vram/operations.h"
#include "vram/stream.h"

namespace gpu_test {

using native_test::columns_fixture;
using native_test::ram_device;
using native_test::random_values;
using native_test::relative_error;

/** Ends the program: after a failed call of the runtime nothing that follows means anything. */
inline void require(cudaError_t result, char const* what) {
    if (result == cudaSuccess)
        return;
    std::printf("FAIL %s: %s\n", what, cudaGetErrorString(result));
    std::fflush(stdout);
    std::_Exit(2);
}

inline void require(uform_status_t status, char const* what) {
    if (status == uform_status_success_k)
        return;
    std::printf("FAIL %s: %s\n", what, uform::last_error());
    std::fflush(stdout);
    std::_Exit(2);
}

/* ------------------------------------------------------------------------------------------------------ the device */

/** A backend on some GPUs, one stream each; an index may come several times. */
class device_set {
public:
    explicit device_set(std::vector<std::int32_t> indices) {
        uform_backend_options_t options{};
        options.devices = indices.data();
        options.devices_count = static_cast<std::uint32_t>(indices.size());
        require(uform::vram::backend_create(&options, &backend_), "backend_create");
        streams_.resize(indices.size());
        for (std::uint32_t place = 0; place != indices.size(); ++place)
            require(uform::vram::stream_create(backend_, place, &streams_[place]), "stream_create");
    }
    ~device_set() {
        for (uform_stream_t* one : streams_)
            uform::vram::stream_destroy(one);
        uform::vram::backend_destroy(backend_);
    }
    device_set(device_set const&) = delete;
    device_set& operator=(device_set const&) = delete;

    void const* backend() const { return backend_; }
    uform_stream_t* const* streams() const { return streams_.data(); }
    uform_stream_t* stream(std::size_t place = 0) const { return streams_[place]; }

    void synchronize() const {
        for (uform_stream_t* one : streams_)
            require(uform::vram::stream_synchronize(one), "stream_synchronize");
    }

private:
    void* backend_ = nullptr;
    std::vector<uform_stream_t*> streams_;
};

/** The one that most tests use: the first GPU. */
inline device_set& devices() {
    static device_set instance({0});
    return instance;
}

inline uform_stream_t* stream() { return devices().stream(); }
inline void synchronize() { devices().synchronize(); }

/** Runs one operation and waits, so that a fault is told under its name. */
template <typename arguments_at>
void run(char const* name, uform_status_t (*operation)(uform_stream_t*, arguments_at const*),
         arguments_at const& arguments) {
    require(operation(stream(), &arguments), name);
    require(uform::vram::stream_synchronize(stream()), name);
}

/** How work gets onto the stream: at once, or as a graph that is captured first. */
enum class how { direct, captured };

/** Runs what `body` puts on the first device's stream, and waits. */
template <typename body_at> void once(how mode, char const* name, body_at&& body) {
    cudaStream_t const handle = uform::vram::stream::of(stream()).handle;
    require(cudaSetDevice(uform::vram::stream::of(stream()).device), name);
    if (mode == how::direct) {
        body();
    } else {
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t executable = nullptr;
        require(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal), name);
        body();
        require(cudaStreamEndCapture(handle, &graph), name);
        require(cudaGraphInstantiate(&executable, graph, 0), name);
        require(cudaGraphLaunch(executable, handle), name);
        require(cudaStreamSynchronize(handle), name);
        cudaGraphExecDestroy(executable);
        cudaGraphDestroy(graph);
    }
    require(uform::vram::stream_synchronize(stream()), name);
}

/* ------------------------------------------------------------------------------------------------------ the memory */

/** `count` values between two guard zones; all bytes are 0xFF, so that floats of every width are NaN. */
template <typename value_at> class device_array {
public:
    static constexpr std::size_t guard_k = 1024;

    explicit device_array(std::size_t count, int device = 0) : count_(count), device_(device) {
        require(cudaSetDevice(device_), "cudaSetDevice");
        require(cudaMalloc(reinterpret_cast<void**>(&base_), span_bytes()), "cudaMalloc");
        poison();
    }
    explicit device_array(std::vector<value_at> const& values, std::size_t capacity = 0, int device = 0)
        : device_array(std::max(values.size(), capacity), device) {
        upload(values);
    }
    ~device_array() {
        cudaSetDevice(device_);
        cudaFree(base_);
    }
    device_array(device_array const&) = delete;
    device_array& operator=(device_array const&) = delete;

    value_at* data() const { return reinterpret_cast<value_at*>(base_ + guard_k); }
    std::size_t size() const { return count_; }
    std::size_t bytes() const { return count_ * sizeof(value_at); }

    void poison() {
        require(cudaSetDevice(device_), "cudaSetDevice");
        require(cudaMemset(base_, 0xFF, span_bytes()), "cudaMemset");
        require(cudaDeviceSynchronize(), "cudaMemset");
    }
    void upload(std::vector<value_at> const& values) {
        if (!values.empty())
            require(cudaMemcpy(data(), values.data(), values.size() * sizeof(value_at), cudaMemcpyHostToDevice),
                    "cudaMemcpy");
        // From pageable memory the call may return before the data has arrived, and the tests' streams do not wait.
        require(cudaDeviceSynchronize(), "cudaMemcpy");
    }
    std::vector<value_at> download() const {
        std::vector<value_at> values(count_);
        if (count_)
            require(cudaMemcpy(values.data(), data(), bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
        return values;
    }
    /** Whether nothing was written outside. */
    bool guarded() const {
        std::vector<std::uint8_t> zone(guard_k);
        for (std::size_t at : {std::size_t(0), guard_k + padded()}) {
            require(cudaMemcpy(zone.data(), base_ + at, guard_k, cudaMemcpyDeviceToHost), "cudaMemcpy");
            if (!std::all_of(zone.begin(), zone.end(), [](std::uint8_t byte) { return byte == 0xFF; }))
                return false;
        }
        std::size_t const rest = padded() - bytes();
        require(cudaMemcpy(zone.data(), base_ + guard_k + bytes(), rest, cudaMemcpyDeviceToHost), "cudaMemcpy");
        return std::all_of(zone.begin(), zone.begin() + static_cast<std::ptrdiff_t>(rest),
                           [](std::uint8_t byte) { return byte == 0xFF; });
    }

private:
    /** Bytes up to the second zone, which begins on an aligned address. */
    std::size_t padded() const { return (bytes() + 255) / 256 * 256; }
    std::size_t span_bytes() const { return padded() + 2 * guard_k; }

    std::size_t count_;
    int device_;
    std::uint8_t* base_ = nullptr;
};

/** The columns with what RAM's `columns_expand` makes of them. */
inline columns_fixture const& expanded(columns_fixture& columns) {
    ram_device const device(1);
    device.run(device.operations().columns_expand, columns.view);
    return columns;
}

/** A fixture of columns as the device has it. Codes are uploaded as the fixture has them at that time. */
class device_columns {
public:
    explicit device_columns(columns_fixture const& host)
        : counts_(std::vector<std::uint32_t>(host.counts, host.counts + 3)), segments_(host.segments),
          codes_(host.codes), segment_of_(host.segment_of.size()), positions_(host.positions.size()), view(host.view) {
        view.counts = counts_.data();
        view.segments = segments_.data();
        view.codes = codes_.data();
        view.segment_of = segment_of_.data();
        view.positions = positions_.data();
    }

    /** Expands the columns by the operation, or by what the fixture already holds. */
    void expand() { run("columns_expand", uform::vram::columns_expand, view); }
    void copy_expanded(columns_fixture const& host) {
        segment_of_.upload(host.segment_of);
        positions_.upload(host.positions);
    }

    std::vector<std::uint32_t> segment_of() const { return segment_of_.download(); }
    std::vector<std::uint16_t> positions() const { return positions_.download(); }
    bool guarded() const {
        return counts_.guarded() && segments_.guarded() && codes_.guarded() && segment_of_.guarded() &&
               positions_.guarded();
    }

private:
    device_array<std::uint32_t> counts_;
    device_array<uform_segment_t> segments_;
    device_array<std::uint16_t> codes_;
    device_array<std::uint32_t> segment_of_;
    device_array<std::uint16_t> positions_;

public:
    uform_columns_t view;
};

/* ---------------------------------------------------------------------------------------------------- the numbers */

using bf16 = __nv_bfloat16;

inline std::vector<bf16> to_bf16(std::vector<float> const& values) {
    std::vector<bf16> rounded(values.size());
    std::transform(values.begin(), values.end(), rounded.begin(), [](float value) { return __float2bfloat16(value); });
    return rounded;
}

inline std::vector<float> to_float(std::vector<bf16> const& values) {
    std::vector<float> wide(values.size());
    std::transform(values.begin(), values.end(), wide.begin(), [](bf16 value) { return __bfloat162float(value); });
    return wide;
}

/** The values that bfloat16 can hold, nearest to those given. */
inline std::vector<float> rounded(std::vector<float> const& values) { return to_float(to_bf16(values)); }

inline std::vector<double> to_double(std::vector<float> const& values) { return {values.begin(), values.end()}; }

/* ----------------------------------------------------------------------------------------------------- the verdicts */

/** Prints and counts one check; NaN never passes. @param naive The error from which the bound follows, if from one. */
inline bool check(std::string const& name, double error, double bound, double naive = 0) {
    bool const holds = error <= bound;
    ++(holds ? native_test::counters().passed : native_test::counters().failed);
    std::printf("%s %s %.3e %.3e", holds ? "ok" : "FAIL", name.c_str(), error, bound);
    if (naive > 0)
        std::printf(" naive %.3e", naive);
    std::printf("\n");
    return holds;
}

inline bool check(std::string const& name, bool holds) { return check(name, holds ? 0.0 : 1.0, 0.0); }

/**
 *  The tolerance policy: twice the error of a naive implementation at the same precision, plus 1e-3.
 *  @param naive What a plain loop answers from the same rounded inputs, rounded as the operation's output is.
 */
inline bool check_close(std::string const& name, std::vector<float> const& got, std::vector<float> const& naive,
                        std::vector<double> const& expected) {
    double const of_naive = relative_error(naive, expected);
    return check(name, relative_error(got, expected), 2 * of_naive + 1e-3, of_naive);
}

/** The same where only the output's rounding to bfloat16 makes a naive implementation differ from double. */
inline bool check_rounded(std::string const& name, std::vector<float> const& got, std::vector<double> const& expected) {
    return check_close(name, got, rounded(std::vector<float>(expected.begin(), expected.end())), expected);
}

/** Whether all values from `used` on are zero up to `active`, and past it as they were. */
inline bool slack_holds(std::vector<float> const& values, std::size_t used, std::size_t active) {
    bool holds = true;
    for (std::size_t i = used; i < values.size(); ++i)
        holds = holds && (i < active ? values[i] == 0 : std::isnan(values[i]));
    return holds;
}

template <typename value_at> bool same_bits(std::vector<value_at> const& one, std::vector<value_at> const& two) {
    return one.size() == two.size() && std::memcmp(one.data(), two.data(), one.size() * sizeof(value_at)) == 0;
}

/* ------------------------------------------------------------------------------------------------------ the timings */

/** Values that look random, made faster than those of a generator: timings need many, but not different ones. */
inline std::vector<float> noise(std::size_t count) {
    constexpr std::size_t period = 65537;
    std::vector<float> const pattern = random_values(5).normal(std::min(count, period));
    std::vector<float> values(count);
    for (std::size_t begin = 0; begin < count; begin += period)
        std::copy_n(pattern.begin(), std::min(period, count - begin),
                    values.begin() + static_cast<std::ptrdiff_t>(begin));
    return values;
}

/** Whether the program was given an option. */
inline bool asked(int count, char** arguments, std::string_view option) {
    return std::find(arguments + 1, arguments + count, option) != arguments + count;
}

/** Whether the program is to check: `--unchecked` leaves that out, before timings or under a profiler. */
inline bool wants_checks(int count, char** arguments) { return !asked(count, arguments, "--unchecked"); }

/** Whether the program was asked to time. */
inline bool wants_bench(int count, char** arguments) { return asked(count, arguments, "--bench"); }

/** Times what is put on the first device's stream: the median in milliseconds, with a cold cache each time. */
class stopwatch {
public:
    stopwatch() {
        require(cudaEventCreate(&begin_), "cudaEventCreate");
        require(cudaEventCreate(&end_), "cudaEventCreate");
        require(cudaMalloc(&flush_, flush_bytes_k), "cudaMalloc");
    }
    ~stopwatch() {
        cudaEventDestroy(begin_);
        cudaEventDestroy(end_);
        cudaFree(flush_);
    }
    stopwatch(stopwatch const&) = delete;
    stopwatch& operator=(stopwatch const&) = delete;

    template <typename body_at> double milliseconds(body_at&& body, int repeats = 15) {
        cudaStream_t const handle = uform::vram::stream::of(stream()).handle;
        std::vector<float> times;
        for (int i = 0; i != repeats + 2; ++i) {
            require(cudaMemsetAsync(flush_, i, flush_bytes_k, handle), "cudaMemsetAsync");
            require(cudaEventRecord(begin_, handle), "cudaEventRecord");
            body();
            require(cudaEventRecord(end_, handle), "cudaEventRecord");
            require(cudaEventSynchronize(end_), "cudaEventSynchronize");
            float time = 0;
            require(cudaEventElapsedTime(&time, begin_, end_), "cudaEventElapsedTime");
            if (i >= 2)
                times.push_back(time);
        }
        std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
        return double(times[static_cast<std::size_t>(repeats / 2)]);
    }

    /** Bytes a second, read and written, of a large copy on the device. */
    double copy_rate() {
        if (copy_rate_ == 0) {
            constexpr std::size_t bytes = std::size_t(1) << 30;
            device_array<std::uint8_t> from(bytes), to(bytes);
            cudaStream_t const handle = uform::vram::stream::of(stream()).handle;
            double const time = milliseconds([&] {
                require(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, handle),
                        "cudaMemcpyAsync");
            });
            copy_rate_ = 2 * double(bytes) / (time * 1e-3);
            std::printf("bench copy %.4f ms %.0f GB/s\n", time, copy_rate_ * 1e-9);
        }
        return copy_rate_;
    }

    /** Prints a time as a rate and as a fraction of the copy's. @param bytes Those that must be read and written. */
    template <typename body_at> void bytes(std::string const& name, double bytes, body_at&& body) {
        double const of_copy = copy_rate(), time = milliseconds(body), rate = bytes / (time * 1e-3);
        std::printf("bench %s %.4f ms %.0f GB/s %.2f of copy\n", name.c_str(), time, rate * 1e-9, rate / of_copy);
    }

    /** Prints a time as a rate of operations and as a fraction of 790 TFLOP/s. */
    template <typename body_at> void operations(std::string const& name, double operations, body_at&& body) {
        double const time = milliseconds(body), rate = operations / (time * 1e-3);
        std::printf("bench %s %.4f ms %.1f TFLOP/s %.2f of 790\n", name.c_str(), time, rate * 1e-12, rate / 790e12);
    }

private:
    static constexpr std::size_t flush_bytes_k = std::size_t(256) << 20;
    cudaEvent_t begin_{}, end_{};
    void* flush_ = nullptr;
    double copy_rate_ = 0;
};

/** `segments` of the same length, all their columns pooled, each a bag of its own. */
inline std::vector<columns_fixture::shape> equal_segments(std::uint32_t segments, std::uint32_t length,
                                                          std::uint16_t modality = uform_modality_text_k) {
    std::vector<columns_fixture::shape> shapes;
    for (std::uint32_t i = 0; i != segments; ++i)
        shapes.push_back({length, 1, {static_cast<std::uint16_t>(length - 1), 0, 0}, length, i, modality});
    return shapes;
}

/** Lengths that no tile divides, from one column on; some columns are not pooled, and some bags have two segments. */
inline std::vector<columns_fixture::shape> odd_segments(std::uint32_t segments = 75) {
    std::vector<columns_fixture::shape> shapes;
    for (std::uint32_t i = 0; i != segments; ++i) {
        std::uint32_t const length = 1 + i * 37 % 131;
        shapes.push_back({length,
                          1,
                          {static_cast<std::uint16_t>(length - 1), 0, 0},
                          1 + (length - 1) * 3 / 4,
                          i / 2,
                          static_cast<std::uint16_t>(i % 3 ? uform_modality_text_k : uform_modality_image_k)});
    }
    return shapes;
}

} // namespace gpu_test
