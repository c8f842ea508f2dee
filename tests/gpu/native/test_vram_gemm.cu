/** Products against a naive sum in double, with every family, tile and slicing; `--bench` times the encoder's shapes.
 */
#include <utility>

#include "tests/gpu/native/gpu_check.h"
#include "vram/gemm.h"
#include "vram/gemm_family.h"

namespace {

using namespace gpu_test;
using uform::vram::gemm_family;
using uform::vram::gemm_family_of;
using uform::vram::gemm_problem;
using uform::vram::gemm_tile;
using uform::vram::linear_extents;

constexpr std::uint32_t spare_rows_k = 5; // past the rows in use: NaN

/* ------------------------------------------------------------------------------------------------ naive references */

__device__ float random_value(std::uint64_t place, unsigned seed) {
    std::uint64_t mixed = (place + 1) * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ull;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBull;
    return static_cast<float>(static_cast<std::int32_t>((mixed ^ (mixed >> 31)) >> 32)) * 0x1p-31f;
}

template <typename value_at> __global__ void fill_kernel(value_at* values, std::size_t count, unsigned seed) {
    std::size_t const at = std::size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at < count)
        values[at] = value_at(random_value(at, seed));
}

/** answer[i, j] = sum of a[i * a_row + t * a_term] * b[j * b_row + t * b_term], in order. */
__global__ void naive_kernel(bf16 const* a, std::size_t a_row, std::size_t a_term, bf16 const* b, std::size_t b_row,
                             std::size_t b_term, std::size_t rows, std::size_t columns, std::size_t terms,
                             double* answer) {
    std::size_t const at = std::size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= rows * columns)
        return;
    std::size_t const i = at / columns, j = at % columns;
    double sum = 0;
    for (std::size_t t = 0; t != terms; ++t)
        sum +=
            double(__bfloat162float(a[i * a_row + t * a_term])) * double(__bfloat162float(b[j * b_row + t * b_term]));
    answer[at] = sum;
}

unsigned blocks(std::size_t count) { return static_cast<unsigned>((count + 255) / 256); }

template <typename value_at> void fill(device_array<value_at> const& values, std::size_t count, unsigned seed) {
    fill_kernel<<<blocks(count), 256>>>(values.data(), count, seed);
    require(cudaDeviceSynchronize(), "fill");
}

/* -------------------------------------------------------------------------------------------------- one linear map */

uform::vram::stream& on() { return uform::vram::stream::of(stream()); }

/** The operands of a linear map and of its gradients, NaN past their rows. */
struct linear_case {
    linear_extents extents;
    std::string name;
    std::size_t outputs, inputs, weights;
    device_array<bf16> x, dy, weight, residual_y, residual_x;

    linear_case(linear_extents const& extents, std::string name)
        : extents(extents), name(std::move(name)), outputs(std::size_t(extents.rows) * extents.outs),
          inputs(std::size_t(extents.rows) * extents.ins), weights(std::size_t(extents.outs) * extents.ins),
          x(inputs + spare_rows_k * extents.ins), dy(outputs + spare_rows_k * extents.outs), weight(weights),
          residual_y(outputs + spare_rows_k * extents.outs), residual_x(inputs + spare_rows_k * extents.ins) {
        fill(x, inputs, 1);
        fill(dy, outputs, 2);
        fill(weight, weights, 3);
        fill(residual_y, outputs, 4);
        fill(residual_x, inputs, 5);
    }

    std::vector<double> forward() const {
        return naive(x, extents.ins, 1, weight, extents.ins, 1, extents.rows, extents.outs, extents.ins);
    }
    std::vector<double> data_gradient() const {
        return naive(dy, extents.outs, 1, weight, 1, extents.ins, extents.rows, extents.ins, extents.outs);
    }
    std::vector<double> weight_gradient() const {
        return naive(dy, 1, extents.outs, x, 1, extents.ins, extents.outs, extents.ins, extents.rows);
    }

private:
    static std::vector<double> naive(device_array<bf16> const& a, std::size_t a_row, std::size_t a_term,
                                     device_array<bf16> const& b, std::size_t b_row, std::size_t b_term,
                                     std::size_t rows, std::size_t columns, std::size_t terms) {
        device_array<double> answer(rows * columns);
        naive_kernel<<<blocks(rows * columns), 256>>>(a.data(), a_row, a_term, b.data(), b_row, b_term, rows, columns,
                                                      terms, answer.data());
        require(cudaDeviceSynchronize(), "naive");
        return answer.download();
    }
};

std::vector<double> plus(std::vector<double> sums, device_array<bf16> const& more) {
    std::vector<float> const added = to_float(more.download());
    for (std::size_t i = 0; i != sums.size(); ++i)
        sums[i] += double(added[i]);
    return sums;
}

/** The error of sums in float32 on tensor cores stays far below that of their bfloat16 terms. */
constexpr double float_bound_k = 1e-4;

void check_float(std::string const& name, std::vector<float> const& got, std::vector<double> const& expected) {
    check(name, relative_error(got, expected), float_bound_k);
}

/** Checks a bfloat16 answer: `compute` is called with memory for it. */
template <typename compute_at>
void check_states(std::string const& name, std::vector<double> const& expected, compute_at&& compute) {
    device_array<bf16> answer(expected.size());
    require(uform::guard([&] { compute(answer.data()); }), name.c_str());
    require(cudaDeviceSynchronize(), name.c_str());
    check_rounded(name, to_float(answer.download()), expected);
    check(name + " guards", answer.guarded());
}

void test_forward(linear_case const& given) {
    std::vector<double> const plain = given.forward();
    auto const [rows, outs, ins] = given.extents;
    check_states(given.name + " forward", plain, [&](bf16* y) {
        uform::vram::gemm_forward(on(), given.extents, given.x.data(), given.weight.data(), nullptr, y);
    });
    for (gemm_tile tile : {gemm_tile::narrow, gemm_tile::wide})
        check_states(given.name + (tile == gemm_tile::wide ? " forward wide" : " forward narrow"), plain, [&](bf16* y) {
            gemm_family_of(on()).forward(on(), tile,
                                         {rows, outs, ins, 1, given.x.data(), given.weight.data(), nullptr, y});
        });

    std::vector<double> const added = plus(plain, given.residual_y);
    check_states(given.name + " forward residual", added, [&](bf16* y) {
        uform::vram::gemm_forward(on(), given.extents, given.x.data(), given.weight.data(), given.residual_y.data(), y);
    });
    check_states(given.name + " forward residual in place", added, [&](bf16* y) {
        require(cudaMemcpy(y, given.residual_y.data(), given.outputs * sizeof(bf16), cudaMemcpyDeviceToDevice), "copy");
        require(cudaDeviceSynchronize(), "copy");
        uform::vram::gemm_forward(on(), given.extents, given.x.data(), given.weight.data(), y, y);
    });

    device_array<float> scores(given.outputs);
    require(uform::guard([&] {
                uform::vram::gemm_forward(on(), given.extents, given.x.data(), given.weight.data(), scores.data());
            }),
            "forward float");
    require(cudaDeviceSynchronize(), "forward float");
    check_float(given.name + " forward float", scores.download(), plain);
    check(given.name + " forward float guards", scores.guarded());
}

void test_data_gradient(linear_case const& given) {
    std::vector<double> const plain = given.data_gradient();
    auto const [rows, outs, ins] = given.extents;
    check_states(given.name + " dgrad", plain, [&](bf16* dx) {
        uform::vram::gemm_data_gradient(on(), given.extents, given.dy.data(), given.weight.data(), nullptr, dx);
    });
    for (gemm_tile tile : {gemm_tile::narrow, gemm_tile::wide})
        check_states(given.name + (tile == gemm_tile::wide ? " dgrad wide" : " dgrad narrow"), plain, [&](bf16* dx) {
            gemm_family_of(on()).data_gradient(on(), tile,
                                               {rows, ins, outs, 1, given.dy.data(), given.weight.data(), nullptr, dx});
        });
    check_states(given.name + " dgrad residual", plus(plain, given.residual_x), [&](bf16* dx) {
        uform::vram::gemm_data_gradient(on(), given.extents, given.dy.data(), given.weight.data(),
                                        given.residual_x.data(), dx);
    });
}

std::vector<float> weight_gradient(linear_case const& given, std::vector<float> const& before, bool& guarded) {
    std::size_t const bytes = uform::vram::gemm_weight_gradient_workspace_bytes(given.extents);
    device_array<std::uint8_t> workspace(bytes);
    device_array<float> dw(before);
    require(uform::guard([&] {
                uform::vram::gemm_weight_gradient(on(), given.extents, given.dy.data(), given.x.data(), dw.data(),
                                                  workspace.data(), bytes);
            }),
            "wgrad");
    require(cudaDeviceSynchronize(), "wgrad");
    guarded = dw.guarded() && workspace.guarded();
    return dw.download();
}

/** One tile with so many slices, which the operation itself might not choose. */
void test_slices(linear_case const& given, gemm_tile tile, std::uint32_t slices, std::vector<double> const& expected) {
    auto const [rows, outs, ins] = given.extents;
    std::uint32_t const slice = rows / slices;
    if (slice == 0)
        return;
    device_array<float> partials(std::size_t(slices) * given.weights), dw(std::vector<float>(given.weights, 0.f));
    require(uform::guard([&] {
                gemm_family_of(on()).weight_gradient(
                    on(), tile, {outs, ins, slice, slices, given.dy.data(), given.x.data(), nullptr, partials.data()});
                std::size_t const sliced = std::size_t(slices) * slice;
                uform::vram::launch_sum_partials(on(),
                                                 {outs, ins, slices, partials.data(), rows % slices,
                                                  given.dy.data() + sliced * outs, given.x.data() + sliced * ins},
                                                 dw.data());
            }),
            "wgrad slices");
    require(cudaDeviceSynchronize(), "wgrad slices");
    std::string const name = given.name + (tile == gemm_tile::wide ? " wgrad wide " : " wgrad narrow ");
    check_float(name + std::to_string(slices), dw.download(), expected);
    check(name + std::to_string(slices) + " guards", partials.guarded() && dw.guarded());
}

/** Stream-K by a plan for some of the processors, twice; `before` is what the gradient holds. */
void test_stream_k(linear_case const& given, int multiprocessors, std::vector<float> const& before,
                   std::vector<double> const& expected) {
    auto const [rows, outs, ins] = given.extents;
    uform::vram::stream_k_plan const plan = uform::vram::stream_k_of(rows, outs, ins, multiprocessors);
    device_array<std::uint8_t> workspace(uform::vram::stream_k_bytes(plan));
    device_array<float> dw(before);
    std::string const name = given.name + " wgrad stream-k " + std::to_string(multiprocessors);
    auto const compute = [&] {
        workspace.poison();
        dw.upload(before);
        require(uform::guard([&] {
                    gemm_family_of(on()).stream_k_gradient(
                        on(), {rows, outs, ins, given.dy.data(), given.x.data(), dw.data(), workspace.data(), plan});
                }),
                name.c_str());
        require(cudaDeviceSynchronize(), name.c_str());
        return dw.download();
    };
    std::vector<float> const got = compute();
    check_float(name, got, expected);
    check(name + " bits", same_bits(got, compute()));
    check(name + " guards", dw.guarded() && workspace.guarded());
}

void test_weight_gradient(linear_case const& given) {
    std::vector<double> const plain = given.weight_gradient();
    std::vector<float> const before = random_values(6).normal(given.weights);
    std::vector<double> expected = plain;
    for (std::size_t i = 0; i != expected.size(); ++i)
        expected[i] += double(before[i]);
    bool guarded = false;
    std::vector<float> const got = weight_gradient(given, before, guarded);
    check_float(given.name + " wgrad adds", got, expected);
    check(given.name + " wgrad guards", guarded);
    check(given.name + " wgrad bits", same_bits(got, weight_gradient(given, before, guarded)));
    for (gemm_tile tile : {gemm_tile::narrow, gemm_tile::wide})
        for (std::uint32_t slices : {1u, 3u, 8u})
            test_slices(given, tile, slices, plain);
    if (gemm_family_of(on()).stream_k_gradient)
        for (int multiprocessors : {132, 114, 20, 6, 2})
            test_stream_k(given, multiprocessors, before, expected);
}

/** A captured product and a captured weights' gradient answer the very bits of those that are not. */
void test_capture(linear_case const& given) {
    std::size_t const bytes = uform::vram::gemm_weight_gradient_workspace_bytes(given.extents);
    device_array<std::uint8_t> workspace(bytes);
    std::vector<float> const zeros(given.weights, 0.f);
    device_array<float> dw(zeros);
    device_array<bf16> y(given.outputs);
    auto const compute = [&] {
        uform::vram::gemm_forward(on(), given.extents, given.x.data(), given.weight.data(), given.residual_y.data(),
                                  y.data());
        uform::vram::gemm_weight_gradient(on(), given.extents, given.dy.data(), given.x.data(), dw.data(),
                                          workspace.data(), bytes);
    };
    require(uform::guard(compute), "compute");
    synchronize();
    std::vector<float> const direct_gradient = dw.download();
    std::vector<bf16> const direct = y.download();

    dw.upload(zeros);
    y.poison();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    require(cudaStreamBeginCapture(on().handle, cudaStreamCaptureModeThreadLocal), "capture");
    require(uform::guard(compute), "captured");
    require(cudaStreamEndCapture(on().handle, &graph), "end of capture");
    require(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    require(cudaGraphLaunch(executable, on().handle), "graph");
    synchronize();
    check(given.name + " captured forward", same_bits(direct, y.download()));
    check(given.name + " captured wgrad", same_bits(direct_gradient, dw.download()));
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
}

void test_refusals() {
    device_array<bf16> x(64 * 64), weight(64 * 64), y(64 * 64);
    auto const refuses = [&](char const* name, char const* message, auto&& body) {
        uform_status_t const status = uform::guard(body);
        check(name, status != uform_status_success_k && std::strstr(uform::last_error(), message) != nullptr);
    };
    refuses("refuses extents", "multiples of 8",
            [&] { uform::vram::gemm_forward(on(), {64, 63, 64}, x.data(), weight.data(), nullptr, y.data()); });
    refuses("refuses addresses", "weight at",
            [&] { uform::vram::gemm_forward(on(), {8, 64, 32}, x.data(), weight.data() + 1, nullptr, y.data()); });
    refuses("refuses a small workspace", "workspace_bytes: 0 bytes", [&] {
        device_array<float> dw(64 * 64);
        uform::vram::gemm_weight_gradient(on(), {64, 64, 64}, x.data(), weight.data(), dw.data(), y.data(), 0);
    });
}

void test_family(std::string const& name) {
    linear_extents const shapes[] = {{1, 64, 64},     {77, 192, 64},    {333, 128, 576},  {1000, 512, 192},
                                     {2051, 768, 72}, {300, 200, 1408}, {4099, 384, 512}, {130, 1536, 512}};
    for (linear_extents const& shape : shapes) {
        linear_case const given(shape, name + " " + std::to_string(shape.rows) + "x" + std::to_string(shape.outs) +
                                           "x" + std::to_string(shape.ins));
        test_forward(given);
        test_data_gradient(given);
        test_weight_gradient(given);
    }
    test_capture(linear_case({1111, 256, 512}, name + " graph"));
}

/* ------------------------------------------------------------------------------------------------------- timings */

struct encoder_shape {
    std::uint32_t columns, hidden, inner;
};

/** Every linear map of a block by name. */
template <typename body_at> void for_maps(encoder_shape const& shape, body_at&& body) {
    auto const [columns, hidden, inner] = shape;
    body("qkv", linear_extents{columns, 3 * hidden, hidden});
    body("out", linear_extents{columns, hidden, hidden});
    body("up", linear_extents{columns, 2 * inner, hidden});
    body("down", linear_extents{columns, hidden, inner});
}

/** The best slicing of each tile, beside the one that the operation takes. */
void bench_weight_gradient(stopwatch& watch, linear_case const& given, double operations) {
    auto const [rows, outs, ins] = given.extents;
    std::uint32_t const most = uform::vram::most_slices(rows, outs, ins);
    device_array<float> partials(std::size_t(most) * given.weights), dw(given.weights);
    auto const run = [&](gemm_tile tile, std::uint32_t slices) {
        gemm_family_of(on()).weight_gradient(
            on(), tile, {outs, ins, rows / slices, slices, given.dy.data(), given.x.data(), nullptr, partials.data()});
        std::size_t const sliced = std::size_t(slices) * (rows / slices);
        uform::vram::launch_sum_partials(on(),
                                         {outs, ins, slices, partials.data(), rows % slices,
                                          given.dy.data() + sliced * outs, given.x.data() + sliced * ins},
                                         dw.data());
    };
    for (gemm_tile tile : {gemm_tile::narrow, gemm_tile::wide}) {
        std::uint32_t best = 1;
        double best_time = 1e9;
        for (std::uint32_t slices = 1; slices <= most; ++slices) {
            double const time = watch.milliseconds([&] { run(tile, slices); }, 5);
            if (time < best_time)
                best_time = time, best = slices;
        }
        std::string const tile_name = tile == gemm_tile::wide ? " wgrad best wide " : " wgrad best narrow ";
        watch.operations(given.name + tile_name + std::to_string(best), operations, [&] { run(tile, best); });
    }
    if (gemm_family_of(on()).stream_k_gradient) {
        auto const plan = uform::vram::stream_k_of(rows, outs, ins, on().multiprocessors);
        device_array<std::uint8_t> workspace(uform::vram::stream_k_bytes(plan));
        watch.operations(given.name + " wgrad stream-k", operations, [&] {
            gemm_family_of(on()).stream_k_gradient(
                on(), {rows, outs, ins, given.dy.data(), given.x.data(), dw.data(), workspace.data(), plan});
        });
        if (uform::vram::is_stream_k_faster(plan, rows, outs, ins, on().multiprocessors))
            return; // the operation's choice
    }
    auto const chosen = uform::vram::weight_gradient_slices(rows, outs, ins, on().multiprocessors);
    watch.operations(given.name + " wgrad chosen " + (chosen.tile == gemm_tile::wide ? "wide " : "narrow ") +
                         std::to_string(chosen.slices),
                     operations, [&] { run(chosen.tile, chosen.slices); });
}

void bench_map(stopwatch& watch, linear_case const& given) {
    auto const [rows, outs, ins] = given.extents;
    double const operations = 2.0 * rows * outs * ins;
    device_array<bf16> y(given.outputs), dx(given.inputs);
    for (gemm_tile tile : {gemm_tile::narrow, gemm_tile::wide}) {
        std::string const tile_name = tile == gemm_tile::wide ? " wide" : " narrow";
        watch.operations(given.name + " forward" + tile_name, operations, [&] {
            gemm_family_of(on()).forward(on(), tile,
                                         {rows, outs, ins, 1, given.x.data(), given.weight.data(), nullptr, y.data()});
        });
        watch.operations(given.name + " dgrad" + tile_name, operations, [&] {
            gemm_family_of(on()).data_gradient(
                on(), tile, {rows, ins, outs, 1, given.dy.data(), given.weight.data(), nullptr, dx.data()});
        });
    }
    watch.operations(given.name + " forward residual", operations, [&] {
        uform::vram::gemm_forward(on(), given.extents, given.x.data(), given.weight.data(), given.residual_y.data(),
                                  y.data());
    });
    bench_weight_gradient(watch, given, operations);
}

void bench(bool hopper) {
    stopwatch watch;
    for (encoder_shape const& shape :
         {encoder_shape{65536, 512, 1408}, encoder_shape{65536, 768, 2048}, encoder_shape{32768, 1024, 2816}})
        for_maps(shape, [&](char const* name, linear_extents const& extents) {
            bench_map(
                watch,
                linear_case(extents, std::string("h").append(std::to_string(shape.hidden)).append(" ").append(name)));
        });
    if (!hopper)
        return;
    int const own = std::exchange(on().gpu_class, int(uform_gpu_class_ampere_k));
    for_maps({65536, 512, 1408}, [&](char const* name, linear_extents const& extents) {
        bench_map(watch, linear_case(extents, std::string("sm80 h512 ") + name));
    });
    on().gpu_class = own;
}

/** Whole shapes of the encoder against the naive sum: many waves of tiles, and sums over 65,536 rows. */
void test_large() {
    linear_case const given({65535, 512, 512}, "large");
    test_forward(given);
    test_data_gradient(given);
    test_weight_gradient(given);
    for (linear_extents const& chosen_of_stream_k :
         {linear_extents{20011, 2304, 768}, linear_extents{9999, 5632, 1024}})
        test_weight_gradient(linear_case(chosen_of_stream_k, "large " + std::to_string(chosen_of_stream_k.outs)));
}

void check_all(bool hopper) {
    test_refusals();
    test_family(gemm_family_of(on()).name);
    if (hopper) {
        int const own = std::exchange(on().gpu_class, uform_gpu_class_ampere_k);
        test_family(gemm_family_of(on()).name);
        on().gpu_class = own;
    }
    test_large();
}

} // namespace

int main(int count, char** arguments) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    bool const hopper = on().gpu_class == uform_gpu_class_hopper_k;
    if (wants_checks(count, arguments))
        check_all(hopper);
    if (wants_bench(count, arguments))
        bench(hopper);
    return native_test::report();
}
