// Rows of a table by code, and the table's gradient, against RAM on the same rounded inputs.
#include "tests/gpu/native/gpu_check.h"

using namespace gpu_test;
using namespace uform;

namespace {

struct embedding_case {
    std::uint32_t segments, hidden, table_rows;
    std::uint32_t common; // one column in so many has the same code, as a mask has
};

std::vector<float> run_case(embedding_case const& shape, how mode) {
    auto const [segments, hidden, table_rows, common] = shape;
    columns_fixture host(odd_segments(segments));
    ram_device const ram(2);
    expanded(host);
    random_values random(table_rows);
    for (std::uint32_t c = 0; c != host.used(); ++c) {
        host.codes[c] = static_cast<std::uint16_t>(c % common == 0 ? table_rows / 2 : random.below(table_rows));
        if (c % 11 == 5)
            host.codes[c] = UFORM_CODE_VALUES;
    }
    device_columns columns(host);
    columns.copy_expanded(host);
    std::size_t const used = std::size_t(host.used()) * hidden, capacity = std::size_t(host.view.capacity) * hidden;
    std::vector<float> const table = rounded(random.normal(std::size_t(table_rows) * hidden));
    std::vector<float> const slopes = rounded(random.normal(used));
    std::vector<float> table_gradient = random.normal(table.size());
    device_array<bf16> const device_table(to_bf16(table)), states(capacity), gradient(to_bf16(slopes), capacity);
    device_array<float> const device_table_gradient(table_gradient);
    std::size_t const bytes = vram::embedding_workspace_bytes(hidden, table_rows, host.view.capacity);
    device_array<std::uint8_t> const workspace(bytes);
    uform_embedding_t embedding{columns.view,          hidden,
                                uform_modality_text_k, table_rows,
                                device_table.data(),   device_table_gradient.data(),
                                states.data(),         gradient.data(),
                                workspace.data(),      bytes};
    once(mode, "embedding", [&] {
        require(vram::embedding_forward(stream(), &embedding), "embedding_forward");
        require(vram::embedding_backward(stream(), &embedding), "embedding_backward");
    });

    std::vector<float> ram_states(capacity, native_test::poison());
    native_test::poisoned_memory ram_workspace(
        ram.operations().embedding_workspace_bytes(hidden, table_rows, host.view.capacity));
    embedding.columns = host.view, embedding.table = table.data(), embedding.table_gradient = table_gradient.data();
    embedding.states = ram_states.data(), embedding.gradient = slopes.data(),
    embedding.workspace = ram_workspace.data();
    ram.run(ram.operations().embedding_forward, embedding);
    ram.run(ram.operations().embedding_backward, embedding);

    std::string const name = "embedding " + std::to_string(hidden) + " of " + std::to_string(table_rows);
    std::vector<float> const got = to_float(states.download());
    bool right = true;
    for (std::size_t i = 0; i != capacity; ++i)
        right = right && (std::isnan(ram_states[i]) ? std::isnan(got[i]) : got[i] == ram_states[i]);
    check(name + " states", right);
    check_close(name + " table's gradient", device_table_gradient.download(), table_gradient,
                to_double(table_gradient));
    check(name + " guards", states.guarded() && device_table_gradient.guarded() && workspace.guarded());
    return device_table_gradient.download();
}

void bench() {
    stopwatch watch;
    for (auto const& [hidden, count] : {std::pair{512u, 65536u}, {768u, 65536u}, {1024u, 32768u}}) {
        columns_fixture host(equal_segments(count / 256, 256));
        std::uint32_t const table_rows = 260;
        random_values random(5);
        // As text has it: a third masked, the rest mostly of some thirty bytes.
        for (std::uint32_t c = 0; c != host.used(); ++c)
            host.codes[c] = static_cast<std::uint16_t>(c % 3 == 0 ? 257
                                                       : c % 7    ? 97 + random.below(30)
                                                                  : random.below(256));
        device_columns columns(host);
        columns.expand();
        std::size_t const values = std::size_t(host.view.capacity) * hidden;
        device_array<bf16> const table(to_bf16(noise(table_rows * hidden))), states(values);
        device_array<bf16> const gradient(to_bf16(noise(values)));
        device_array<float> const table_gradient(noise(table_rows * hidden));
        std::size_t const bytes = vram::embedding_workspace_bytes(hidden, table_rows, host.view.capacity);
        device_array<std::uint8_t> const workspace(bytes);
        uform_embedding_t const embedding{
            columns.view,          hidden,        uform_modality_text_k, table_rows,       table.data(),
            table_gradient.data(), states.data(), gradient.data(),       workspace.data(), bytes};
        double const tensor = 2.0 * double(count) * hidden;
        watch.bytes("embedding_forward " + std::to_string(hidden), tensor,
                    [&] { require(vram::embedding_forward(stream(), &embedding), "embedding_forward"); });
        watch.bytes("embedding_backward " + std::to_string(hidden), tensor,
                    [&] { require(vram::embedding_backward(stream(), &embedding), "embedding_backward"); });
    }
}

/** @param large More columns, too: a sanitizer has enough with the rest. */
void check_all(bool large) {
    auto const check_twice = [](embedding_case const& shape) {
        check("embedding twice", same_bits(run_case(shape, how::direct), run_case(shape, how::captured)));
    };
    for (embedding_case const& shape : {embedding_case{3, 576, 1, 1}, {1, 64, 260, 9}, {12, 64, 1100, 4}})
        check_twice(shape);
    run_case({0, 64, 5, 3}, how::direct);
    if (!large)
        return;
    for (embedding_case const& shape : {embedding_case{75, 512, 260, 3},
                                        {300, 64, 70, 2},
                                        {40, 2112, 4, 5},
                                        {75, 64, 511, 4},
                                        {75, 64, 3000, 4},
                                        {200, 128, 33, 1000000},
                                        {66, 8448, 40, 3}})
        check_twice(shape);
}

} // namespace

int main(int count, char** arguments) {
    if (wants_checks(count, arguments))
        check_all(!asked(count, arguments, "--small"));
    if (wants_bench(count, arguments))
        bench();
    return native_test::report();
}
