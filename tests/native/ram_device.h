/** A RAM device to test operations on: with one thread or three, with our own GEMM or a BLAS; and memory that bites. */
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "core/operations.h"
#include "core/threads.h"
#include "tests/native/check.h"

namespace native_test {

class ram_device {
public:
    explicit ram_device(unsigned threads, char const* blas_path = nullptr) : pool_(threads) {
        uform_backend_options_t options{};
        options.parallel = pool_.parallel();
        options.blas_path = blas_path;
        options.devices_count = 1;
        uform::check(operations().backend_create(&options, &backend_));
        uform::check(operations().stream_create(backend_, 0, &stream_));
    }
    ~ram_device() {
        operations().stream_destroy(stream_);
        operations().backend_destroy(backend_);
    }
    ram_device(ram_device const&) = delete;
    ram_device& operator=(ram_device const&) = delete;

    static uform_operations_t const& operations() { return uform::ram_operations(); }
    uform_stream_t* stream() const { return stream_; }
    void* backend() const { return backend_; }

    /** Runs one operation of the table; a failure is thrown. */
    template <typename arguments_at>
    void run(uform_status_t (*operation)(uform_stream_t*, arguments_at const*), arguments_at const& arguments) const {
        uform::check(operation(stream_, &arguments));
    }

private:
    uform::thread_pool pool_;
    void* backend_ = nullptr;
    uform_stream_t* stream_ = nullptr;
};

/** The BLAS to test with, from the environment; null where there is none. */
inline char const* blas_path() { return std::getenv("UFORM_TEST_BLAS"); }

/** No BLAS, and the one to test with where there is one. */
inline std::vector<char const*> blas_choices() {
    return blas_path() ? std::vector<char const*>{nullptr, blas_path()} : std::vector<char const*>{nullptr};
}

/** Calls `body(device)` with one thread and with three, with each choice of BLAS. */
template <typename body_at> void on_every_device(body_at&& body) {
    for (char const* blas : blas_choices())
        for (unsigned threads : {1u, 3u})
            body(ram_device(threads, blas));
}

/**
 *  Computes with one thread and with three, and checks that the bits are the same.
 *  @param compute Called with a device, answers a vector of values.
 *  @return What it answers.
 */
template <typename compute_at> auto same_on_threads(char const* blas, compute_at&& compute) {
    auto const one = compute(ram_device(1, blas));
    auto const three = compute(ram_device(3, blas));
    CHECK(one.size() == three.size());
    CHECK(std::memcmp(one.data(), three.data(), one.size() * sizeof one[0]) == 0);
    return one;
}

inline float poison() { return std::numeric_limits<float>::quiet_NaN(); }

/** Values [0, used) at random, NaN up to the capacity: whoever reads those shows it. */
class random_values {
public:
    explicit random_values(unsigned seed) : generator_(seed) {}

    std::vector<float> normal(std::size_t used, float deviation = 1, std::size_t capacity = 0) {
        std::vector<float> values(std::max(used, capacity), poison());
        std::normal_distribution<float> distribution(0, deviation);
        for (std::size_t i = 0; i != used; ++i)
            values[i] = distribution(generator_);
        return values;
    }

    std::size_t below(std::size_t bound) {
        return std::uniform_int_distribution<std::size_t>(0, bound - 1)(generator_);
    }

private:
    std::mt19937 generator_;
};

/** Memory of which every byte is set, so that its floats and doubles are NaN. */
class poisoned_memory {
public:
    explicit poisoned_memory(std::size_t bytes) : words_((bytes + sizeof(double) - 1) / sizeof(double)) {
        std::memset(words_.data(), 0xFF, words_.size() * sizeof(double));
    }
    void* data() { return words_.data(); }

private:
    std::vector<double> words_;
};

/** The error in the 2-norm, relative to that of `expected`. */
template <typename value_at> double relative_error(std::span<value_at const> values, std::span<double const> expected) {
    double error = 0, norm = 0;
    for (std::size_t i = 0; i != expected.size(); ++i) {
        double const difference = double(values[i]) - expected[i];
        error += difference * difference;
        norm += expected[i] * expected[i];
    }
    return std::sqrt(error) / std::sqrt(norm > 0 ? norm : 1);
}

inline double relative_error(std::vector<float> const& values, std::vector<double> const& expected) {
    return relative_error<float>(std::span(values), std::span(expected));
}

inline bool all_finite(std::span<float const> values) {
    for (float value : values)
        if (!std::isfinite(value))
            return false;
    return true;
}

inline bool all_poison(std::span<float const> values) {
    for (float value : values)
        if (!std::isnan(value))
            return false;
    return true;
}

inline std::vector<double> to_double(std::vector<float> const& values) { return {values.begin(), values.end()}; }

/** Segments end to end, and everything that describes their columns; arrays are longer than used. */
struct columns_fixture {
    struct shape {
        std::uint32_t columns;
        std::uint16_t axes;
        std::uint16_t extents[UFORM_AXES];
        std::uint32_t pooled;
        std::uint32_t bag;
        std::uint16_t modality;
    };

    std::uint32_t counts[3] = {0, 0, 0};
    std::vector<uform_segment_t> segments;
    std::vector<std::uint16_t> codes, positions;
    std::vector<std::uint32_t> segment_of;
    uform_columns_t view{};

    static constexpr std::uint32_t spare_k = 9; // columns, segments and bags past the counts

    explicit columns_fixture(std::vector<shape> const& shapes) {
        std::uint32_t longest = 0;
        for (shape const& one : shapes) {
            segments.push_back({counts[0],
                                one.columns,
                                one.pooled,
                                one.bag,
                                one.modality,
                                one.axes,
                                {one.extents[0], one.extents[1], one.extents[2]},
                                0});
            counts[0] += one.columns;
            counts[2] = std::max(counts[2], one.bag + 1);
            longest = std::max(longest, one.columns);
        }
        counts[1] = static_cast<std::uint32_t>(shapes.size());
        std::uint32_t const capacity = counts[0] + spare_k;
        segments.resize(counts[1] + spare_k, {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, 99, 3, {9, 9, 9}, 0});
        codes.assign(capacity, 0xABCD);
        positions.assign(std::size_t(capacity) * UFORM_AXES, 0xABCD);
        segment_of.assign(capacity, UINT32_MAX);
        view = {capacity, counts[0] + spare_k / 2, counts[1] + spare_k, counts[2] + spare_k, longest,
                counts,   segments.data(),         codes.data(),        segment_of.data(),   positions.data()};
    }
    columns_fixture(columns_fixture const&) = delete;
    columns_fixture& operator=(columns_fixture const&) = delete;

    std::uint32_t used() const { return counts[0]; }
};

} // namespace native_test
