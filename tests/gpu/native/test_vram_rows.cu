// Rows of the hidden states by index, and their gradients back.
#include "tests/gpu/native/gpu_check.h"

using namespace gpu_test;
using namespace uform;

namespace {

struct rows_case {
    std::uint32_t hidden, columns, count, accumulate;
};

std::vector<bf16> run_case(rows_case const& shape, how mode) {
    auto const [hidden, columns, count, accumulate] = shape;
    std::string const name = "rows " + std::to_string(hidden) + (accumulate ? " added" : " overwritten");
    std::uint32_t const capacity = count + 13, active = count + 5, columns_active = columns + 7;
    random_values random(23);
    std::vector<float> const states = rounded(random.normal(std::size_t(columns) * hidden));
    std::vector<float> const rows_gradient = random.normal(std::size_t(count) * hidden);
    std::vector<float> const before = rounded(random.normal(std::size_t(columns_active) * hidden));
    std::vector<std::uint32_t> indices(count);
    for (std::uint32_t i = 0; i != count; ++i)
        indices[i] = (i * 17) % columns; // distinct: 17 and the columns have no common divisor

    device_array<std::uint32_t> const device_count(std::vector{count});
    device_array<std::uint32_t> const device_indices(indices, capacity);
    device_array<bf16> const device_states(to_bf16(states), std::size_t(columns_active) * hidden);
    device_array<bf16> const rows(std::size_t(capacity) * hidden);
    device_array<float> const device_rows_gradient(rows_gradient, std::size_t(capacity) * hidden);
    device_array<bf16> gradient(std::size_t(columns_active + 3) * hidden);
    if (accumulate)
        gradient.upload(to_bf16(before));
    uform_rows_t arguments{};
    arguments.hidden = hidden, arguments.capacity = capacity, arguments.active = active;
    arguments.count = device_count.data(), arguments.indices = device_indices.data();
    arguments.states = device_states.data(), arguments.rows = rows.data();
    arguments.rows_gradient = device_rows_gradient.data(), arguments.gradient = gradient.data();
    arguments.accumulate = accumulate, arguments.columns_active = columns_active;
    once(mode, "rows", [&] {
        require(vram::rows_gather(stream(), &arguments), "rows_gather");
        require(vram::rows_scatter(stream(), &arguments), "rows_scatter");
    });

    std::vector<float> const gathered = to_float(rows.download()), scattered = to_float(gradient.download());
    std::vector<float> expected(before.size(), 0.f);
    if (accumulate)
        expected = before;
    bool right = true, slack = true;
    for (std::size_t i = 0; i != gathered.size(); ++i) {
        std::size_t const row = i / hidden;
        if (row >= count)
            slack = slack && std::isnan(gathered[i]);
        else
            right = right && gathered[i] == states[indices[row] * std::size_t(hidden) + i % hidden];
    }
    for (std::size_t i = 0; i != rows_gradient.size(); ++i)
        expected[indices[i / hidden] * std::size_t(hidden) + i % hidden] += rows_gradient[i];
    expected = rounded(expected);
    check(name + " gathered", right);
    check(name + " scattered",
          same_bits(std::vector<float>(scattered.begin(), scattered.begin() + expected.size()), expected));
    for (std::size_t i = expected.size(); i != scattered.size(); ++i)
        slack = slack && std::isnan(scattered[i]);
    check(name + " slack", slack && rows.guarded() && gradient.guarded());
    return gradient.download();
}

void bench() {
    stopwatch watch;
    for (auto const& [hidden, columns] : {std::pair{512u, 65536u}, {768u, 65536u}, {1024u, 32768u}}) {
        std::uint32_t const count = columns * 3 / 10;
        std::vector<std::uint32_t> indices(count);
        for (std::uint32_t i = 0; i != count; ++i)
            indices[i] = i * 10 / 3;
        device_array<std::uint32_t> const device_count(std::vector{count}), device_indices(indices);
        device_array<bf16> const states(to_bf16(noise(std::size_t(columns) * hidden)));
        device_array<bf16> const rows(std::size_t(count) * hidden), gradient(states.size());
        device_array<float> const rows_gradient(noise(rows.size()));
        uform_rows_t arguments{};
        arguments.hidden = hidden, arguments.capacity = arguments.active = count;
        arguments.count = device_count.data(), arguments.indices = device_indices.data();
        arguments.states = states.data(), arguments.rows = rows.data();
        arguments.rows_gradient = rows_gradient.data(), arguments.gradient = gradient.data();
        arguments.columns_active = columns;
        std::string const name = std::to_string(hidden);
        watch.bytes("rows_gather " + name, 4.0 * double(rows.size()),
                    [&] { require(vram::rows_gather(stream(), &arguments), "rows_gather"); });
        watch.bytes("rows_scatter " + name, 4.0 * double(rows.size()) + 2.0 * double(gradient.size()),
                    [&] { require(vram::rows_scatter(stream(), &arguments), "rows_scatter"); });
        arguments.accumulate = 1;
        watch.bytes("rows_scatter, added, " + name, 8.0 * double(rows.size()),
                    [&] { require(vram::rows_scatter(stream(), &arguments), "rows_scatter"); });
    }
}

void check_all() {
    for (std::uint32_t accumulate : {0u, 1u})
        for (rows_case const& shape : {rows_case{64, 400, 150, accumulate},
                                       {576, 401, 400, accumulate},
                                       {2112, 50, 1, accumulate},
                                       {64, 31, 0, accumulate}})
            check("rows twice", same_bits(run_case(shape, how::direct), run_case(shape, how::captured)));
}

} // namespace

int main(int count, char** arguments) {
    if (wants_checks(count, arguments))
        check_all();
    if (wants_bench(count, arguments))
        bench();
    return native_test::report();
}
