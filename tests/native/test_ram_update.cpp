// The optimizer, the exchange among virtual devices, and the backend's memory.
#include <cmath>
#include <numbers>

#include "tests/native/allocations.h"
#include "tests/native/ram_device.h"

using namespace native_test;

namespace {

constexpr float endless_k = std::numeric_limits<float>::infinity();

/** Parameters in three spans with a gap between them: decayed, not decayed, and bounded. */
struct update_fixture {
    std::vector<float> parameters, gradient, first_moment, second_moment;
    std::vector<uform_parameter_span_t> spans;
    uform_update_state_t state{};
    std::size_t bytes;
    poisoned_memory workspace;
    uform_update_t arguments{};

    explicit update_fixture(std::size_t count)
        : bytes(ram_device::operations().update_workspace_bytes(count)), workspace(bytes) {
        random_values random(41);
        parameters = random.normal(count), gradient = random.normal(count);
        first_moment.assign(count, 0.f), second_moment.assign(count, 0.f);
        std::uint64_t const third = count / 3;
        spans = {span(0, third, 1, -endless_k, endless_k), span(third, third - 5, 0, -endless_k, endless_k),
                 span(2 * third, count - 2 * third, 0, -0.5f, 0.75f)};
        for (std::uint64_t i = 2 * third - 5; i != 2 * third; ++i)
            gradient[i] = 0;
        arguments.count = count;
        arguments.parameters = parameters.data(), arguments.gradient = gradient.data();
        arguments.first_moment = first_moment.data(), arguments.second_moment = second_moment.data();
        arguments.spans = spans.data(), arguments.spans_count = static_cast<std::uint32_t>(spans.size());
        arguments.terms_count = 3;
        arguments.peak = 0.01, arguments.floor = 0.001, arguments.warmup_steps = 3, arguments.steps = 8;
        arguments.beta1 = 0.9, arguments.beta2 = 0.98, arguments.epsilon = 1e-6, arguments.decay = 0.1,
        arguments.max_norm = 1;
        arguments.state = &state;
        arguments.workspace = workspace.data(), arguments.workspace_bytes = bytes;
        state.terms[3] = std::numeric_limits<double>::quiet_NaN(); // past the terms in use
    }

    static uform_parameter_span_t span(std::uint64_t offset, std::uint64_t count, float decay, float minimum,
                                       float maximum) {
        uform_parameter_span_t made{};
        made.offset = offset, made.count = count, made.decay = decay, made.minimum = minimum, made.maximum = maximum;
        return made;
    }
};

double expected_rate(int step) {
    if (step <= 3)
        return 0.01 * step / 3;
    if (step >= 8)
        return 0.001;
    return 0.001 + 0.009 * 0.5 * (1 + std::cos(std::numbers::pi * (step - 3) / 5.0));
}

void test_update() {
    constexpr std::size_t count = 40009;
    same_on_threads(nullptr, [](ram_device const& device) {
        update_fixture update(count);
        std::vector<double> values = to_double(update.parameters), first(count, 0.0), second(count, 0.0);
        std::vector<float> const untouched(update.parameters);
        random_values random(43);
        for (int step = 1; step <= 10; ++step) {
            double square = 0;
            for (float value : update.gradient)
                square += double(value) * double(value);
            double const clip = std::sqrt(square) > 1 ? 1 / std::sqrt(square) : 1, rate = expected_rate(step);
            for (auto const& span : update.spans)
                for (std::uint64_t i = span.offset; i != span.offset + span.count; ++i) {
                    double const slope = double(update.gradient[i]) * clip;
                    first[i] = 0.9 * first[i] + 0.1 * slope;
                    second[i] = 0.98 * second[i] + 0.02 * slope * slope;
                    double const mean = first[i] / (1 - std::pow(0.9, step)),
                                 spread = second[i] / (1 - std::pow(0.98, step));
                    values[i] -= rate * (mean / (std::sqrt(spread) + 1e-6) + double(span.decay) * 0.1 * values[i]);
                    values[i] = std::min(std::max(values[i], double(span.minimum)), double(span.maximum));
                }
            device.run(device.operations().update, update.arguments);
            CHECK(update.state.applied == static_cast<std::uint64_t>(step) && update.state.refused == 0);
            CHECK(std::abs(update.state.learning_rate - rate) < 1e-15);
            CHECK(std::abs(update.state.gradient_norm - std::sqrt(square)) < 1e-12 * std::sqrt(square));
            for (float& value : update.gradient)
                value *= 0.5f; // the last steps are below the clip
        }
        CHECK(relative_error(update.parameters, values) < 1e-6);
        CHECK(relative_error(update.first_moment, first) < 1e-5);
        CHECK(relative_error(update.second_moment, second) < 1e-5);
        std::size_t const gap = 2 * (count / 3) - 5;
        CHECK(update.parameters[gap] == untouched[gap]);
        return update.parameters;
    });
}

void test_NUM_13_no_decay_without_gradient() {
    ram_device const device(1);
    update_fixture update(300);
    std::fill(update.gradient.begin(), update.gradient.end(), 0.f);
    std::vector<float> const before = update.parameters;
    for (int step = 0; step != 100; ++step)
        device.run(device.operations().update, update.arguments);
    bool kept = true, decayed = true;
    for (std::size_t i = 0; i != 100; ++i) {
        kept = kept && update.parameters[100 + i] == before[100 + i];
        decayed = decayed && std::abs(update.parameters[i]) <= std::abs(before[i]);
    }
    CHECK(kept);
    CHECK(decayed);
}

void test_NUM_11_not_finite() {
    float const bad_values[] = {poison(), endless_k};
    for (float bad : bad_values)
        for (bool in_term : {false, true}) {
            ram_device const device(3);
            update_fixture update(20000);
            device.run(device.operations().update, update.arguments);
            std::vector<float> const parameters = update.parameters, first = update.first_moment,
                                     second = update.second_moment;
            float const kept = update.gradient[17000];
            if (in_term)
                update.state.terms[2] = double(bad);
            else
                update.gradient[17000] = bad;
            device.run(device.operations().update, update.arguments);
            CHECK(update.state.refused == 1 && update.state.applied == 1);
            CHECK(update.parameters == parameters && update.first_moment == first && update.second_moment == second);
            update.gradient[17000] = kept;
            update.state.terms[2] = 0;
            device.run(device.operations().update, update.arguments);
            CHECK(update.state.refused == 0 && update.state.applied == 2);
            CHECK(update.parameters != parameters);
        }
}

/** The rate is the peak where warmup takes all the steps, and without a clip the norm has no bound. */
void test_schedule_edges() {
    ram_device const device(1);
    update_fixture update(30);
    update.arguments.warmup_steps = 0, update.arguments.steps = 1, update.arguments.max_norm = 0;
    device.run(device.operations().update, update.arguments);
    CHECK(update.state.learning_rate == update.arguments.floor);
    update_fixture other(30);
    other.arguments.warmup_steps = 5, other.arguments.steps = 5;
    other.state.applied = 4;
    device.run(device.operations().update, other.arguments);
    CHECK(other.state.learning_rate == other.arguments.peak);
    device.run(device.operations().update, other.arguments);
    CHECK(other.state.learning_rate == other.arguments.floor);
}

void test_reduce() {
    constexpr std::size_t count = 40001;
    constexpr std::uint32_t devices = 3;
    same_on_threads(nullptr, [](ram_device const& device) {
        random_values random(47);
        std::vector<float> buffers[devices];
        std::vector<double> terms[devices];
        for (auto& buffer : buffers)
            buffer = random.normal(count);
        for (auto& buffer : terms)
            buffer = to_double(random.normal(5));
        std::vector<float> expected(count);
        for (std::size_t i = 0; i != count; ++i)
            expected[i] = (buffers[0][i] + buffers[1][i]) + buffers[2][i];
        double const expected_term = (terms[0][4] + terms[1][4]) + terms[2][4];
        uform_stream_t* const streams[devices] = {device.stream(), device.stream(), device.stream()};
        float* const pointers[devices] = {buffers[0].data(), buffers[1].data(), buffers[2].data()};
        double* const term_pointers[devices] = {terms[0].data(), terms[1].data(), terms[2].data()};
        uform::check(device.operations().reduce_sum(streams, pointers, devices, count));
        uform::check(device.operations().reduce_terms(streams, term_pointers, devices, 5));
        for (auto const& buffer : buffers)
            CHECK(buffer == expected);
        for (auto const& buffer : terms)
            CHECK(buffer[4] == expected_term);
        return buffers[0];
    });
}

void test_gather() {
    constexpr std::size_t block = 37;
    on_every_device([](ram_device const& device) {
        std::vector<std::uint8_t> to[2] = {std::vector<std::uint8_t>(2 * block), std::vector<std::uint8_t>(2 * block)};
        std::vector<std::uint8_t> const second(block, 9);
        std::fill_n(to[0].begin(), block, std::uint8_t(4)); // the first device's block lies in its place already
        void const* const from[2] = {to[0].data(), second.data()};
        void* const targets[2] = {to[0].data(), to[1].data()};
        uform_stream_t* const streams[2] = {device.stream(), device.stream()};
        uform::check(device.operations().gather(streams, from, targets, 2, block));
        CHECK(to[0] == to[1]);
        CHECK(to[1][0] == 4 && to[1][block - 1] == 4 && to[1][block] == 9 && to[1][2 * block - 1] == 9);
    });
}

void test_memory() {
    ram_device const device(3);
    uform_operations_t const& table = device.operations();
    void* memory = nullptr;
    std::size_t const bytes = (std::size_t(5) << 19) + 13;
    uform::check(table.memory_allocate(device.stream(), bytes, &memory));
    CHECK(reinterpret_cast<std::uintptr_t>(memory) % 64 == 0);
    std::memset(memory, 1, bytes);
    uform::check(table.memory_zero(device.stream(), memory, bytes));
    std::vector<std::uint8_t> host(bytes, 1);
    uform::check(table.memory_download(device.stream(), host.data(), memory, bytes));
    CHECK(host == std::vector<std::uint8_t>(bytes, 0));
    host[bytes - 1] = 5;
    uform::check(table.memory_upload(device.stream(), memory, host.data(), bytes));
    CHECK(static_cast<std::uint8_t*>(memory)[bytes - 1] == 5);
    table.memory_release(device.stream(), memory);

    uform::check(table.memory_allocate(device.stream(), 0, &memory));
    table.memory_release(device.stream(), memory);
    CHECK(table.memory_allocate(device.stream(), std::size_t(1) << 60, &memory) == uform_status_out_of_memory_k);
    CHECK(std::string(uform::last_error()).find("1152921504606846976 bytes") != std::string::npos);
    CHECK(table.memory_allocate(device.stream(), SIZE_MAX, &memory) == uform_status_out_of_memory_k);
}

void test_events() {
    ram_device const device(3);
    uform_operations_t const& table = device.operations();
    uform_event_t *begun = nullptr, *ended = nullptr;
    uform::check(table.event_create(device.stream(), &begun));
    uform::check(table.event_create(device.stream(), &ended));
    uform::check(table.host_wait(ended)); // never recorded
    std::vector<int> from = {1, 2, 3}, to(3);
    uform::check(table.event_record(device.stream(), begun));
    uform::check(table.memory_copy(device.stream(), to.data(), from.data(), from.size() * sizeof(int)));
    uform::check(table.event_record(device.stream(), ended));
    uform::check(table.stream_wait(device.stream(), ended));
    uform::check(table.host_wait(ended));
    CHECK(to == from);
    double seconds = -1;
    uform::check(table.event_elapsed(begun, ended, &seconds));
    CHECK(seconds >= 0);
    table.event_destroy(begun);
    table.event_destroy(ended);
    table.event_destroy(nullptr);

    uform_backend_counters_t before{}, after{};
    table.backend_counters(device.backend(), &before);
    void* memory = nullptr;
    uform::check(table.staging_allocate(device.stream(), 8, &memory));
    table.staging_release(device.stream(), memory);
    table.backend_counters(device.backend(), &after);
    CHECK(after.allocations == before.allocations + 1 && after.host_waits == 0);
}

void test_table_is_whole() {
    uform_operations_t const& table = ram_device::operations();
    CHECK(table.abi_version == UFORM_PLUGIN_ABI_VERSION && table.bytes == sizeof table);
    CHECK(std::string(table.name) == "ram");
    // all after the name are function pointers; the last four, which capture, are not this backend's
    auto const* const slots = reinterpret_cast<void* const*>(&table.backend_create);
    std::size_t const bytes =
        offsetof(uform_operations_t, capture_begin) - offsetof(uform_operations_t, backend_create);
    std::size_t const count = bytes / sizeof(void*);
    bool whole = true;
    for (std::size_t i = 0; i != count; ++i)
        whole = whole && slots[i] != nullptr;
    CHECK(whole);
    CHECK(!table.capture_begin && !table.capture_end && !table.graph_launch && !table.graph_destroy);
    CHECK(table.state_bytes(64) == 256 && table.weights_bytes(0, 3, 4) == 0);
    CHECK(table.weights_import(nullptr, 0, 3, 4, nullptr, nullptr) == uform_status_success_k);

    void* backend = nullptr;
    uform_backend_options_t const options{};
    CHECK(table.backend_create(&options, &backend) == uform_status_invalid_argument_k);
}

void test_nothing_is_allocated() {
    ram_device const device(3);
    update_fixture update(40000);
    std::size_t const before = allocations();
    device.run(device.operations().update, update.arguments);
    bool const none = allocations() == before; // not inside CHECK, which allocates
    CHECK(none);
}

} // namespace

int main() {
    test_update();
    test_NUM_13_no_decay_without_gradient();
    test_NUM_11_not_finite();
    test_schedule_edges();
    test_reduce();
    test_gather();
    test_memory();
    test_events();
    test_table_is_whole();
    test_nothing_is_allocated();
    return report();
}
