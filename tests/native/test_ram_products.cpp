// GEMM, the exponential, GELU, and rotary positions: the parts that operations are made of.
#include <cmath>
#include <numbers>

#include "ram/elementwise.h"
#include "ram/operations.h"
#include "tests/native/ram_device.h"

using namespace native_test;
namespace ram = uform::ram;

namespace {

enum class layout { nt, nn, tn };

void call(ram::gemm const& gemm, layout which, std::size_t m, std::size_t n, std::size_t k, float alpha, float const* a,
          std::size_t a_stride, float const* b, std::size_t b_stride, float beta, float* c, std::size_t c_stride) {
    switch (which) {
    case layout::nt:
        return gemm.nt(m, n, k, alpha, a, a_stride, b, b_stride, beta, c, c_stride);
    case layout::nn:
        return gemm.nn(m, n, k, alpha, a, a_stride, b, b_stride, beta, c, c_stride);
    case layout::tn:
        return gemm.tn(m, n, k, alpha, a, a_stride, b, b_stride, beta, c, c_stride);
    }
}

/** One product against a loop; rows are longer than used, and what lies between them must neither be read nor written.
 */
void check_product(ram::gemm const& gemm, layout which, std::size_t m, std::size_t n, std::size_t k, float alpha,
                   float beta) {
    constexpr std::size_t gap = 3;
    random_values random(static_cast<unsigned>(m * 10007 + n * 101 + k));
    auto const matrix = [&](std::size_t rows, std::size_t columns) {
        std::vector<float> values(rows * (columns + gap), poison());
        for (std::size_t row = 0; row != rows; ++row) {
            std::vector<float> const line = random.normal(columns);
            std::copy(line.begin(), line.end(), values.begin() + static_cast<std::ptrdiff_t>(row * (columns + gap)));
        }
        return values;
    };
    bool const first = which == layout::tn, second = which == layout::nt;
    std::size_t const a_stride = (first ? m : k) + gap, b_stride = (second ? k : n) + gap, c_stride = n + gap;
    std::vector<float> const a = first ? matrix(k, m) : matrix(m, k), b = second ? matrix(n, k) : matrix(k, n);
    std::vector<float> c = beta == 0 ? std::vector<float>(m * c_stride, poison()) : matrix(m, n);
    std::vector<double> expected, scale;
    for (std::size_t i = 0; i != m; ++i)
        for (std::size_t j = 0; j != n; ++j) {
            double sum = 0, size = 1e-30;
            for (std::size_t d = 0; d != k; ++d) {
                double const product = double(first ? a[d * a_stride + i] : a[i * a_stride + d]) *
                                       double(second ? b[j * b_stride + d] : b[d * b_stride + j]);
                sum += product, size += std::abs(product);
            }
            expected.push_back(alpha * sum + (beta == 0 ? 0 : beta * double(c[i * c_stride + j])));
            scale.push_back(size + 1);
        }
    call(gemm, which, m, n, k, alpha, a.data(), a_stride, b.data(), b_stride, beta, c.data(), c_stride);
    double worst = 0;
    bool gaps_untouched = true;
    for (std::size_t i = 0; i != m; ++i) {
        for (std::size_t j = 0; j != n; ++j)
            worst = std::max(worst, std::abs(double(c[i * c_stride + j]) - expected[i * n + j]) / scale[i * n + j]);
        gaps_untouched = gaps_untouched && all_poison({c.data() + i * c_stride + n, gap});
    }
    CHECK(worst < 1e-6);
    CHECK(gaps_untouched);
}

void test_products() {
    struct {
        std::size_t m, n, k;
    } const shapes[] = {{1, 1, 1},    {2, 3, 5},    {5, 7, 64},     {6, 8, 300},
                        {31, 33, 64}, {65, 63, 97}, {49, 130, 257}, {4, 5, 0}};
    on_every_device([&](ram_device const& device) {
        ram::gemm const& gemm = ram::stream::of(device.stream()).backend.gemm();
        for (auto const& shape : shapes)
            for (layout which : {layout::nt, layout::nn, layout::tn}) {
                check_product(gemm, which, shape.m, shape.n, shape.k, 1, 0);
                check_product(gemm, which, shape.m, shape.n, shape.k, 0.125f, 1);
                check_product(gemm, which, shape.m, shape.n, shape.k, -2, 0.5f);
            }
    });
}

/** The three products of a linear map, at a row count above one task's. */
std::vector<float> linear_products(ram_device const& device, std::size_t rows, std::size_t outs, std::size_t ins) {
    ram::backend const& backend = ram::stream::of(device.stream()).backend;
    random_values random(7);
    std::vector<float> const x = random.normal(rows * ins), weight = random.normal(outs * ins),
                             dy = random.normal(rows * outs);
    std::vector<float> y(rows * outs, poison()), dx(rows * ins, poison()), dw = random.normal(outs * ins);
    std::vector<double> expected_y(y.size()), expected_dx(dx.size()), expected_dw = to_double(dw);
    for (std::size_t r = 0; r != rows; ++r)
        for (std::size_t o = 0; o != outs; ++o)
            for (std::size_t i = 0; i != ins; ++i) {
                expected_y[r * outs + o] += double(x[r * ins + i]) * double(weight[o * ins + i]);
                expected_dx[r * ins + i] += double(dy[r * outs + o]) * double(weight[o * ins + i]);
                expected_dw[o * ins + i] += double(dy[r * outs + o]) * double(x[r * ins + i]);
            }
    ram::linear_forward(backend, rows, outs, ins, x.data(), weight.data(), y.data());
    ram::linear_backward(backend, rows, outs, ins, dy.data(), weight.data(), dx.data());
    ram::linear_weight_gradient(backend, rows, outs, ins, dy.data(), x.data(), dw.data());
    CHECK(relative_error(y, expected_y) < 1e-6);
    CHECK(relative_error(dx, expected_dx) < 1e-6);
    CHECK(relative_error(dw, expected_dw) < 1e-6);
    y.insert(y.end(), dx.begin(), dx.end());
    y.insert(y.end(), dw.begin(), dw.end());
    return y;
}

void test_linear() {
    for (char const* blas : blas_choices())
        same_on_threads(blas, [](ram_device const& device) { return linear_products(device, 531, 77, 67); });
}

void test_gemm_names() {
    CHECK(std::string(ram_device::operations().backend_gemm(ram_device(1).backend())) == "plain");
    uform::thread_pool pool(1);
    uform_backend_options_t options{};
    options.parallel = pool.parallel();
#if !defined(UFORM_SANITIZED)
    void* backend = nullptr;
    options.blas_path = "no/such/library.so";
    CHECK(ram_device::operations().backend_create(&options, &backend) == uform_status_file_k);
    CHECK(std::string(uform::last_error()).find("blas_path: no/such/library.so") != std::string::npos);
    options.blas_path = "libdl.so.2"; // a library without the function
    CHECK(ram_device::operations().backend_create(&options, &backend) == uform_status_file_k);
    if (blas_path())
        CHECK(std::string(ram_device::operations().backend_gemm(ram_device(1, blas_path()).backend())) == "openblas");
#endif
}

void test_exponential() {
    double worst = 0;
    for (float x = -87.25f; x < 88.25f; x += 0.0137f) {
        double const expected = std::exp(double(x));
        worst = std::max(worst, std::abs(double(ram::exponential(x)) - expected) / expected);
    }
    CHECK(worst < 2e-7);
    CHECK(ram::exponential(0.f) == 1.f);
    CHECK(ram::exponential(-100.f) == 0.f);
    CHECK(ram::exponential(-std::numeric_limits<float>::infinity()) == 0.f);
    CHECK(ram::exponential(1000.f) > 2e38f);
    CHECK(std::isnan(ram::exponential(poison())));
}

void test_gelu() {
    double worst_value = 0, worst_slope = 0;
    for (float x = -9; x < 9; x += 0.0171f) {
        double const linear = std::sqrt(2 / std::numbers::pi), cubic = 0.044715 * linear, at = x;
        double const tangent = std::tanh(linear * at + cubic * at * at * at);
        double const value = 0.5 * at * (1 + tangent);
        double const slope = 0.5 * (1 + tangent) + 0.5 * at * (1 - tangent * tangent) * (linear + 3 * cubic * at * at);
        ram::gelu_pair const pair = ram::gelu_with_slope(ram::spread(x));
        worst_value = std::max(worst_value, std::abs(double(pair.value[0]) - value) / std::max(1.0, std::abs(at)));
        worst_slope = std::max(worst_slope, std::abs(double(pair.slope[0]) - slope));
        worst_value =
            std::max(worst_value, std::abs(double(ram::gelu(ram::spread(x))[0]) - value) / std::max(1.0, std::abs(at)));
    }
    CHECK(worst_value < 2e-7);
    CHECK(worst_slope < 5e-7);
}

void test_row_helpers() {
    random_values random(3);
    for (std::size_t count : {0, 1, 3, 4, 5, 15, 16, 17, 63}) {
        std::vector<float> const a = random.normal(count), b = random.normal(count);
        double product = 0, total = 0;
        float most = -1;
        for (std::size_t i = 0; i != count; ++i) {
            product += double(a[i]) * double(b[i]);
            total += std::exp(double(a[i]) - 0.5);
            most = std::max(most, a[i]);
        }
        CHECK(std::abs(double(ram::dot(a.data(), b.data(), count)) - product) < 1e-5);
        CHECK(ram::largest(a.data(), count, -1) == most);
        std::vector<float> values = a;
        CHECK(std::abs(double(ram::exponentials(values.data(), count, 0.5f)) - total) < 1e-5 * (1 + total));
        std::vector<float> doubled(count, poison());
        ram::for_lanes(count, [&](auto places) { places.store(doubled.data(), places.load(a.data()) * 2.f); });
        bool same = true;
        for (std::size_t i = 0; i != count; ++i)
            same = same && doubled[i] == 2 * a[i];
        CHECK(same);
    }
}

void test_rotary() {
    ram::rotary_table const table;
    std::size_t const pairs[3][3] = {{32, 0, 0}, {16, 16, 0}, {8, 12, 12}};
    std::uint16_t const places[][UFORM_AXES] = {
        {0, 0, 0}, {1, 2, 3}, {255, 256, 257}, {1023, 77, 4096}, {65535, 65535, 65535}};
    double worst = 0;
    for (unsigned axes = 1; axes <= 3; ++axes)
        for (auto const& place : places) {
            ram::rotary_turn const turn = table.turn(axes, place);
            std::size_t pair = 0;
            for (unsigned axis = 0; axis != axes; ++axis)
                for (std::size_t j = 0; j != pairs[axes - 1][axis]; ++j, ++pair) {
                    double const angle = place[axis] * std::pow(10000.0, -double(j) / double(pairs[axes - 1][axis]));
                    worst = std::max(worst, std::abs(double(turn.cosine[pair]) - std::cos(angle)));
                    worst = std::max(worst, std::abs(double(turn.sine[pair]) - std::sin(angle)));
                }
            CHECK(pair == 32);
        }
    CHECK(worst < 3e-7);

    std::vector<float> const vector = random_values(5).normal(64);
    std::vector<float> turned = vector;
    ram::rotary_turn const turn = table.turn(2, places[3]);
    ram::rotate(turned.data(), turn);
    CHECK(std::abs(turned[3] - (vector[3] * turn.cosine[3] - vector[35] * turn.sine[3])) < 1e-6f);
    CHECK(std::abs(turned[35] - (vector[35] * turn.cosine[3] + vector[3] * turn.sine[3])) < 1e-6f);
    ram::rotate_back(turned.data(), turn);
    CHECK(relative_error(turned, to_double(vector)) < 1e-6);
}

} // namespace

int main() {
    test_products();
    test_linear();
    test_gemm_names();
    test_exponential();
    test_gelu();
    test_row_helpers();
    test_rotary();
    return report();
}
