// The update, against RAM over several steps: spans of every kind, clips, bounds, rounded copies, refusals.
#include <limits>

#include "tests/gpu/native/gpu_check.h"

using namespace gpu_test;
using namespace uform;

namespace {

struct span_request {
    std::uint32_t rows, columns, kind;
};

/** Parameters as the core lays them out: each begins on a multiple of `alignment`. */
struct layout {
    std::vector<uform_parameter_span_t> spans;
    std::vector<std::size_t> working_at; // of each in the rounded copies
    std::size_t flat = 0, working = 0;

    layout(std::vector<span_request> const& requests, std::size_t alignment) {
        float const endless = std::numeric_limits<float>::infinity();
        for (span_request const& one : requests) {
            uform_parameter_span_t span{};
            span.offset = flat, span.rows = one.rows, span.columns = one.columns, span.kind = one.kind;
            span.count = std::uint64_t(one.rows) * std::max(one.columns, 1u);
            bool const decayed = one.kind <= uform_parameter_kind_embedding_k;
            span.decay = decayed;
            span.minimum = one.kind == uform_parameter_kind_plain_k ? -0.5f : -endless;
            span.maximum = one.kind == uform_parameter_kind_plain_k ? 0.5f : endless;
            spans.push_back(span);
            working_at.push_back(working);
            flat += (span.count + alignment - 1) / alignment * alignment;
            working += decayed ? (span.count + 127) / 128 * 128 : 0;
        }
    }
};

std::vector<span_request> mixed_spans() {
    return {{300, 64, uform_parameter_kind_matrix_k},  {64, 0, uform_parameter_kind_vector_k},
            {1, 0, uform_parameter_kind_plain_k},      {37, 27, uform_parameter_kind_embedding_k},
            {5, 0, uform_parameter_kind_plain_k},      {257, 33, uform_parameter_kind_matrix_k},
            {19, 1, uform_parameter_kind_embedding_k}, {700, 64, uform_parameter_kind_matrix_k}};
}

std::vector<float> run_case(std::string const& name, std::vector<span_request> const& requests, std::size_t alignment,
                            double max_norm, how mode) {
    layout const plan(requests, alignment);
    random_values random(31);
    std::vector<float> values = random.normal(plan.flat), first = random.normal(plan.flat, 0.1f);
    std::vector<float> second(plan.flat);
    for (float& value : second)
        value = random.normal(1, 0.1f)[0] * 0.01f, value *= value;
    std::vector<uform_parameter_span_t> spans = plan.spans;
    device_array<float> const device_values(values), device_first(first), device_second(second), gradient(plan.flat);
    device_array<bf16> const working(plan.working);
    for (std::size_t i = 0; i != spans.size(); ++i)
        spans[i].working = spans[i].decay != 0 ? static_cast<void*>(working.data() + plan.working_at[i])
                                               : static_cast<void*>(device_values.data() + spans[i].offset);
    device_array<uform_parameter_span_t> const device_spans(spans);
    uform_update_state_t state{};
    state.terms[0] = 1.5, state.terms[1] = 2;
    std::size_t const bytes = vram::update_workspace_bytes(plan.flat);
    device_array<std::uint8_t> const workspace(bytes);
    device_array<uform_update_state_t> device_state(std::vector{state});

    uform_update_t update{};
    update.count = plan.flat, update.parameters = device_values.data(), update.gradient = gradient.data();
    update.first_moment = device_first.data(), update.second_moment = device_second.data();
    update.spans = device_spans.data(), update.spans_count = static_cast<std::uint32_t>(spans.size());
    update.terms_count = 2, update.peak = 1e-2, update.floor = 1e-3, update.warmup_steps = 2, update.steps = 6;
    update.beta1 = 0.9, update.beta2 = 0.98, update.epsilon = 1e-8, update.decay = 0.1, update.max_norm = max_norm;
    update.state = device_state.data(), update.workspace = workspace.data(), update.workspace_bytes = bytes;

    ram_device const ram(2);
    native_test::poisoned_memory ram_workspace(ram.operations().update_workspace_bytes(plan.flat));
    std::vector<float> slopes;
    uform_update_t reference = update;
    reference.parameters = values.data(), reference.first_moment = first.data(),
    reference.second_moment = second.data();
    reference.spans = plan.spans.data(), reference.state = &state, reference.workspace = ram_workspace.data();

    double worst_norm = 0, worst_rate = 0;
    bool refusals = true;
    for (int step = 0; step != 9; ++step) {
        slopes = random.normal(plan.flat, step % 2 ? 0.01f : 1);
        for (std::size_t i = 0; i + 1 < plan.spans.size(); ++i) // nothing adds to what lies between spans
            std::fill(slopes.begin() + static_cast<std::ptrdiff_t>(plan.spans[i].offset + plan.spans[i].count),
                      slopes.begin() + static_cast<std::ptrdiff_t>(plan.spans[i + 1].offset), 0.f);
        if (step == 3)
            slopes[plan.spans.back().offset + 3] = std::numeric_limits<float>::quiet_NaN();
        if (step == 5)
            slopes[0] = std::numeric_limits<float>::infinity();
        state.terms[1] = step == 6 ? std::numeric_limits<double>::quiet_NaN() : 2;
        uform_update_state_t on_device = device_state.download()[0];
        on_device.terms[1] = state.terms[1];
        device_state.upload({on_device});
        const_cast<device_array<float>&>(gradient).upload(slopes);
        reference.gradient = slopes.data();
        ram.run(ram.operations().update, reference);
        once(mode, "update", [&] { require(vram::update(stream(), &update), "update"); });
        on_device = device_state.download()[0];
        bool const wrong = step == 3 || step == 5 || step == 6;
        refusals = refusals && on_device.refused == state.refused && state.refused == (wrong ? 1u : 0u) &&
                   on_device.applied == state.applied;
        if (!wrong) {
            worst_norm = std::max(worst_norm, std::abs(on_device.gradient_norm / state.gradient_norm - 1));
            worst_rate = std::max(worst_rate, std::abs(on_device.learning_rate / state.learning_rate - 1));
        }
    }
    check(name + " norm", worst_norm, 1e-12);
    check(name + " learning rate", worst_rate, 1e-12);
    check(name + " refusals", refusals);
    std::vector<float> const got = device_values.download();
    check(name + " parameters", relative_error(got, to_double(values)), 1e-6);
    check(name + " first moment", relative_error(device_first.download(), to_double(first)), 1e-6);
    check(name + " second moment", relative_error(device_second.download(), to_double(second)), 1e-6);
    bool copies = true, kept = true;
    std::vector<float> const copied = to_float(working.download());
    std::vector<std::uint8_t> seen(plan.working, 0);
    for (std::size_t s = 0; s != spans.size(); ++s)
        for (std::size_t i = 0; i != spans[s].count; ++i) {
            float const value = got[spans[s].offset + i];
            kept = kept && value >= spans[s].minimum && value <= spans[s].maximum;
            if (spans[s].decay != 0) {
                copies = copies && copied[plan.working_at[s] + i] == __bfloat162float(__float2bfloat16(value));
                seen[plan.working_at[s] + i] = 1;
            }
        }
    for (std::size_t i = 0; i != plan.working; ++i)
        copies = copies && (seen[i] || std::isnan(copied[i]));
    check(name + " rounded copies", copies);
    check(name + " bounds", kept);
    check(name + " guards", device_values.guarded() && device_first.guarded() && device_second.guarded() &&
                                working.guarded() && device_state.guarded() && workspace.guarded());
    return got;
}

void bench() {
    stopwatch watch;
    for (std::uint32_t depth : {12u, 24u}) {
        std::uint32_t const hidden = depth == 12 ? 512 : 1024, inner = depth == 12 ? 1408 : 2816;
        std::vector<span_request> requests;
        for (std::uint32_t block = 0; block != depth; ++block)
            for (span_request const& one : {span_request{hidden, 0, uform_parameter_kind_vector_k},
                                            {3 * hidden, hidden, uform_parameter_kind_matrix_k},
                                            {hidden, hidden, uform_parameter_kind_matrix_k},
                                            {hidden, 0, uform_parameter_kind_vector_k},
                                            {2 * inner, hidden, uform_parameter_kind_matrix_k},
                                            {hidden, inner, uform_parameter_kind_matrix_k}})
                requests.push_back(one);
        layout plan(requests, 16);
        device_array<float> const values(plan.flat), first(plan.flat), second(plan.flat), gradient(plan.flat);
        device_array<bf16> const working(plan.working);
        for (device_array<float> const* one : {&values, &first, &second, &gradient})
            require(cudaMemset(one->data(), 0x33, one->bytes()), "cudaMemset"); // 4e-8, so that nothing is refused
        for (std::size_t i = 0; i != plan.spans.size(); ++i)
            plan.spans[i].working = working.data() + plan.working_at[i];
        device_array<uform_parameter_span_t> const spans(plan.spans);
        device_array<uform_update_state_t> const state(std::vector{uform_update_state_t{}});
        std::size_t const bytes = vram::update_workspace_bytes(plan.flat);
        device_array<std::uint8_t> const workspace(bytes);
        uform_update_t update{};
        update.count = plan.flat, update.parameters = values.data(), update.gradient = gradient.data();
        update.first_moment = first.data(), update.second_moment = second.data();
        update.spans = spans.data(), update.spans_count = static_cast<std::uint32_t>(plan.spans.size());
        update.peak = 1e-3, update.floor = 1e-4, update.warmup_steps = 10, update.steps = 1000;
        update.beta1 = 0.9, update.beta2 = 0.98, update.epsilon = 1e-8, update.decay = 0.1, update.max_norm = 1;
        update.state = state.data(), update.workspace = workspace.data(), update.workspace_bytes = bytes;
        watch.bytes("update of " + std::to_string(plan.flat) + " values", 34.0 * double(plan.flat),
                    [&] { require(vram::update(stream(), &update), "update"); });
    }
}

void check_all() {
    for (std::size_t alignment : {16u, 1u})
        for (double max_norm : {1.0, 0.0}) {
            std::string const name = "update aligned to " + std::to_string(alignment);
            check(name + " twice", same_bits(run_case(name, mixed_spans(), alignment, max_norm, how::direct),
                                             run_case(name, mixed_spans(), alignment, max_norm, how::captured)));
        }
    run_case("update of one value", {{1, 0, uform_parameter_kind_plain_k}}, 16, 1, how::direct);
}

} // namespace

int main(int count, char** arguments) {
    if (wants_checks(count, arguments))
        check_all();
    if (wants_bench(count, arguments))
        bench();
    return native_test::report();
}
