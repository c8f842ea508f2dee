/** A step's work on one device as graphs: captured once a size, then put on the stream as a whole. */
#pragma once

#include <array>
#include <cstdint>

#include "core/operations.h"

namespace uform {

/** The parts of a step that are captured: all of it, or what lies between the exchanges among devices. */
enum class section { whole, forward, score, backward, update };

struct graph_counters {
    uint64_t graphs = 0, launches = 0;
};

/** Whether steps are captured where they can be: the environment variable UFORM_GRAPHS, 0 or 1; 1 where it is unset. */
bool graphs_wanted();

/** What decides which kernels a step starts, in few steps of each: all else is read from device memory. */
struct step_size {
    /** Active columns round up to so many shares of the capacity. */
    static constexpr uint32_t buckets_k = 16;
    /** The longest segment rounds up to a row's width, its half, and so on. */
    static constexpr uint32_t lengths_k = 4;

    uint32_t bucket = 0; /* none, or 1 to buckets_k */
    uint32_t length = 0; /* below lengths_k: how often the width is halved */

    step_size() = default;
    /** @param most Columns of the longest segment. */
    step_size(uint32_t columns, uint32_t capacity, uint32_t most, uint32_t row_columns);

    uint32_t active(uint32_t capacity) const;
    uint32_t longest(uint32_t row_columns) const { return row_columns >> length; }
};

/**
 *  Work is captured the second time that a size comes: the first time loads its kernels. What can not be captured then
 *  is tried again the next time. There is at most one graph a section and size.
 */
class step_graphs {
public:
    step_graphs(uform_operations_t const& operations, uform_stream_t* stream)
        : operations_(operations), stream_(stream) {}
    ~step_graphs();
    step_graphs(step_graphs const&) = delete;
    step_graphs& operator=(step_graphs const&) = delete;

    /** Whether a section is captured from now on; never where the backend captures nothing. */
    void allow(section which, bool capturable) { allowed_[place_of(which)] = capturable && operations_.capture_begin; }

    /** Has the stream do what `body` puts on it for a step of that size. */
    template <typename body_at> void run(section which, step_size const& size, body_at&& body) {
        if (inside_ || !allowed_[place_of(which)] || size.bucket == 0)
            return body();
        graph& one = graphs_[place_of(which)][(size.bucket - 1) * step_size::lengths_k + size.length];
        if (!one.captured)
            first_runs(one, body);
        if (one.captured)
            launch(one);
    }

    graph_counters counters() const { return counters_; }

private:
    static constexpr size_t sections_k = 5;
    static size_t place_of(section which) { return static_cast<size_t>(which); }

    struct graph {
        bool seen = false;
        uform_graph_t* captured = nullptr;
    };

    /** While a section is captured or run for the first time, those within it are a part of it. */
    struct within {
        bool& inside;
        explicit within(bool& inside) : inside(inside) { inside = true; }
        ~within() { inside = false; }
    };

    template <typename body_at> void first_runs(graph& one, body_at&& body) {
        within const own(inside_);
        if (!one.seen) {
            body();
            one.seen = true;
            return;
        }
        if (!capture(one, body))
            body();
    }

    /**
     *  Whether it could be captured. Another library of the process may break a capture, by waiting for the whole
     *  device: then nothing has run yet. A fault of the body's own comes again when it is run.
     */
    template <typename body_at> bool capture(graph& one, body_at& body) {
        begin();
        try {
            body();
        } catch (...) {
            forget();
            return false;
        }
        return end(one);
    }

    void begin();
    void forget() noexcept;
    bool end(graph& one);
    void launch(graph const& one);

    uform_operations_t const& operations_;
    uform_stream_t* stream_;
    std::array<bool, sections_k> allowed_{};
    std::array<std::array<graph, step_size::buckets_k * step_size::lengths_k>, sections_k> graphs_{};
    bool inside_ = false;
    graph_counters counters_;
};

} // namespace uform
