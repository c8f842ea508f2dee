/**
 *  Attention within segments against naive loops in double; `--bench` times the encoder's shapes, `--short` leaves out
 *  the longest segment, `--few` all but what is small enough for sanitizers.
 */
#include <random>

#include "tests/gpu/native/gpu_check.h"
#include "tests/gpu/native/naive_block.h"
#include "vram/attention.h"

namespace {

using namespace gpu_test;
using uform::vram::attention_owned_columns;
using uform::vram::attention_problem;
using uform::vram::attention_scratch_floats;

constexpr std::uint32_t width_k = 64;
/** As `owned_columns`: backward by Hopper's units, whatever it would choose. */
constexpr std::uint32_t units_k = 0;
constexpr double scale_k = 0.125;

uform::vram::stream& on() { return uform::vram::stream::of(stream()); }

/** The class whose kernels run, for the checks' names. */
std::string of_class() { return "class " + std::to_string(on().gpu_class) + " "; }

/** Calls `body` for the GPU's own class and for Ampere's, whose kernels run on later GPUs as well. */
template <typename body_at> void for_classes(body_at&& body) {
    int const own = on().gpu_class;
    body();
    if (own == uform_gpu_class_ampere_k)
        return;
    on().gpu_class = uform_gpu_class_ampere_k;
    body();
    on().gpu_class = own;
}

/** Backward, on Hopper by units where they are asked for: by so few blocks that each has several. */
void launch_backward(attention_problem const& problem) {
#if UFORM_WITH_SM90
    if (problem.owned_columns == units_k) {
        int const own = on().multiprocessors;
        on().multiprocessors = 2;
        uform::vram::sm90::launch_attention_units_backward(on(), problem);
        on().multiprocessors = own;
        return;
    }
#endif
    uform::vram::launch_attention_backward(on(), problem);
}

/** The ways of backward that the GPU's class has for segments so long. */
std::vector<std::uint32_t> with_units(std::vector<std::uint32_t> owned, [[maybe_unused]] std::uint32_t longest) {
#if UFORM_WITH_SM90
    if (on().gpu_class == uform_gpu_class_hopper_k && longest <= uform::vram::attention_unit_columns_k)
        owned.push_back(units_k);
#endif
    return owned;
}

bf16 from_bits(std::uint16_t bits) { return __nv_bfloat16_raw{bits}; }

/* ------------------------------------------------------------------------------------------------------- one case */

std::vector<columns_fixture::shape> shapes_of(std::vector<std::uint32_t> const& lengths) {
    std::vector<columns_fixture::shape> shapes;
    for (std::uint32_t length : lengths)
        shapes.push_back({length, 1, {1, 0, 0}, length, 0, 0});
    return shapes;
}

/** Segments, inputs and outputs; rows past the count are NaN, and so is all that the kernels are to write. */
struct attention_case {
    static constexpr std::uint32_t spare_active_k = 141; // past the count: more than a block's columns
    static constexpr std::uint32_t spare_k = 160;

    columns_fixture fixture;
    std::uint32_t heads, hidden, count;
    bool turned; // gradients are those before queries and keys were turned
    std::vector<bf16> qkv, gradient;
    device_columns columns;
    device_array<bf16> device_qkv, attended, device_gradient, qkv_gradient;
    device_array<float> log_sums, scratch;

    attention_case(std::vector<std::uint32_t> const& lengths, std::uint32_t heads, float deviation, unsigned seed)
        : attention_case(shapes_of(lengths), heads, deviation, seed, false) {}

    attention_case(std::vector<columns_fixture::shape> const& shapes, std::uint32_t heads, float deviation,
                   unsigned seed, bool turned)
        : fixture(shapes), heads(heads), hidden(heads * width_k), count(fixture.used()), turned(turned),
          qkv(to_bf16(random_values(seed).normal(rows_of(3), deviation, spaced(3)))),
          gradient(to_bf16(random_values(seed + 1).normal(rows_of(1), 1, spaced(1)))), columns(fixture),
          device_qkv(qkv), attended(spaced(1)), device_gradient(gradient), qkv_gradient(spaced(3)),
          log_sums(std::size_t(capacity()) * heads), scratch(attention_scratch_floats(capacity(), heads)) {
        expanded(fixture);
        columns.expand();
        columns.view.capacity = capacity();
        columns.view.active = active();
    }

    std::uint32_t active() const { return count + spare_active_k; }
    std::uint32_t capacity() const { return count + spare_k; }
    std::size_t rows_of(std::size_t parts) const { return std::size_t(count) * hidden * parts; }
    std::size_t spaced(std::size_t parts) const { return std::size_t(capacity()) * hidden * parts; }

    void run(std::uint32_t owned_columns) {
        for (auto* array : {&attended, &qkv_gradient})
            array->poison();
        for (auto* array : {&log_sums, &scratch})
            array->poison();
        attention_problem problem{columns.view, heads, device_qkv.data(), attended.data(), log_sums.data()};
        problem.gradient = device_gradient.data();
        problem.qkv_gradient = qkv_gradient.data();
        problem.scratch = scratch.data();
        problem.owned_columns = owned_columns;
        problem.turn_back = turned;
        uform::vram::launch_attention_forward(on(), problem);
        synchronize();
        launch_backward(problem);
        synchronize();
    }

    bool guarded() const {
        return columns.guarded() && device_qkv.guarded() && attended.guarded() && device_gradient.guarded() &&
               qkv_gradient.guarded() && log_sums.guarded() && scratch.guarded();
    }
};

/* ------------------------------------------------------------------------------------------------ naive references */

/** Outputs in the order of the device's: attended, log_sums [heads, count], and the three parts of qkv_gradient. */
template <typename value_at> struct attention_outputs {
    std::vector<value_at> attended, log_sums, parts[3];

    attention_outputs(std::uint32_t count, std::uint32_t heads)
        : attended(std::size_t(count) * heads * width_k), log_sums(std::size_t(count) * heads) {
        for (auto& part : parts)
            part.assign(attended.size(), 0);
    }
};

template <typename value_at> attention_outputs<value_at> naive(attention_case const& of) {
    auto const rows = [&](std::vector<bf16> const& from, std::size_t count) {
        std::vector<value_at> values(count);
        std::transform(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(count), values.begin(),
                       [](bf16 value) { return value_at(__bfloat162float(value)); });
        return values;
    };
    std::vector<value_at> const qkv = rows(of.qkv, of.rows_of(3));
    naive_attention<value_at> one(of.fixture, of.heads);
    one.forward(qkv);
    one.backward(qkv, rows(of.gradient, of.rows_of(1)));
    if (of.turned)
        turn_naively(of.fixture, of.heads, -1, one.qkv_gradient);
    attention_outputs<value_at> outputs(of.count, of.heads);
    outputs.attended = one.attended, outputs.log_sums = one.log_sums;
    for (std::size_t row = 0; row != of.count; ++row)
        for (std::size_t part = 0; part != 3; ++part)
            std::copy_n(&one.qkv_gradient[(row * 3 + part) * of.hidden], of.hidden,
                        &outputs.parts[part][row * of.hidden]);
    return outputs;
}

attention_outputs<float> download(attention_case const& of) {
    attention_outputs<float> outputs(of.count, of.heads);
    std::vector<float> const attended = to_float(of.attended.download()),
                             gradient = to_float(of.qkv_gradient.download());
    std::vector<float> const log_sums = of.log_sums.download();
    std::copy_n(attended.begin(), outputs.attended.size(), outputs.attended.begin());
    for (std::size_t head = 0; head != of.heads; ++head)
        std::copy_n(&log_sums[head * of.capacity()], of.count, &outputs.log_sums[head * of.count]);
    for (std::size_t row = 0; row != of.count; ++row)
        for (std::size_t part = 0; part != 3; ++part)
            std::copy_n(&gradient[(row * 3 + part) * of.hidden], of.hidden, &outputs.parts[part][row * of.hidden]);
    return outputs;
}

/* -------------------------------------------------------------------------------------------------------- checks */

/** Rows [count, active) are zero, and those behind are as they were. */
bool ends_in_zeros(std::vector<bf16> const& values, attention_case const& of, std::size_t width) {
    return slack_holds(to_float(values), of.count * width, of.active() * width);
}

void check_case(std::string const& name, attention_case& one, std::vector<std::uint32_t> const& owned) {
    attention_outputs<double> const expected = naive<double>(one);
    attention_outputs<float> const rough = naive<float>(one);
    for_classes([&] {
        for (std::uint32_t owned_columns : with_units(owned, one.fixture.view.longest)) {
            std::string const label =
                of_class() + name +
                (owned_columns == units_k ? ", units: " : ", owned " + std::to_string(owned_columns) + ": ");
            one.run(owned_columns);
            attention_outputs<float> const got = download(one);
            check_close(label + "attended", got.attended, rough.attended, expected.attended);
            check_close(label + "log_sums", got.log_sums, rough.log_sums, expected.log_sums);
            char const* const parts[3] = {"queries", "keys", "values"};
            for (std::size_t part = 0; part != 3; ++part)
                check_close(label + parts[part], got.parts[part], rough.parts[part], expected.parts[part]);
            std::vector<bf16> const attended = one.attended.download(), gradient = one.qkv_gradient.download();
            check(label + "zeros past the count", ends_in_zeros(attended, one, one.hidden) &&
                                                      ends_in_zeros(gradient, one, 3 * std::size_t(one.hidden)));
            check(label + "guard zones", one.guarded());
            std::vector<float> const log_sums = one.log_sums.download();
            one.run(owned_columns);
            check(label + "same bits again", same_bits(attended, one.attended.download()) &&
                                                 same_bits(gradient, one.qkv_gradient.download()) &&
                                                 same_bits(log_sums, one.log_sums.download()));
        }
    });
}

void check_case(std::string const& name, std::vector<std::uint32_t> const& lengths, std::uint32_t heads,
                float deviation, std::vector<std::uint32_t> const& owned) {
    attention_case one(lengths, heads, deviation, 11);
    check_case(name, one, owned);
}

/** Segments of one, two and three axes. */
void check_turned(std::vector<columns_fixture::shape> const& shapes) {
    attention_case one(shapes, 3, 1, 41, true);
    check_case("turned back", one, {128, 4096});
}

/** What one segment holds must not be seen in any other's results, be it as large as it may. */
void check_leaks(std::vector<std::uint32_t> const& lengths, std::size_t loud, std::uint32_t owned_columns) {
    attention_case one(lengths, 2, 1, 23);
    one.run(owned_columns);
    attention_outputs<float> const quiet = download(one);
    uform_segment_t const segment = one.fixture.segments[loud];
    std::vector<bf16> qkv = one.qkv, gradient = one.gradient;
    for (auto [values, width] :
         {std::pair(&qkv, 3 * std::size_t(one.hidden)), std::pair(&gradient, std::size_t(one.hidden))})
        for (std::size_t i = segment.first * width; i != (segment.first + segment.columns) * width; ++i)
            (*values)[i] = from_bits(i % 3 ? 0x7F00 : 0xFF00); // 2^127 and its negative
    one.device_qkv.upload(qkv);
    one.device_gradient.upload(gradient);
    one.run(owned_columns);
    attention_outputs<float> const shouted = download(one);
    bool same = true;
    for (std::size_t row = 0; row != one.count; ++row)
        if (row < segment.first || row >= segment.first + segment.columns) {
            for (std::size_t i = row * one.hidden; i != (row + 1) * one.hidden; ++i) {
                same &= quiet.attended[i] == shouted.attended[i];
                for (std::size_t part = 0; part != 3; ++part)
                    same &= quiet.parts[part][i] == shouted.parts[part][i];
            }
            for (std::size_t head = 0; head != one.heads; ++head)
                same &= quiet.log_sums[head * one.count + row] == shouted.log_sums[head * one.count + row];
        }
    check(of_class() + "no leak from segment " + std::to_string(loud) +
              (owned_columns == units_k ? ", units" : ", owned " + std::to_string(owned_columns)),
          same);
}

/** What one column of a segment answers as a query and as a key: attended, log_sums, and three gradients. */
template <typename value_at> struct column_answers {
    std::vector<value_at> parts[5];

    void append(column_answers const& more) {
        for (std::size_t i = 0; i != 5; ++i)
            parts[i].insert(parts[i].end(), more.parts[i].begin(), more.parts[i].end());
    }
};

/**
 *  One column of the first segment, of `length` columns and one head, by loops over that segment; the sums of other
 *  queries, and how their answers lie along their gradients, are the operation's own.
 */
template <typename value_at>
column_answers<value_at> column_naively(attention_case const& of, attention_outputs<float> const& got,
                                        std::vector<double> const& along, std::size_t length, std::size_t at) {
    auto const wide = [](bf16 const* from) {
        std::vector<value_at> row(width_k);
        std::transform(from, from + width_k, row.begin(), [](bf16 value) { return value_at(__bfloat162float(value)); });
        return row;
    };
    auto const row = [&](std::size_t part, std::size_t i) { return wide(&of.qkv[(i * 3 + part) * width_k]); };
    auto const slope = [&](std::size_t i) { return wide(&of.gradient[i * width_k]); };
    auto const product = [](std::vector<value_at> const& a, std::vector<value_at> const& b) {
        return dot(a.data(), b.data(), width_k);
    };
    auto const add = [](std::vector<value_at>& sum, value_at factor, std::vector<value_at> const& by) {
        add_scaled(sum.data(), factor, by.data(), width_k);
    };
    std::vector<value_at> const own[3] = {row(0, at), row(1, at), row(2, at)}, own_slope = slope(at);
    value_at const scale = value_at(scale_k);
    std::vector<value_at> scores(length), attended(width_k), gradients[3];
    value_at peak = -INFINITY, sum = 0;
    for (std::size_t j = 0; j != length; ++j)
        peak = std::max(peak, scores[j] = product(own[0], row(1, j)) * scale);
    for (std::size_t j = 0; j != length; ++j) {
        sum += std::exp(scores[j] - peak);
        add(attended, stored(std::exp(scores[j] - peak)), row(2, j));
    }
    value_at const log_sum = peak + std::log(sum);
    for (std::size_t part = 0; part != 3; ++part)
        gradients[part].resize(width_k);
    for (std::size_t j = 0; j != length; ++j) {
        value_at const weight = std::exp(scores[j] - log_sum);
        value_at const back = std::exp(product(row(0, j), own[1]) * scale - value_at(got.log_sums[j]));
        value_at const other = product(slope(j), own[2]) - value_at(along[j]);
        add(gradients[0], stored(weight * (product(own_slope, row(2, j)) - value_at(along[at]))), row(1, j));
        add(gradients[1], stored(back * other), row(0, j));
        add(gradients[2], stored(back), slope(j));
    }
    for (std::size_t d = 0; d != width_k; ++d) {
        attended[d] = stored(attended[d] / sum);
        for (std::size_t part = 0; part != 3; ++part)
            gradients[part][d] = stored(part == 2 ? gradients[part][d] : gradients[part][d] * scale);
    }
    return {{attended, {log_sum}, gradients[0], gradients[1], gradients[2]}};
}

/** Too long for naive loops over all: some columns of it. */
void check_longest(std::uint32_t length) {
    attention_case one({length, 77}, 1, 1, 31);
    one.run(attention_owned_columns(one.active(), one.heads, on().multiprocessors));
    attention_outputs<float> const all = download(one);
    std::vector<double> along(length);
    for (std::size_t i = 0; i != length * std::size_t(width_k); ++i)
        along[i / width_k] += double(all.attended[i]) * double(__bfloat162float(one.gradient[i]));
    column_answers<float> got, rough;
    column_answers<double> expected;
    for (std::size_t at = 5; at < length; at += length / 11) {
        auto const part = [&](std::vector<float> const& from) {
            auto const begin = from.begin() + static_cast<std::ptrdiff_t>(at * width_k);
            return std::vector<float>(begin, begin + width_k);
        };
        got.append(
            {{part(all.attended), {all.log_sums[at]}, part(all.parts[0]), part(all.parts[1]), part(all.parts[2])}});
        rough.append(column_naively<float>(one, all, along, length, at));
        expected.append(column_naively<double>(one, all, along, length, at));
    }
    char const* const names[5] = {"attended", "log_sums", "queries", "keys", "values"};
    for (std::size_t i = 0; i != 5; ++i)
        check_close(of_class() + "one of " + std::to_string(length) + ": " + names[i], got.parts[i], rough.parts[i],
                    expected.parts[i]);
}

std::vector<std::uint32_t> random_lengths(unsigned seed, std::size_t count, std::uint32_t longest) {
    random_values random(seed);
    std::vector<std::uint32_t> lengths;
    for (std::size_t i = 0; i != count; ++i)
        lengths.push_back(static_cast<std::uint32_t>(1 + random.below(longest)));
    return lengths;
}

/** What sanitizers watch: segments within a unit, beside each other, and before what lies past the count. */
void check_few() {
    check_case("1, 2, 3 beside 256", {1, 2, 3, 256, 2, 1}, 2, 1, {128});
    check_case("long ones that meet", {150, 20, 180, 33, 140}, 1, 1, {128});
}

void check_all(bool with_longest) {
    using lengths_t = std::vector<std::uint32_t>;
    check_case("one column", {1}, 1, 1, {128});
    check_case("all of one column", lengths_t(300, 1), 2, 1, {128});
    check_case("1, 2, 3 beside 256", {1, 2, 3, 256, 2, 1}, 3, 1, {128, 256});
    check_case("one of 1000", {1000}, 2, 1, {128, 1024});
    check_case("129 and 127", {129, 127, 128, 1}, 2, 1, {128, 4096});
    check_case("whole blocks", {64, 64, 128, 256, 512, 32, 32, 64}, 1, 1, {128, 256, 1024});
    check_case("long ones that meet", {150, 20, 180, 300, 33, 140}, 2, 1, {128, 160, 4096});
    check_case("whole units", {256, 256, 64, 192, 128, 128}, 3, 1, {128});
    check_case("units that meet", {255, 2, 254, 193, 64, 1, 256, 100}, 2, 1, {128});
    check_case("short ones", random_lengths(3, 40, 60), 2, 1, {128});
    check_case("mixed ones", random_lengths(5, 12, 400), 2, 1, {128, 200, 4096});
    check_case("mixed ones of units", random_lengths(6, 15, 256), 5, 1, {128, 4096});
    check_case("large scores", random_lengths(7, 10, 200), 2, 4, {128, 4096});
    check_case("small scores", random_lengths(9, 10, 200), 1, 0.01f, {128, 4096});
    check_turned({{40, 1, {39, 0, 0}, 40, 0, 0},
                  {113, 2, {8, 14, 0}, 113, 1, 0},
                  {145, 3, {4, 6, 6}, 145, 2, 0},
                  {297, 1, {296, 0, 0}, 297, 3, 0},
                  {61, 2, {3, 20, 0}, 61, 4, 0}});
    check_turned({{256, 1, {255, 0, 0}, 256, 0, 0}, {113, 2, {8, 14, 0}, 113, 1, 0}, {145, 3, {4, 6, 6}, 145, 2, 0}});
    for (std::uint32_t owned : {128u, 4096u})
        for (std::size_t loud : {0u, 1u, 3u, 5u})
            for_classes([&] { check_leaks({40, 7, 300, 129, 64, 20, 50}, loud, owned); });
    for (std::size_t loud : {0u, 2u, 3u, 6u})
        for (std::uint32_t owned : with_units({}, 256))
            check_leaks({40, 7, 250, 129, 64, 20, 50}, loud, owned);
    if (with_longest)
        check_longest(65'535);
}

/* ------------------------------------------------------------------------------------------------------- timings */

/** The same bits everywhere would make the power draw, and so the clock, look better than they are; what repeats after
 *  a million values does not. */
std::vector<bf16> noise(std::size_t count, std::uint64_t state) {
    constexpr std::size_t period = (std::size_t(1) << 20) + 7;
    std::vector<bf16> values(std::min(count, period));
    for (bf16& value : values) {
        float sum = -2;
        for (int i = 0; i != 4; ++i) {
            state = state * 6364136223846793005ull + 1442695040888963407ull;
            sum += static_cast<float>(state >> 40) * 0x1p-24f;
        }
        value = __float2bfloat16(sum * 1.7f); // of a variance near 1
    }
    values.resize(count);
    for (std::size_t at = period; at < count; ++at)
        values[at] = values[at - period];
    return values;
}

void time_lengths(stopwatch& watch, std::string const& name, std::vector<std::uint32_t> const& lengths,
                  std::uint32_t heads, std::vector<std::uint32_t> const& owned) {
    columns_fixture const fixture(shapes_of(lengths));
    device_columns columns(fixture);
    columns.expand();
    columns.view.capacity = columns.view.active = fixture.used();
    std::size_t const hidden = heads * width_k, count = fixture.used();
    device_array<bf16> qkv(noise(count * 3 * hidden, 1)), gradient(noise(count * hidden, 2)), attended(count * hidden),
        qkv_gradient(count * 3 * hidden);
    device_array<float> log_sums(count * heads), scratch(attention_scratch_floats(count, heads));
    attention_problem problem{columns.view, heads, qkv.data(), attended.data(), log_sums.data()};
    problem.gradient = gradient.data();
    problem.qkv_gradient = qkv_gradient.data();
    problem.scratch = scratch.data();
    double pairs = 0;
    for (std::uint32_t length : lengths)
        pairs += double(length) * length;
    double const product = 2.0 * pairs * width_k * heads;
    watch.operations("attention_forward " + name, 2 * product,
                     [&] { uform::vram::launch_attention_forward(on(), problem); });
    for (std::uint32_t owned_columns : owned) {
        problem.owned_columns =
            owned_columns ? owned_columns : attention_owned_columns(columns.view.active, heads, on().multiprocessors);
        watch.operations("attention_backward " + name + ", owned " + std::to_string(problem.owned_columns), 5 * product,
                         [&] { uform::vram::launch_attention_backward(on(), problem); });
    }
    problem.turn_back = true;
    watch.operations("attention_backward " + name + ", turned back", 5 * product,
                     [&] { uform::vram::launch_attention_backward(on(), problem); });
}

/** At the full clock. Between products, as in test_vram_encoder, the limit of power lowers it to three quarters. */
void bench() {
    stopwatch watch;
    for (std::uint32_t length : {32u, 64u, 128u, 256u, 512u, 1024u})
        time_lengths(watch, "65536 columns, 8 heads, segments of " + std::to_string(length),
                     std::vector<std::uint32_t>(65'536 / length, length), 8,
                     length > 128 ? std::vector<std::uint32_t>{0, 128} : std::vector<std::uint32_t>{0});
    time_lengths(watch, "65536 columns, 12 heads, segments of 256", std::vector<std::uint32_t>(256, 256), 12, {0});
    time_lengths(watch, "32768 columns, 16 heads, segments of 256", std::vector<std::uint32_t>(128, 256), 16, {0});
    time_lengths(watch, "16896 columns, 4 heads, segments of 256", std::vector<std::uint32_t>(66, 256), 4, {0});
    time_lengths(watch, "65536 columns, 8 heads, segments of 65", std::vector<std::uint32_t>(1008, 65), 8, {0});
    time_lengths(watch, "about 65536 columns, 8 heads, segments up to 64", random_lengths(3, 2016, 64), 8, {0});
    time_lengths(watch, "about 65536 columns, 8 heads, segments up to 1024", random_lengths(4, 128, 1024), 8, {0});
    time_lengths(watch, "about 2048 columns, 8 heads, segments up to 256", random_lengths(4, 16, 256), 8, {0});
}

} // namespace

int main(int count, char** arguments) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    if (asked(count, arguments, "--few")) {
        check_few();
        return native_test::report();
    }
    if (wants_checks(count, arguments))
        check_all(!asked(count, arguments, "--short"));
    if (wants_bench(count, arguments))
        bench();
    return native_test::report();
}
