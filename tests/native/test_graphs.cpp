// When a step's work is run, captured and launched: with a table that only writes down what it is asked.
#include "core/graphs.h"

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "tests/native/check.h"

using uform::section;
using uform::step_graphs;
using uform::step_size;

namespace {

/** What the table was asked, in letters: begin, end, forget, launch, destroy; and r where a body ran. */
std::string& told() {
    static std::string instance;
    return instance;
}

std::string take() { return std::exchange(told(), {}); }

uform_operations_t capturing_table() {
    take(); // what graphs of earlier tests told at their end
    uform_operations_t table{};
    table.capture_begin = [](uform_stream_t*) {
        told() += 'b';
        return uform_status_success_k;
    };
    table.capture_end = [](uform_stream_t*, uform_graph_t** graph) {
        told() += graph ? 'e' : 'f';
        if (graph)
            *graph = reinterpret_cast<uform_graph_t*>(&told());
        return uform_status_success_k;
    };
    table.graph_launch = [](uform_stream_t*, uform_graph_t*) {
        told() += 'l';
        return uform_status_success_k;
    };
    table.graph_destroy = [](uform_graph_t*) { told() += 'd'; };
    return table;
}

void run() { told() += 'r'; }

void test_sizes() {
    constexpr uint32_t capacity = 1000, width = 64; // steps of 63
    CHECK(step_size(0, capacity, 0, width).bucket == 0 && step_size(0, capacity, 0, width).active(capacity) == 0);
    for (auto const& [columns, bucket, active] :
         {std::tuple{1u, 1u, 63u}, {63, 1, 63}, {64, 2, 126}, {945, 15, 945}, {946, 16, 1000}, {1000, 16, 1000}}) {
        step_size const size(columns, capacity, 1, width);
        CHECK(size.bucket == bucket && size.active(capacity) == active);
    }
    for (uint32_t few = 1; few != 40; ++few)
        for (uint32_t columns = 1; columns <= few; ++columns) {
            step_size const size(columns, few, 1, few);
            CHECK(size.bucket >= 1 && size.bucket <= step_size::buckets_k);
            CHECK(size.active(few) >= columns && size.active(few) <= few);
        }
    for (auto const& [longest, rounded] : {std::pair{64u, 64u}, {33, 64}, {32, 32}, {17, 32}, {16, 16}, {8, 8}, {1, 8}})
        CHECK(step_size(10, capacity, longest, width).longest(width) == rounded);
    CHECK(step_size(1, 1, 1, 1).longest(1) == 1);
}

void test_captured_the_second_time() {
    uform_operations_t const table = capturing_table();
    {
        step_graphs graphs(table, nullptr);
        graphs.allow(section::whole, true);
        step_size const small(10, 160, 5, 64), large(100, 160, 5, 64), wide(10, 160, 64, 64);
        for (char const* expected : {"r", "brel", "l", "l"}) {
            graphs.run(section::whole, small, run);
            CHECK(take() == expected);
        }
        for (step_size const& other : {large, wide})
            for (char const* expected : {"r", "brel", "l"}) {
                graphs.run(section::whole, other, run);
                CHECK(take() == expected);
            }
        graphs.run(section::forward, small, run);
        CHECK(take() == "r"); // not allowed
        graphs.run(section::whole, step_size(0, 160, 0, 64), run);
        CHECK(take() == "r"); // nothing to size a graph by
        CHECK(graphs.counters().graphs == 3 && graphs.counters().launches == 7);
    }
    CHECK(take() == "ddd");
}

void test_sections_within_the_whole() {
    uform_operations_t const table = capturing_table();
    step_graphs graphs(table, nullptr);
    graphs.allow(section::whole, true);
    graphs.allow(section::forward, true);
    graphs.allow(section::update, true);
    step_size const size(10, 160, 5, 64);
    for (char const* expected : {"rr", "brrel", "l"}) {
        graphs.run(section::whole, size, [&] {
            graphs.run(section::forward, size, run);
            graphs.run(section::update, size, run);
        });
        CHECK(take() == expected);
    }
    CHECK(graphs.counters().graphs == 1);
}

void test_a_part_that_can_not_be_captured() {
    uform_operations_t const table = capturing_table();
    step_graphs graphs(table, nullptr);
    graphs.allow(section::whole, false);
    graphs.allow(section::forward, true);
    graphs.allow(section::score, false);
    graphs.allow(section::backward, true);
    step_size const size(10, 160, 5, 64);
    for (char const* expected : {"rrr", "brelrbrel", "lrl"}) {
        graphs.run(section::whole, size, [&] {
            for (section const part : {section::forward, section::score, section::backward})
                graphs.run(part, size, run);
        });
        CHECK(take() == expected);
    }
}

void test_a_failure_is_not_captured() {
    uform_operations_t const table = capturing_table();
    step_graphs graphs(table, nullptr);
    graphs.allow(section::whole, true);
    step_size const size(10, 160, 5, 64);
    bool failing = true;
    auto const attempt = [&] {
        try {
            graphs.run(section::whole, size, [&] {
                run();
                if (failing)
                    throw std::runtime_error("no");
            });
        } catch (std::runtime_error const&) {
            told() += 'x';
        }
        return take();
    };
    CHECK(attempt() == "rx");
    failing = false;
    CHECK(attempt() == "r"); // the first that went through
    failing = true;
    CHECK(attempt() == "brfrx"); // run after all, which tells what is wrong
    failing = false;
    CHECK(attempt() == "brel");
    CHECK(attempt() == "l");
}

void test_a_capture_that_others_broke() {
    uform_operations_t table = capturing_table();
    table.capture_end = [](uform_stream_t*, uform_graph_t** graph) {
        told() += graph ? 'e' : 'f';
        return uform_status_device_k;
    };
    step_graphs graphs(table, nullptr);
    graphs.allow(section::whole, true);
    step_size const size(10, 160, 5, 64);
    for (char const* expected : {"r", "brer", "brer"}) {
        graphs.run(section::whole, size, run);
        CHECK(take() == expected);
    }
    CHECK(graphs.counters().graphs == 0);
    table.capture_end = capturing_table().capture_end;
    graphs.run(section::whole, size, run);
    CHECK(take() == "brel");
}

void test_a_backend_without_graphs() {
    take();
    step_graphs graphs(uform::ram_operations(), nullptr);
    graphs.allow(section::whole, true);
    for (int step = 0; step != 3; ++step)
        graphs.run(section::whole, step_size(1, 1, 1, 1), run);
    CHECK(take() == "rrr");
}

void test_the_switch() {
    for (auto const& [value, wanted] : {std::pair{"", true}, {"1", true}, {"0", false}}) {
        setenv("UFORM_GRAPHS", value, 1);
        CHECK(uform::graphs_wanted() == wanted);
    }
    setenv("UFORM_GRAPHS", "off", 1);
    std::string message;
    try {
        uform::graphs_wanted();
    } catch (uform::error const& failure) {
        message = failure.message;
    }
    CHECK(message == "UFORM_GRAPHS: 0 or 1, not off");
    unsetenv("UFORM_GRAPHS");
    CHECK(uform::graphs_wanted());
}

} // namespace

int main() {
    test_sizes();
    test_captured_the_second_time();
    test_sections_within_the_whole();
    test_a_part_that_can_not_be_captured();
    test_a_failure_is_not_captured();
    test_a_capture_that_others_broke();
    test_a_backend_without_graphs();
    test_the_switch();
    return native_test::report();
}
