// The linear map of raw values and its weights' gradient, against RAM on the same rounded inputs.
#include "tests/gpu/native/gpu_check.h"

using namespace gpu_test;
using namespace uform;

namespace {

template <typename element_at>
std::vector<float> run_case(uform_element_t element, float multiplier, float offset, std::uint32_t hidden,
                            std::uint32_t width, std::uint32_t count, how mode) {
    std::uint32_t const active = count + 4, capacity = count + 9;
    columns_fixture host(
        {{count + 1, 1, {static_cast<std::uint16_t>(count), 0, 0}, count + 1, 0, uform_modality_image_k}});
    random_values random(width);
    std::vector<element_at> values(std::size_t(count) * width);
    for (element_at& value : values)
        value = static_cast<element_at>(random.below(256));
    std::vector<std::uint32_t> patch_columns(count);
    host.codes[0] = 1;
    for (std::uint32_t p = 0; p != count; ++p) {
        patch_columns[p] = count - p;
        host.codes[1 + p] = p % 5 == 2 ? 3 : UFORM_CODE_VALUES;
    }
    device_columns columns(host);
    columns.expand();
    std::vector<float> const weight = rounded(random.normal(std::size_t(hidden) * width));
    std::vector<float> const slopes = rounded(random.normal(std::size_t(host.used()) * hidden));
    std::vector<float> weight_gradient = random.normal(weight.size());
    std::size_t const states_count = std::size_t(host.view.capacity) * hidden;

    device_array<std::uint32_t> const device_count(std::vector{count}), device_places(patch_columns, capacity);
    device_array<element_at> const device_values(values, std::size_t(capacity) * width);
    device_array<bf16> const device_weight(to_bf16(weight)), states(states_count),
        gradient(to_bf16(slopes), states_count);
    device_array<float> const device_weight_gradient(weight_gradient);
    std::size_t const bytes = vram::patches_workspace_bytes(hidden, width, capacity);
    device_array<std::uint8_t> const workspace(bytes);
    uform_patches_t patches{};
    patches.columns = columns.view, patches.hidden = hidden, patches.width = width, patches.element = element;
    patches.multiplier = multiplier, patches.offset = offset;
    patches.capacity = capacity, patches.active = active, patches.count = device_count.data();
    patches.values = device_values.data(), patches.patch_columns = device_places.data();
    patches.weight = device_weight.data(), patches.weight_gradient = device_weight_gradient.data();
    patches.states = states.data(), patches.gradient = gradient.data();
    patches.workspace = workspace.data(), patches.workspace_bytes = bytes;
    once(mode, "patches", [&] {
        require(vram::patches_forward(stream(), &patches), "patches_forward");
        require(vram::patches_backward(stream(), &patches), "patches_backward");
    });

    // The scaled values are rounded, too: the reference is given those.
    std::vector<float> scaled(values.size());
    for (std::size_t i = 0; i != values.size(); ++i)
        scaled[i] = static_cast<float>(values[i]) * multiplier + offset;
    scaled = rounded(scaled);
    ram_device const ram(2);
    std::vector<float> ram_states(states_count, native_test::poison());
    native_test::poisoned_memory ram_workspace(ram.operations().patches_workspace_bytes(hidden, width, capacity));
    patches.columns = host.view, patches.element = uform_element_float32_k, patches.multiplier = 1, patches.offset = 0;
    patches.count = &count, patches.values = scaled.data(), patches.patch_columns = patch_columns.data();
    patches.weight = weight.data(), patches.weight_gradient = weight_gradient.data();
    patches.states = ram_states.data(), patches.gradient = slopes.data(), patches.workspace = ram_workspace.data();
    ram.run(ram.operations().patches_forward, patches);
    ram.run(ram.operations().patches_backward, patches);

    std::string const name = "patches " + std::to_string(hidden) + " of " + std::to_string(width);
    std::vector<float> const got = to_float(states.download());
    std::vector<float> written;
    std::vector<double> expected;
    bool untouched = true;
    for (std::size_t i = 0; i != states_count; ++i) {
        if (std::isnan(ram_states[i])) {
            untouched = untouched && std::isnan(got[i]);
            continue;
        }
        written.push_back(got[i]), expected.push_back(double(ram_states[i]));
    }
    check_rounded(name + " states", written, expected);
    check_close(name + " weight's gradient", device_weight_gradient.download(), weight_gradient,
                to_double(weight_gradient));
    check(name + " slack", untouched && states.guarded() && device_weight_gradient.guarded() && workspace.guarded());
    return device_weight_gradient.download();
}

void bench() {
    stopwatch watch;
    struct patches_shape {
        std::uint32_t hidden, count, width; // pixels of 8 by 8 or 16 by 16 in colour
    };
    for (auto const& [hidden, count, width] : {patches_shape{512, 65536, 192},
                                               {768, 65536, 192},
                                               {1024, 32768, 192},
                                               {512, 65536, 768},
                                               {768, 65536, 768},
                                               {1024, 32768, 768}}) {
        columns_fixture host(equal_segments(count / 256, 256, uform_modality_image_k));
        std::vector<std::uint32_t> patch_columns;
        for (std::uint32_t c = 0; c != host.used(); ++c)
            if (c % 256 != 0)
                host.codes[c] = UFORM_CODE_VALUES, patch_columns.push_back(c);
        std::uint32_t const patches_count = static_cast<std::uint32_t>(patch_columns.size());
        device_columns columns(host);
        columns.expand();
        random_values random(5);
        device_array<std::uint32_t> const device_count(std::vector{patches_count}), places(patch_columns);
        std::vector<std::uint8_t> pixels(std::size_t(patches_count) * width);
        for (std::uint8_t& value : pixels)
            value = static_cast<std::uint8_t>(random.below(256));
        device_array<std::uint8_t> const values(pixels);
        std::size_t const states_count = std::size_t(host.view.capacity) * hidden;
        device_array<bf16> const weight(to_bf16(noise(hidden * width))), states(states_count);
        device_array<bf16> const gradient(to_bf16(noise(states_count)));
        device_array<float> const weight_gradient(noise(hidden * width));
        std::size_t const bytes = vram::patches_workspace_bytes(hidden, width, patches_count);
        device_array<std::uint8_t> const workspace(bytes);
        uform_patches_t patches{};
        patches.columns = columns.view, patches.hidden = hidden, patches.width = width;
        patches.element = uform_element_uint8_k, patches.multiplier = 1 / 127.5f, patches.offset = -1;
        patches.capacity = patches.active = patches_count, patches.count = device_count.data();
        patches.values = values.data(), patches.patch_columns = places.data();
        patches.weight = weight.data(), patches.weight_gradient = weight_gradient.data();
        patches.states = states.data(), patches.gradient = gradient.data();
        patches.workspace = workspace.data(), patches.workspace_bytes = bytes;
        std::string const name = std::to_string(hidden) + " of " + std::to_string(width);
        double const least = double(patches_count) * (width + 2.0 * hidden);
        watch.bytes("patches_forward " + name, least,
                    [&] { require(vram::patches_forward(stream(), &patches), "patches_forward"); });
        watch.bytes("patches_backward " + name, least,
                    [&] { require(vram::patches_backward(stream(), &patches), "patches_backward"); });
    }
}

void check_all() {
    auto const twice = [](auto element_value, uform_element_t element, float multiplier, float offset,
                          std::uint32_t hidden, std::uint32_t width, std::uint32_t patches) {
        using element_t = decltype(element_value);
        check("patches twice",
              same_bits(run_case<element_t>(element, multiplier, offset, hidden, width, patches, how::direct),
                        run_case<element_t>(element, multiplier, offset, hidden, width, patches, how::captured)));
    };
    twice(std::uint8_t{}, uform_element_uint8_k, 1 / 127.5f, -1, 512, 192, 1301);
    twice(std::uint8_t{}, uform_element_uint8_k, 1 / 127.5f, -1, 64, 27, 301);
    twice(std::int16_t{}, uform_element_int16_k, 1 / 256.f, 0, 128, 160, 517);
    twice(std::int16_t{}, uform_element_int16_k, 1 / 256.f, 0, 192, 9, 33);
    twice(std::uint8_t{}, uform_element_uint8_k, 1 / 127.5f, -1, 576, 768, 2301);
    twice(std::uint8_t{}, uform_element_uint8_k, 1 / 127.5f, -1, 64, 48, 77);
    twice(std::uint8_t{}, uform_element_uint8_k, 1 / 127.5f, -1, 320, 784, 300);
    twice(std::uint8_t{}, uform_element_uint8_k, 1 / 127.5f, -1, 192, 200, 64);
    twice(std::int16_t{}, uform_element_int16_k, 1 / 256.f, 0.25f, 320, 208, 9001);
    twice(float{}, uform_element_float32_k, 0.01f, 0.5f, 576, 768, 130);
    twice(float{}, uform_element_float32_k, 0.01f, 0.5f, 64, 1, 1);
    run_case<std::uint8_t>(uform_element_uint8_k, 1, 0, 64, 48, 0, how::direct);
}

} // namespace

int main(int count, char** arguments) {
    if (wants_checks(count, arguments))
        check_all();
    if (wants_bench(count, arguments))
        bench();
    return native_test::report();
}
