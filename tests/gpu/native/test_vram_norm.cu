// RMSNorm forward, again and backward, against RAM on the same rounded inputs.
#include "tests/gpu/native/gpu_check.h"
#include "vram/norm.h"

using namespace gpu_test;
using namespace uform;

namespace {

std::vector<float> used_part(std::vector<float> values, columns_fixture const& host, std::size_t hidden) {
    values.resize(host.used() * hidden);
    return values;
}

std::vector<float> run_case(std::vector<columns_fixture::shape> const& shapes, std::uint32_t hidden, how mode) {
    columns_fixture const host(shapes);
    device_columns const columns(host);
    ram_device const ram(2);
    random_values random(hidden);
    std::size_t const used = std::size_t(host.used()) * hidden, capacity = std::size_t(host.view.capacity) * hidden;
    std::vector<float> const x = rounded(random.normal(used, 3)), slopes = rounded(random.normal(used));
    std::vector<float> const around = rounded(random.normal(used));
    std::vector<float> gain = random.normal(hidden), gain_gradient = random.normal(hidden);
    for (float& value : gain)
        value += 1;

    device_array<bf16> const input(to_bf16(x), capacity), output(capacity), again(capacity);
    device_array<bf16> const gradient(to_bf16(slopes), capacity), residual(to_bf16(around), capacity);
    device_array<bf16> const outer(capacity);
    device_array<float> const device_gain(gain), device_gain_gradient(gain_gradient),
        inner_gain_gradient(gain_gradient);
    device_array<float> const inverse(host.view.capacity);
    std::size_t const bytes = vram::norm_workspace_bytes(hidden, host.view.capacity);
    device_array<std::uint8_t> const workspace(bytes);
    uform_norm_t norm{};
    norm.columns = columns.view, norm.hidden = hidden;
    norm.gain = device_gain.data(), norm.gain_gradient = device_gain_gradient.data();
    norm.input = input.data(), norm.output = output.data(), norm.inverse_rms = inverse.data();
    norm.gradient = gradient.data(), norm.workspace = workspace.data(), norm.workspace_bytes = bytes;
    vram::norm_backward_arguments inner{};
    inner.x = input.data(), inner.gain = device_gain.data(), inner.inverse_rms = inverse.data();
    inner.output_gradient = gradient.data(), inner.residual_gradient = residual.data();
    inner.input_gradient = outer.data(), inner.output = again.data();
    inner.gain_gradient = inner_gain_gradient.data(), inner.workspace = workspace.data();
    once(mode, "norm", [&] {
        vram::stream const& on = vram::stream::of(stream());
        require(vram::norm_forward(stream(), &norm), "norm_forward");
        vram::launch_norm_backward(on, {columns.view.active, columns.view.counts, hidden}, inner);
        require(vram::norm_backward(stream(), &norm), "norm_backward");
    });

    // RAM, in float32
    std::vector<float> ram_output(used), ram_inverse(host.used()), ram_gradient = slopes;
    std::vector<float> ram_gain_gradient = gain_gradient;
    native_test::poisoned_memory ram_workspace(ram.operations().norm_workspace_bytes(hidden, host.view.capacity));
    uform_norm_t reference = norm;
    reference.columns = host.view;
    reference.gain = gain.data(), reference.gain_gradient = ram_gain_gradient.data();
    reference.input = x.data(), reference.output = ram_output.data(), reference.inverse_rms = ram_inverse.data();
    reference.gradient = ram_gradient.data(), reference.workspace = ram_workspace.data();
    ram.run(ram.operations().norm_forward, reference);
    ram.run(ram.operations().norm_backward, reference);

    std::string const name = "norm " + std::to_string(hidden);
    std::vector<float> const y = to_float(output.download()), dx = to_float(gradient.download());
    std::vector<float> const y_again = to_float(again.download()), dx_outer = to_float(outer.download());
    std::vector<double> sums = to_double(ram_gradient);
    for (std::size_t i = 0; i != used; ++i)
        sums[i] += double(around[i]);
    check_rounded(name + " output", used_part(y, host, hidden), to_double(ram_output));
    check_rounded(name + " output again", used_part(y_again, host, hidden), to_double(ram_output));
    check_rounded(name + " gradient", used_part(dx, host, hidden), to_double(ram_gradient));
    check_rounded(name + " gradient and residual", used_part(dx_outer, host, hidden), sums);
    check_close(name + " gain's gradient", device_gain_gradient.download(), ram_gain_gradient,
                to_double(ram_gain_gradient));
    check(name + " gain's gradient twice", same_bits(device_gain_gradient.download(), inner_gain_gradient.download()));
    check_close(name + " inverse", used_part(inverse.download(), host, 1), ram_inverse, to_double(ram_inverse));
    std::size_t const active = std::size_t(host.view.active) * hidden;
    check(name + " slack", slack_holds(y, used, active) && slack_holds(y_again, used, active) &&
                               slack_holds(dx, used, active) && slack_holds(dx_outer, used, active));
    check(name + " guards", output.guarded() && again.guarded() && gradient.guarded() && outer.guarded() &&
                                device_gain_gradient.guarded() && inverse.guarded() && workspace.guarded());
    std::vector<float> bits = dx;
    std::vector<float> const gains = device_gain_gradient.download();
    bits.insert(bits.end(), gains.begin(), gains.end());
    bits.insert(bits.end(), y.begin(), y.end());
    return bits;
}

void bench() {
    stopwatch watch;
    for (auto const& [hidden, count] : {std::pair{512u, 65536u}, {768u, 65536u}, {1024u, 32768u}}) {
        columns_fixture const host(equal_segments(count / 256, 256));
        device_columns const columns(host);
        std::size_t const values = std::size_t(host.view.capacity) * hidden;
        device_array<bf16> const x(to_bf16(noise(values))), y(values);
        device_array<bf16> const dy(to_bf16(noise(values))), dx(to_bf16(noise(values)));
        device_array<float> const gain(noise(hidden)), gain_gradient(noise(hidden));
        device_array<float> const inverse(host.view.capacity);
        device_array<std::uint8_t> const workspace(vram::norm_workspace_bytes(hidden, host.view.capacity));
        vram::stream const& on = vram::stream::of(stream());
        vram::norm_rows const rows{columns.view.active, columns.view.counts, hidden};
        vram::norm_backward_arguments arguments{};
        arguments.x = x.data(), arguments.gain = gain.data(), arguments.inverse_rms = inverse.data();
        arguments.output_gradient = dy.data(), arguments.residual_gradient = dx.data();
        arguments.input_gradient = dx.data(), arguments.gain_gradient = gain_gradient.data();
        arguments.workspace = workspace.data();
        double const tensor = 2.0 * double(count) * hidden;
        std::string const name = std::to_string(hidden);
        watch.bytes("norm forward " + name, 2 * tensor,
                    [&] { vram::launch_norm_forward(on, rows, x.data(), gain.data(), y.data(), inverse.data()); });
        watch.bytes("norm inverses " + name, tensor,
                    [&] { vram::launch_norm_inverses(on, rows, x.data(), inverse.data()); });
        watch.bytes("norm backward with residual " + name, 4 * tensor,
                    [&] { vram::launch_norm_backward(on, rows, arguments); });
        arguments.output = y.data();
        watch.bytes("norm backward with residual and output " + name, 5 * tensor,
                    [&] { vram::launch_norm_backward(on, rows, arguments); });
    }
}

void check_all() {
    for (std::uint32_t hidden : {64u, 192u, 512u, 576u, 768u, 1024u, 1088u, 1984u, 2112u, 4160u, 16384u}) {
        auto const shapes = odd_segments(hidden > 2048 ? 3 : 20);
        check("norm twice " + std::to_string(hidden),
              same_bits(run_case(shapes, hidden, how::direct), run_case(shapes, hidden, how::captured)));
    }
    run_case(equal_segments(90, 251), 64, how::direct); // as many parts as there may be
    run_case({}, 512, how::direct);
}

} // namespace

int main(int count, char** arguments) {
    if (wants_checks(count, arguments))
        check_all();
    if (wants_bench(count, arguments))
        bench();
    return native_test::report();
}
