/**
 *  Products that go on in their epilogues against the same steps one by one, as another family of kernels takes them
 *  (each is held against naive sums elsewhere); `--bench` times them at the encoder's shapes.
 */
#include <utility>

#include "tests/gpu/native/gpu_check.h"
#include "vram/gemm.h"
#include "vram/gemm_fused.h"

namespace {

using namespace gpu_test;
namespace vram = uform::vram;

/** Two roundings to bfloat16 in different places. */
constexpr double bound_k = 8e-3;

vram::stream& on() { return vram::stream::of(stream()); }

struct extents {
    std::uint32_t rows, count, hidden, inner;

    std::string name() const {
        return std::to_string(count) + " of " + std::to_string(rows) + " x " + std::to_string(hidden) + " x " +
               std::to_string(inner);
    }
};

/** Values of which the rows past the count are NaN or zero. */
std::vector<bf16> rows_of(unsigned seed, extents const& of, std::size_t width, float slack, float deviation = 1) {
    std::vector<float> values = random_values(seed).normal(of.count * width, deviation);
    values.resize(of.rows * width, slack);
    return to_bf16(values);
}

template <typename compute_at> void on_class(int gpu_class, char const* name, compute_at&& compute) {
    int const own = std::exchange(on().gpu_class, gpu_class);
    require(uform::guard(compute), name);
    synchronize();
    on().gpu_class = own;
}

/** The first `count` values of both, and whether the guards held. */
void compare(std::string const& name, device_array<bf16> const& fused, device_array<bf16> const& single,
             std::size_t used, bool zeros) {
    std::vector<float> const got = to_float(fused.download()), wanted = to_float(single.download());
    auto const end = static_cast<std::ptrdiff_t>(used);
    std::vector<double> const expected(wanted.begin(), wanted.begin() + end);
    check(name, relative_error(std::vector<float>(got.begin(), got.begin() + end), expected), bound_k);
    check(name + " guards", fused.guarded());
    if (zeros)
        check(name + " zeros", std::all_of(got.begin() + end, got.end(), [](float value) { return value == 0; }));
}

/** A norm before a product: its rows, the gain, and the memory to work in. */
struct norm_case {
    device_array<std::uint32_t> count;
    device_array<bf16> x, normed, scaled;
    device_array<float> gain, squares, inverses;
    vram::norm_rows rows;

    norm_case(extents const& of, std::size_t outs, float slack)
        : count(std::vector{of.count}), x(rows_of(1, of, of.hidden, slack, 3)), normed(x.size()),
          scaled(outs * of.hidden), gain(random_values(8).normal(of.hidden)),
          squares(std::size_t(of.rows) * of.hidden / vram::norm_part_k), inverses(of.rows),
          rows{of.rows, count.data(), of.hidden} {}

    vram::norm_before before(float const* of_squares) {
        return {rows, x.data(), gain.data(), of_squares, inverses.data(), normed.data(), scaled.data()};
    }
    bool guarded() const { return normed.guarded() && scaled.guarded() && squares.guarded() && inverses.guarded(); }
};

void test_gated(extents const& of, int gpu_class) {
    std::size_t const inner = std::size_t(of.rows) * of.inner;
    device_array<std::uint32_t> const count(std::vector{of.count});
    norm_case norm(of, 2 * std::size_t(of.inner), NAN);
    device_array<bf16> const dy(rows_of(2, of, of.hidden, 0)), saved(rows_of(3, of, 2 * std::size_t(of.inner), NAN)),
        up(to_bf16(random_values(4).normal(2 * std::size_t(of.inner) * of.hidden, 0.1f))),
        down(to_bf16(random_values(5).normal(std::size_t(of.inner) * of.hidden, 0.1f)));
    device_array<bf16> gate_up(2 * inner), product(inner), again(2 * inner), product_again(inner), single(2 * inner),
        single_product(inner);
    auto const forward = [&](device_array<bf16>& both, device_array<bf16>& of_both) {
        vram::gemm_gated_forward(on(), {norm.before(nullptr), of.inner, up.data(), both.data(), of_both.data()});
    };
    auto const backward = [&](device_array<bf16>& both) {
        vram::gemm_gated_backward(on(), {of.rows, of.inner, of.hidden, count.data(), dy.data(), down.data(),
                                         saved.data(), both.data(), product.data()});
    };
    std::size_t const used = std::size_t(of.count) * of.inner;
    std::string const name = of.name();
    on_class(gpu_class, "forward", [&] { forward(gate_up, product); });
    on_class(gpu_class, "forward", [&] { forward(again, product_again); });
    on_class(uform_gpu_class_ampere_k, "forward", [&] { forward(single, single_product); });
    compare(name + " gate_up", gate_up, single, 2 * used, false);
    compare(name + " product", product, single_product, used, true);
    check(name + " forward bits",
          same_bits(gate_up.download(), again.download()) && same_bits(product.download(), product_again.download()));

    on_class(gpu_class, "backward", [&] { backward(gate_up); });
    on_class(gpu_class, "backward", [&] { backward(again); });
    on_class(uform_gpu_class_ampere_k, "backward", [&] { backward(single); });
    compare(name + " gate_up gradient", gate_up, single, 2 * used, true);
    check(name + " backward bits", same_bits(gate_up.download(), again.download()) && product.guarded());
}

void test_turned(std::vector<columns_fixture::shape> const& shapes, std::uint32_t hidden, int gpu_class) {
    columns_fixture host(shapes);
    device_columns columns(expanded(host));
    columns.copy_expanded(host);
    std::uint32_t const rows = columns.view.active;
    extents const of{rows, static_cast<std::uint32_t>(host.used()), hidden, 0};
    norm_case norm(of, 3 * std::size_t(hidden), NAN);
    device_array<bf16> const weight(to_bf16(random_values(7).normal(3 * std::size_t(hidden) * hidden, 0.1f)));
    device_array<float2> turns(std::size_t(rows) * 32);
    device_array<bf16> qkv(std::size_t(rows) * 3 * hidden), again(qkv.size()), single(qkv.size());
    auto const forward = [&](device_array<bf16>& to) {
        vram::gemm_turned_forward(on(), {norm.before(nullptr), columns.view, weight.data(), to.data(), turns.data()});
    };
    std::size_t const used = host.used() * 3 * std::size_t(hidden);
    on_class(gpu_class, "turned", [&] { forward(qkv); });
    on_class(gpu_class, "turned", [&] { forward(again); });
    on_class(uform_gpu_class_ampere_k, "turned", [&] { forward(single); });
    compare(of.name() + " turned", qkv, single, used, false);
    std::vector<bf16> one = qkv.download(), two = again.download();
    one.resize(used), two.resize(used);
    check(of.name() + " turned bits", same_bits(one, two) && turns.guarded());
}

/** Sums of squares that a product with a residual leaves, and a product that norms its rows by them. */
void test_squares(extents const& of, int gpu_class) {
    if (gpu_class != uform_gpu_class_hopper_k)
        return;
    norm_case norm(of, 2 * std::size_t(of.inner), 0);
    device_array<bf16> const residual(rows_of(9, of, of.hidden, 0)),
        weight(to_bf16(random_values(10).normal(std::size_t(of.hidden) * of.hidden, 0.1f))),
        up(to_bf16(random_values(11).normal(2 * std::size_t(of.inner) * of.hidden, 0.1f)));
    device_array<bf16> y(residual.size()), gate_up(std::size_t(of.rows) * 2 * of.inner), single(gate_up.size()),
        product(std::size_t(of.rows) * of.inner);
    on_class(gpu_class, "residual", [&] {
        vram::gemm_residual_forward(on(), {of.rows, of.hidden, of.hidden}, norm.x.data(), weight.data(),
                                    residual.data(), y.data(), norm.squares.data());
    });
    std::vector<float> const sums = norm.squares.download(), stored = to_float(y.download());
    std::vector<double> expected(sums.size());
    for (std::size_t i = 0; i != stored.size(); ++i)
        expected[i / vram::norm_part_k] += double(stored[i]) * double(stored[i]);
    check(of.name() + " squares", relative_error(sums, expected), 1e-5);

    auto const forward = [&](device_array<bf16>& both, float const* squares) {
        vram::norm_before before = norm.before(squares);
        before.x = y.data();
        vram::gemm_gated_forward(on(), {before, of.inner, up.data(), both.data(), product.data()});
    };
    on_class(gpu_class, "squares", [&] { forward(gate_up, norm.squares.data()); });
    on_class(uform_gpu_class_ampere_k, "squares", [&] { forward(single, norm.squares.data()); });
    compare(of.name() + " normed by squares", gate_up, single, std::size_t(of.count) * 2 * of.inner, false);
    check(of.name() + " squares guards", norm.guarded() && y.guarded());
}

/** Pictures of two and three axes among texts. */
std::vector<columns_fixture::shape> mixed_shapes() {
    std::vector<columns_fixture::shape> shapes = odd_segments(23);
    std::uint32_t const bag = shapes.back().bag + 1;
    shapes.push_back({43, 2, {6, 7, 0}, 43, bag, uform_modality_image_k});
    shapes.push_back({61, 3, {3, 4, 5}, 61, bag + 1, uform_modality_image_k});
    return shapes;
}

/* ------------------------------------------------------------------------------------------------------- timings */

void bench(std::uint32_t rows, std::uint32_t hidden, std::uint32_t inner) {
    stopwatch watch;
    columns_fixture host(equal_segments(rows / 256, 256));
    device_columns columns(expanded(host));
    columns.copy_expanded(host);
    device_array<std::uint32_t> const count(std::vector{rows});
    auto const values = [](std::size_t size) { return to_bf16(noise(size)); };
    std::size_t const states = std::size_t(rows) * hidden, wide = std::size_t(rows) * inner;
    device_array<bf16> const x(values(states)), weight(values(2 * std::size_t(inner) * hidden));
    device_array<bf16> gate_up(values(2 * wide)), gradient(2 * wide), product(values(wide)), y(states);
    device_array<float2> turns(std::size_t(rows) * 32);
    norm_case norm({rows, rows, hidden, inner}, 2 * std::size_t(inner), 0);
    std::string const name = std::string("h").append(std::to_string(hidden));
    double const square = 2.0 * rows * double(hidden) * hidden, map = 2.0 * rows * double(hidden) * inner;
    watch.operations(name + " turned forward", 3 * square, [&] {
        vram::gemm_turned_forward(on(),
                                  {norm.before(nullptr), columns.view, weight.data(), gradient.data(), turns.data()});
    });
    watch.operations(name + " gated forward", 2 * map, [&] {
        vram::gemm_gated_forward(
            on(), {norm.before(norm.squares.data()), inner, weight.data(), gate_up.data(), product.data()});
    });
    watch.operations(name + " gated backward", map, [&] {
        vram::gemm_gated_backward(on(), {rows, inner, hidden, count.data(), x.data(), weight.data(), gate_up.data(),
                                         gradient.data(), product.data()});
    });
    watch.operations(name + " out residual", square, [&] {
        vram::gemm_residual_forward(on(), {rows, hidden, hidden}, x.data(), weight.data(), x.data(), y.data(),
                                    norm.squares.data());
    });
    watch.operations(name + " down residual", map, [&] {
        vram::gemm_forward(on(), {rows, hidden, inner}, product.data(), weight.data(), x.data(), y.data());
    });
}

void check_all() {
    int const own = on().gpu_class;
    for (extents const& one : {extents{128, 128, 64, 64}, extents{1, 1, 64, 64}, extents{333, 300, 128, 192},
                               extents{200, 77, 192, 72}, extents{4099, 4000, 512, 1408}, extents{65, 0, 64, 128}})
        test_gated(one, own);
    for (extents const& one : {extents{1, 1, 64, 64}, extents{333, 300, 192, 192}, extents{4099, 4099, 512, 128}})
        test_squares(one, own);
    for (std::uint32_t hidden : {64u, 192u, 512u})
        test_turned(mixed_shapes(), hidden, own);
}

} // namespace

int main(int count, char** arguments) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    if (wants_checks(count, arguments))
        check_all();
    if (wants_bench(count, arguments)) {
        bench(65536, 512, 1408);
        bench(65536, 768, 2048);
        bench(32768, 1024, 2816);
    }
    return native_test::report();
}
