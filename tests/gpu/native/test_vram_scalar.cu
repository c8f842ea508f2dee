// Rows between float32 and the element types that others take and give, bit for bit as RAM has them.
#include <bit>
#include <limits>
#include <numeric>
#include <random>

#include "tests/gpu/native/gpu_check.h"

using namespace gpu_test;
using namespace uform;

namespace {

constexpr std::int32_t scalars_k[] = {uform_scalar_float32_k, uform_scalar_float16_k, uform_scalar_bfloat16_k,
                                      uform_scalar_int8_k, uform_scalar_bit_k};

ram_device const& ram() {
    static ram_device const instance(3);
    return instance;
}

/** Normal numbers, every kind of bits, and the edges of each type: ties, subnormals, infinities, NaN with payloads. */
std::vector<float> awkward_values(std::size_t count) {
    std::vector<float> values = random_values(31).normal(count);
    std::mt19937 random(5);
    for (std::size_t i = 0; i < count; i += 3)
        values[i] = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    float const edges[] = {0.f,
                           -0.f,
                           1.f,
                           -1.f,
                           0.5f / 127,
                           1.5f / 127,
                           -2.5f / 127,
                           1.25f,
                           65519.996f,
                           65520.f,
                           1e-45f,
                           0x1p-14f,
                           0x1p-24f,
                           0x1p-25f,
                           0x1.000002p-25f,
                           0x1.8p-24f,
                           1 + 0x1p-8f,
                           1 + 0x3p-8f,
                           std::numeric_limits<float>::infinity(),
                           -std::numeric_limits<float>::infinity(),
                           std::bit_cast<float>(0x7F800001u),
                           std::bit_cast<float>(0xFFFFFFFFu)};
    for (std::size_t i = 0; i < count; i += 7)
        values[i] = edges[i / 7 % std::size(edges)];
    return values;
}

std::vector<std::uint32_t> shuffled(std::uint32_t count, std::uint32_t below) {
    std::vector<std::uint32_t> places(below);
    std::iota(places.begin(), places.end(), 0u);
    std::shuffle(places.begin(), places.end(), std::mt19937(9));
    places.resize(count);
    return places;
}

struct narrow_case {
    std::uint32_t rows, width;
    bool placed;
    std::uint32_t apart; // bytes between the rows of the output, whole elements
    std::uint32_t skew;  // values before the first, so that nothing is aligned
};

std::vector<std::uint8_t> narrowed_in_ram(narrow_case const& shape, std::int32_t scalar, std::size_t to_bytes,
                                          std::size_t out_rows, std::vector<float> const& values,
                                          std::vector<std::uint32_t> const& places) {
    std::vector<std::uint8_t> to(out_rows * to_bytes, 0xFF);
    uform_narrow_t narrow{};
    narrow.width = shape.width, narrow.count = shape.rows, narrow.scalar = scalar;
    narrow.from = values.data() + shape.skew, narrow.places = shape.placed ? places.data() : nullptr;
    narrow.to = to.data(), narrow.to_bytes = to_bytes;
    ram().run(ram_device::operations().rows_narrow, narrow);
    return to;
}

void test_narrow(narrow_case const& shape, std::int32_t scalar, how mode) {
    std::size_t row_bytes = 0;
    require(uform_scalar_row_bytes(scalar, shape.width, &row_bytes), "row bytes");
    std::size_t const to_bytes = row_bytes + shape.apart, out_rows = shape.rows + 11;
    std::vector<float> const values = awkward_values(shape.skew + std::size_t(shape.rows) * shape.width);
    std::vector<std::uint32_t> const places = shuffled(shape.rows, static_cast<std::uint32_t>(out_rows));
    device_array<float> const from(values);
    device_array<std::uint8_t> const to(out_rows * to_bytes);
    uform_narrow_t narrow{};
    narrow.width = shape.width, narrow.count = shape.rows, narrow.scalar = scalar;
    narrow.from = from.data() + shape.skew, narrow.places = shape.placed ? places.data() : nullptr;
    narrow.to = to.data(), narrow.to_bytes = to_bytes;
    once(mode, "rows_narrow", [&] { require(vram::rows_narrow(stream(), &narrow), "rows_narrow"); });
    check("narrow " + std::to_string(scalar) + " of " + std::to_string(shape.rows) + " x " +
              std::to_string(shape.width) + (shape.placed ? " placed" : ""),
          same_bits(to.download(), narrowed_in_ram(shape, scalar, to_bytes, out_rows, values, places)) &&
              to.guarded() && from.guarded());
}

__global__ void wait_cycles(long long cycles) {
    long long const begin = clock64();
    while (clock64() - begin < cycles)
        ;
}

/** From another stream, on which the rows are written late; through bounce buffers as well. */
void test_narrow_across(bool bounced, std::uint32_t rows, std::uint32_t width) {
    device_set const both({0, 0});
    if (bounced) {
        void* bounce = nullptr;
        require(cudaMalloc(&bounce, vram::bounce_bytes_k), "cudaMalloc");
        vram::stream::of(both.stream(1)).bounce = bounce; // the stream gives it back
    }
    for (bool placed : {false, true}) {
        narrow_case const shape{rows, width, placed, 0, 0};
        std::size_t const to_bytes = std::size_t(width) * 2, out_rows = rows + 11;
        std::vector<float> const values = awkward_values(std::size_t(rows) * width);
        std::vector<std::uint32_t> const places = shuffled(rows, static_cast<std::uint32_t>(out_rows));
        device_array<float> const late(values), from(values.size());
        device_array<std::uint8_t> const to(out_rows * to_bytes);
        cudaStream_t const source = vram::stream::of(both.stream(0)).handle;
        wait_cycles<<<1, 1, 0, source>>>(20'000'000);
        require(cudaGetLastError(), "wait_cycles");
        require(cudaMemcpyAsync(from.data(), late.data(), from.bytes(), cudaMemcpyDeviceToDevice, source), "copy");
        uform_narrow_t narrow{};
        narrow.width = width, narrow.count = rows, narrow.scalar = uform_scalar_float16_k;
        narrow.source = both.stream(0);
        narrow.from = from.data(), narrow.places = placed ? places.data() : nullptr;
        narrow.to = to.data(), narrow.to_bytes = to_bytes;
        require(vram::rows_narrow(both.stream(1), &narrow), "rows_narrow");
        require(vram::stream_synchronize(both.stream(1)), "rows_narrow");
        check(std::string("narrow from another stream") + (bounced ? " bounced" : "") + (placed ? " placed" : ""),
              same_bits(to.download(), narrowed_in_ram(shape, narrow.scalar, to_bytes, out_rows, values, places)) &&
                  to.guarded());
        both.synchronize();
    }
}

struct layout {
    char const* name;
    std::int64_t row_stride, column_stride;
    std::size_t first;
};

template <typename value_at>
void test_widen(layout const& given, std::uint32_t rows, std::uint32_t width, bool copied,
                std::vector<std::size_t> const& spoilt) {
    constexpr bool wide = sizeof(value_at) == sizeof(float);
    std::size_t const extent = 1 + given.first + std::size_t(std::max<std::int64_t>(given.row_stride, 0)) * rows +
                               std::size_t(std::max<std::int64_t>(given.column_stride, 0)) * width;
    std::vector<float> const numbers = random_values(4).normal(extent);
    std::vector<value_at> stored(extent);
    for (std::size_t i = 0; i != extent; ++i)
        if constexpr (wide)
            stored[i] = numbers[i];
        else
            stored[i] = __float2bfloat16(numbers[i]);
    for (std::size_t place : spoilt)
        stored[given.first + std::size_t(static_cast<std::int64_t>(place / width) * given.row_stride +
                                         static_cast<std::int64_t>(place % width) * given.column_stride)] =
            value_at(std::numeric_limits<float>::quiet_NaN());

    device_array<value_at> const from(stored);
    device_array<float> const to(copied ? std::size_t(rows) * width : 0);
    device_array<std::uint64_t> const not_finite(1);
    uform_widen_t widen{};
    widen.rows = rows, widen.width = width;
    widen.scalar = wide ? uform_scalar_float32_k : uform_scalar_bfloat16_k;
    widen.row_stride = given.row_stride, widen.column_stride = given.column_stride;
    widen.from = from.data() + given.first;
    widen.to = copied ? to.data() : nullptr;
    widen.not_finite = not_finite.data();
    run("rows_widen", vram::rows_widen, widen);

    std::vector<float> expected(to.size());
    std::uint64_t expected_not_finite = 0;
    uform_widen_t in_ram = widen;
    in_ram.from = stored.data() + given.first;
    in_ram.to = copied ? expected.data() : nullptr;
    in_ram.not_finite = &expected_not_finite;
    ram().run(ram_device::operations().rows_widen, in_ram);
    check(std::string("widen ") + (wide ? "float32 " : "bfloat16 ") + given.name + " " + std::to_string(rows) + " x " +
              std::to_string(width),
          same_bits(to.download(), expected) && not_finite.download()[0] == expected_not_finite && to.guarded() &&
              from.guarded() && not_finite.guarded());
    check("widen finds the first",
          expected_not_finite == (spoilt.empty() ? UINT64_MAX : *std::min_element(spoilt.begin(), spoilt.end())));
}

template <typename value_at> void test_widen_all() {
    for (auto const& [rows, width] : {std::pair{301u, 64u}, {41u, 19u}, {1u, 1u}, {2u, 4099u}, {70'001u, 8u}})
        for (layout const& given :
             {layout{"end to end", width, 1, 0}, layout{"rows apart", width + 8, 1, 0}, layout{"skewed", width, 1, 1},
              layout{"columns apart", 2 * width + 3, 2, 5}, layout{"turned", 1, rows, 0},
              layout{"backwards", -std::int64_t(width), 1, std::size_t(width) * (rows - 1)},
              layout{"one row", 0, 1, 3}})
            for (bool copied : {false, true}) {
                test_widen<value_at>(given, rows, width, copied, {});
                std::size_t const count = std::size_t(rows) * width;
                // In a repeated row every value comes again.
                if (given.row_stride != 0)
                    test_widen<value_at>(given, rows, width, copied, {count - 1, count / 2, count / 2 + count / 3});
            }
    test_widen<value_at>({"nothing", 8, 1, 0}, 0, 8, true, {});
}

void test_refusals() {
    uform_narrow_t narrow{};
    narrow.width = 8, narrow.count = 1, narrow.scalar = 5;
    check("narrow to no scalar refused", vram::rows_narrow(stream(), &narrow) == uform_status_invalid_argument_k);
    device_array<std::uint64_t> const not_finite(1);
    uform_widen_t widen{};
    widen.rows = 1, widen.width = 8, widen.scalar = uform_scalar_float16_k, widen.not_finite = not_finite.data();
    check("widen from float16 refused", vram::rows_widen(stream(), &widen) == uform_status_invalid_argument_k);
    synchronize();
}

void bench() {
    stopwatch watch;
    std::uint32_t const rows = 65536, width = 512;
    device_array<float> const from(noise(std::size_t(rows) * width));
    device_array<float> const to(from.size());
    device_array<std::uint64_t> const not_finite(1);
    double const values = double(from.size());
    for (std::int32_t scalar : scalars_k) {
        uform_narrow_t narrow{};
        narrow.width = width, narrow.count = rows, narrow.scalar = scalar;
        narrow.from = from.data(), narrow.to = to.data();
        require(uform_scalar_row_bytes(scalar, width, &narrow.to_bytes), "row bytes");
        watch.bytes("rows_narrow to " + std::to_string(scalar), values * 4 + double(narrow.to_bytes) * rows,
                    [&] { require(vram::rows_narrow(stream(), &narrow), "rows_narrow"); });
    }
    for (bool copied : {false, true}) {
        uform_widen_t widen{};
        widen.rows = rows, widen.width = width, widen.scalar = uform_scalar_bfloat16_k;
        widen.row_stride = width, widen.column_stride = 1, widen.from = from.data();
        widen.to = copied ? to.data() : nullptr, widen.not_finite = not_finite.data();
        watch.bytes(copied ? "rows_widen bfloat16" : "rows_widen bfloat16, looked through", values * (copied ? 6 : 2),
                    [&] { require(vram::rows_widen(stream(), &widen), "rows_widen"); });
    }
}

void check_all() {
    for (std::int32_t scalar : scalars_k)
        for (narrow_case const& shape :
             {narrow_case{301, 64, true, 0, 0}, narrow_case{301, 64, false, 0, 0}, narrow_case{2000, 512, true, 0, 0},
              narrow_case{2000, 512, false, 0, 0}, narrow_case{37, 67, true, 4, 0}, narrow_case{37, 67, false, 0, 1},
              narrow_case{5, 2056, true, 16, 0}, narrow_case{9, 64, true, 0, 2}, narrow_case{1, 1, false, 0, 0},
              narrow_case{0, 64, true, 0, 0}})
            for (how mode : {how::direct, how::captured})
                test_narrow(shape, scalar, mode);
    for (bool bounced : {false, true}) {
        test_narrow_across(bounced, 301, 64);
        test_narrow_across(bounced, 2300, 4104); // more than one bounce, and more rows than one launch has places for
    }
    test_widen_all<float>();
    test_widen_all<__nv_bfloat16>();
    test_refusals();
}

} // namespace

int main(int count, char** arguments) {
    if (wants_checks(count, arguments))
        check_all();
    if (wants_bench(count, arguments))
        bench();
    return native_test::report();
}
