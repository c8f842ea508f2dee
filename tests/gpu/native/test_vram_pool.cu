// Pooling by bag and its gradient, against RAM on the same rounded inputs.
#include "tests/gpu/native/gpu_check.h"

using namespace gpu_test;
using namespace uform;

namespace {

/** Items of a bag that lie far apart, beside bags of one item; some columns are not pooled. */
std::vector<columns_fixture::shape> scattered_bags(std::uint32_t segments) {
    std::vector<columns_fixture::shape> shapes = odd_segments(segments);
    for (std::uint32_t i = 0; i != segments; ++i)
        shapes[i].bag = i % 5 == 4 ? 0 : (segments - 1 - i) % (segments / 2 + 1);
    return shapes;
}

std::vector<float> run_case(std::vector<columns_fixture::shape> const& shapes, std::uint32_t hidden, bool zeros,
                            how mode) {
    columns_fixture host(shapes);
    ram_device const ram(2);
    expanded(host);
    device_columns columns(host);
    columns.copy_expanded(host);
    random_values random(hidden);
    std::size_t const used = std::size_t(host.used()) * hidden, capacity = std::size_t(host.view.capacity) * hidden;
    std::size_t const bags = host.view.bags_capacity, active = std::size_t(host.view.active) * hidden;
    std::vector<float> const states =
        zeros ? std::vector<float>(used, 0.f) : rounded(random.normal(used)); // NUM-07: a bag of zeros
    std::vector<float> const slopes = random.normal(std::size_t(host.counts[2]) * hidden);
    std::vector<float> const before = rounded(random.normal(active));
    device_array<bf16> const device_states(to_bf16(states), capacity), gradient(capacity),
        added(to_bf16(before), capacity);
    device_array<float> const pooled(bags * hidden), lengths(bags), pooled_gradient(slopes, bags * hidden);
    device_array<std::uint32_t> const bag_columns(bags);
    std::size_t const bytes = vram::pool_workspace_bytes(hidden, host.view.bags_capacity);
    device_array<std::uint8_t> const workspace(bytes);
    uform_pool_t pool{columns.view,
                      hidden,
                      device_states.data(),
                      pooled.data(),
                      lengths.data(),
                      bag_columns.data(),
                      pooled_gradient.data(),
                      gradient.data(),
                      0,
                      workspace.data(),
                      bytes};
    uform_pool_t adding = pool;
    adding.gradient = added.data(), adding.accumulate = 1;
    once(mode, "pool", [&] {
        require(vram::pool_forward(stream(), &pool), "pool_forward");
        require(vram::pool_backward(stream(), &pool), "pool_backward");
        require(vram::pool_backward(stream(), &adding), "pool_backward");
    });

    std::vector<float> ram_pooled(bags * hidden), ram_lengths(bags), ram_gradient(capacity, native_test::poison());
    std::vector<std::uint32_t> ram_columns(bags);
    native_test::poisoned_memory ram_workspace(ram.operations().pool_workspace_bytes(hidden, host.view.bags_capacity));
    uform_pool_t reference{host.view,
                           hidden,
                           states.data(),
                           ram_pooled.data(),
                           ram_lengths.data(),
                           ram_columns.data(),
                           slopes.data(),
                           ram_gradient.data(),
                           0,
                           ram_workspace.data(),
                           0};
    ram.run(ram.operations().pool_forward, reference);
    ram.run(ram.operations().pool_backward, reference);

    std::string const name = "pool " + std::to_string(hidden) + (zeros ? " of zeros" : "");
    auto const part = [&](device_array<bf16> const& values) {
        std::vector<float> all = to_float(values.download());
        check(name + " slack", slack_holds(all, active, active) && values.guarded());
        all.resize(active);
        return all;
    };
    ram_gradient.resize(active);
    std::vector<double> sums = to_double(ram_gradient);
    for (std::size_t i = 0; i != active; ++i)
        sums[i] += double(before[i]);
    check_close(name + " embeddings", pooled.download(), ram_pooled, to_double(ram_pooled));
    check_close(name + " lengths", lengths.download(), ram_lengths, to_double(ram_lengths));
    check(name + " columns", same_bits(bag_columns.download(), ram_columns));
    std::vector<float> const got = part(gradient);
    check_rounded(name + " gradient", got, to_double(ram_gradient));
    check_rounded(name + " gradient added", part(added), sums);
    bool zero = true;
    for (std::size_t i = 0; i != active; ++i)
        zero = zero && (ram_gradient[i] != 0 || got[i] == 0);
    check(name + " zero where not pooled", zero);
    check(name + " guards", pooled.guarded() && lengths.guarded() && bag_columns.guarded() && workspace.guarded());
    std::vector<float> bits = pooled.download();
    bits.insert(bits.end(), got.begin(), got.end());
    return bits;
}

/** What is no number shows in every value of its bag, as in RAM. */
void check_nan() {
    constexpr std::uint32_t hidden = 64;
    columns_fixture const host(equal_segments(3, 8));
    device_columns columns(host);
    columns.expand();
    std::vector<float> states = rounded(random_values(4).normal(std::size_t(host.view.capacity) * hidden));
    states[9 * hidden + 5] = NAN; // in the second bag
    std::size_t const bags = host.view.bags_capacity;
    device_array<bf16> const device_states(to_bf16(states));
    device_array<float> const pooled(bags * hidden), lengths(bags);
    device_array<std::uint32_t> const bag_columns(bags);
    std::size_t const bytes = vram::pool_workspace_bytes(hidden, host.view.bags_capacity);
    device_array<std::uint8_t> const workspace(bytes);
    uform_pool_t const pool{
        columns.view, hidden, device_states.data(), pooled.data(), lengths.data(), bag_columns.data(), nullptr,
        nullptr,      0,      workspace.data(),     bytes};
    run("pool_forward", vram::pool_forward, pool);
    std::vector<float> const got = pooled.download();
    bool shown = true;
    for (std::size_t i = 0; i != 3 * hidden; ++i)
        shown = shown && std::isnan(got[i]) == (i / hidden == 1);
    check("pool, no number", shown);
}

void bench() {
    stopwatch watch;
    for (std::uint32_t length : {32u, 256u, 1024u})
        for (auto const& [hidden, count] : {std::pair{512u, 65536u}, {1024u, 32768u}}) {
            columns_fixture const host(equal_segments(count / length, length));
            device_columns columns(host);
            columns.expand();
            std::size_t const values = std::size_t(host.view.capacity) * hidden, bags = host.view.bags_capacity;
            device_array<bf16> const states(to_bf16(noise(values))), gradient(values);
            device_array<float> const pooled(bags * hidden), lengths(bags), slopes(noise(bags * hidden));
            device_array<std::uint32_t> const bag_columns(bags);
            std::size_t const bytes = vram::pool_workspace_bytes(hidden, host.view.bags_capacity);
            device_array<std::uint8_t> const workspace(bytes);
            uform_pool_t pool{columns.view,
                              hidden,
                              states.data(),
                              pooled.data(),
                              lengths.data(),
                              bag_columns.data(),
                              slopes.data(),
                              gradient.data(),
                              0,
                              workspace.data(),
                              bytes};
            double const tensor = 2.0 * double(count) * hidden;
            std::string const name = std::to_string(hidden) + " segments of " + std::to_string(length);
            watch.bytes("pool_forward " + name, tensor,
                        [&] { require(vram::pool_forward(stream(), &pool), "pool_forward"); });
            watch.bytes("pool_backward " + name, tensor,
                        [&] { require(vram::pool_backward(stream(), &pool), "pool_backward"); });
            pool.accumulate = 1;
            watch.bytes("pool_backward, added, " + name, 2 * tensor,
                        [&] { require(vram::pool_backward(stream(), &pool), "pool_backward"); });
        }
}

void check_all() {
    check_nan();
    for (std::uint32_t hidden : {64u, 192u, 512u, 576u, 1088u, 4160u}) {
        auto const shapes = scattered_bags(hidden > 1000 ? 9 : 75);
        check("pool twice",
              same_bits(run_case(shapes, hidden, false, how::direct), run_case(shapes, hidden, false, how::captured)));
    }
    run_case(odd_segments(2), 16384, false, how::direct);
    // Fewer threads share a bag where there are more of them.
    run_case(equal_segments(700, 3), 64, false, how::direct);
    run_case(equal_segments(200, 9), 192, false, how::direct);
    run_case(odd_segments(4), 128, true, how::direct);
    run_case({}, 64, false, how::direct);
}

} // namespace

int main(int count, char** arguments) {
    if (wants_checks(count, arguments))
        check_all();
    if (wants_bench(count, arguments))
        bench();
    return native_test::report();
}
