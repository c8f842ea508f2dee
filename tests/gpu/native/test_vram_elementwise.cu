// Rotary positions and the gated unit, against loops in double on the same rounded inputs.
#include "tests/gpu/native/gpu_check.h"
#include "tests/gpu/native/naive_block.h"
#include "vram/geglu.h"
#include "vram/rotary.h"

using namespace gpu_test;
using namespace uform;

namespace {

/** Texts, pictures, films, and positions far from the first. */
std::vector<columns_fixture::shape> mixed_shapes() {
    return {{1, 1, {0, 0, 0}, 1, 0, uform_modality_text_k},
            {113, 2, {8, 14, 0}, 113, 1, uform_modality_image_k},
            {145, 3, {4, 6, 6}, 145, 2, uform_modality_video_k},
            {4097, 1, {4096, 0, 0}, 4097, 3, uform_modality_text_k},
            {301, 2, {3, 100, 0}, 301, 4, uform_modality_image_k}};
}

std::vector<float> rotary_case(std::uint32_t heads, vram::rotary_direction direction, how mode) {
    columns_fixture host(mixed_shapes());
    device_columns columns(expanded(host));
    columns.copy_expanded(host);
    std::size_t const used = std::size_t(host.used()) * 3 * heads * 64;
    std::vector<float> const qkv = rounded(random_values(heads).normal(used));
    device_array<bf16> const values(to_bf16(qkv), std::size_t(host.view.capacity) * 3 * heads * 64);
    once(mode, "rotary",
         [&] { vram::launch_rotary(vram::stream::of(stream()), columns.view, heads, values.data(), direction); });
    std::vector<float> const got = to_float(values.download());
    bool const forward = direction == vram::rotary_direction::forward;
    std::string const name = std::string("rotary ") + (forward ? "forward " : "backward ") + std::to_string(heads);
    std::vector<double> expected = to_double(qkv);
    turn_naively(host, heads, forward ? 1 : -1, expected);
    check_rounded(name, std::vector<float>(got.begin(), got.begin() + used), expected);
    check(name + " slack", slack_holds(got, used, used) && values.guarded());
    return got;
}

std::vector<float> geglu_case(std::uint32_t count, std::uint32_t inner, bool in_place, how mode) {
    std::uint32_t const active = count + 6, capacity = count + 11;
    random_values random(inner);
    std::vector<float> const gate_up = rounded(random.normal(std::size_t(count) * 2 * inner, 3));
    std::vector<float> const slopes = rounded(random.normal(std::size_t(count) * inner));
    std::vector<double> product, again_gradient(gate_up.size());
    for (std::size_t i = 0; i != slopes.size(); ++i) {
        std::size_t const gate_at = i / inner * 2 * inner + i % inner, up_at = gate_at + inner;
        double const gate = double(gate_up[gate_at]), up = double(gate_up[up_at]), slope = double(slopes[i]);
        auto const [value, gate_slope] = naive_gelu(gate);
        product.push_back(value * up);
        again_gradient[gate_at] = slope * up * gate_slope;
        again_gradient[up_at] = slope * value;
    }
    device_array<std::uint32_t> const device_count(std::vector{count});
    device_array<bf16> const operands(to_bf16(gate_up), std::size_t(capacity) * 2 * inner);
    device_array<bf16> const incoming(to_bf16(slopes), std::size_t(capacity) * inner);
    device_array<bf16> const forward(incoming.size()), apart(operands.size());
    bf16* const gradient = in_place ? operands.data() : apart.data();
    once(mode, "geglu", [&] {
        vram::stream const& on = vram::stream::of(stream());
        vram::geglu_rows const rows{active, device_count.data(), inner};
        vram::launch_geglu_forward(on, rows, operands.data(), forward.data());
        vram::launch_geglu_backward(on, rows, operands.data(), incoming.data(), gradient);
    });
    std::string const name = "geglu " + std::to_string(inner) + (in_place ? " in place" : "");
    auto const compare = [&](std::string const& what, device_array<bf16> const& values,
                             std::vector<double> const& expected, std::size_t width) {
        std::vector<float> const got = to_float(values.download());
        check_rounded(name + what, std::vector<float>(got.begin(), got.begin() + expected.size()), expected);
        check(name + what + " slack", slack_holds(got, expected.size(), active * width) && values.guarded());
        return got;
    };
    compare(" product", forward, product, inner);
    return compare(" gradient", in_place ? operands : apart, again_gradient, 2 * std::size_t(inner));
}

void test_extreme_gates() {
    std::vector<float> const gates = {-3e38f, -100, -20, 0, 20, 100, 3e38f, -1e-30f};
    std::vector<float> gate_up = gates;
    gate_up.insert(gate_up.end(), 8, 1.f);
    device_array<std::uint32_t> const count(std::vector{1u});
    device_array<bf16> const operands(to_bf16(gate_up)), slopes(to_bf16(std::vector<float>(8, 1.f)));
    device_array<bf16> const product(8), gradient(16);
    vram::geglu_rows const rows{1, count.data(), 8};
    vram::launch_geglu_forward(vram::stream::of(stream()), rows, operands.data(), product.data());
    vram::launch_geglu_backward(vram::stream::of(stream()), rows, operands.data(), slopes.data(), gradient.data());
    synchronize();
    std::vector<float> const got = to_float(product.download()), slope = to_float(gradient.download());
    check("geglu of extreme gates", got[0] == 0 && got[1] == 0 && got[3] == 0 && got[5] == 100 && got[6] > 2e38f);
    check("geglu slope of gates that are not small", std::abs(slope[1]) < 1e-6f && slope[3] == 0.5f && slope[5] == 1);
}

void bench() {
    stopwatch watch;
    for (auto const& [hidden, inner, count] :
         {std::tuple{512u, 1408u, 65536u}, {768u, 2048u, 65536u}, {1024u, 2816u, 32768u}}) {
        columns_fixture const host(equal_segments(count / 256, 256));
        device_columns columns(host);
        columns.expand();
        vram::stream const& on = vram::stream::of(stream());
        std::uint32_t const capacity = host.view.capacity;
        std::vector<bf16> const values = to_bf16(noise(std::size_t(capacity) * 2 * inner));
        device_array<bf16> const gate_up(values), qkv(values), gradient(values.size()), product(values.size() / 2);
        device_array<bf16> const slopes(std::vector<bf16>(values.begin(), values.begin() + values.size() / 2));
        vram::geglu_rows const rows{columns.view.active, columns.view.counts, inner};
        double const tensor = 2.0 * double(count) * inner;
        std::string const name = std::to_string(hidden);
        watch.bytes("rotary " + name, 8.0 * double(count) * hidden, [&] {
            vram::launch_rotary(on, columns.view, hidden / 64, qkv.data(), vram::rotary_direction::forward);
        });
        watch.bytes("geglu forward " + name, 3 * tensor,
                    [&] { vram::launch_geglu_forward(on, rows, gate_up.data(), product.data()); });
        watch.bytes("geglu backward " + name, 5 * tensor,
                    [&] { vram::launch_geglu_backward(on, rows, gate_up.data(), slopes.data(), gradient.data()); });
    }
}

void check_all() {
    using vram::rotary_direction;
    for (std::uint32_t heads : {1u, 3u, 8u, 17u}) {
        check("rotary twice", same_bits(rotary_case(heads, rotary_direction::forward, how::direct),
                                        rotary_case(heads, rotary_direction::forward, how::captured)));
        rotary_case(heads, rotary_direction::backward, how::direct);
    }
    for (std::uint32_t inner : {128u, 1408u, 2816u, 43776u})
        check("geglu twice",
              same_bits(geglu_case(37, inner, false, how::direct), geglu_case(37, inner, true, how::captured)));
    geglu_case(0, 128, false, how::direct);
    test_extreme_gates();
}

} // namespace

int main(int count, char** arguments) {
    if (wants_checks(count, arguments))
        check_all();
    if (wants_bench(count, arguments))
        bench();
    return native_test::report();
}
