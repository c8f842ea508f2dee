// Losses of what is predicted from hidden states: covered bytes, covered patches, classes.
#include "tests/gpu/native/gpu_check.h"

using namespace gpu_test;
using namespace uform;

namespace {

constexpr float before_k = 0.25f; // in everything that is added to
constexpr std::uint32_t first_k = 4;
constexpr std::uint32_t beyond_k = 6; // rows of other modalities behind

std::vector<float> part(std::vector<float> const& values, std::size_t first, std::size_t count) {
    return {values.begin() + static_cast<std::ptrdiff_t>(first),
            values.begin() + static_cast<std::ptrdiff_t>(first + count)};
}

/** What a head answers: the loss, the gradients of its rows, and of its weights without what was there before. */
struct answers {
    double loss = 0;
    std::vector<float> rows, weight;
    bool guarded = true;
};

/** The linear head's products with predictions' gradients, in double: exactly, or rounded to bfloat16 first. */
struct products {
    std::vector<double> rows, weight;

    products(std::vector<double> const& gradients, bool coarse, std::vector<float> const& states,
             std::vector<float> const& weights, std::size_t count, std::size_t outputs, std::size_t hidden)
        : rows(count * hidden, 0), weight(outputs * hidden, 0) {
        for (std::size_t row = 0; row != count; ++row)
            for (std::size_t output = 0; output != outputs; ++output) {
                double const exact = gradients[row * outputs + output];
                double const value =
                    coarse ? double(__bfloat162float(__float2bfloat16(static_cast<float>(exact)))) : exact;
                for (std::size_t i = 0; i != hidden; ++i) {
                    rows[row * hidden + i] += value * weights[output * hidden + i];
                    weight[output * hidden + i] += value * states[row * hidden + i];
                }
            }
    }
};

std::vector<float> to_float(std::vector<double> const& values) { return {values.begin(), values.end()}; }

double predict(float const* row, float const* weight, std::size_t hidden) {
    double sum = 0;
    for (std::size_t i = 0; i != hidden; ++i)
        sum += double(row[i]) * weight[i];
    return sum;
}

void check_answers(std::string const& name, answers const& got, double loss, std::vector<double> const& gradients,
                   std::vector<float> const& states, std::vector<float> const& weights, std::size_t count,
                   std::size_t outputs, std::size_t hidden, bool backward) {
    check(name + " guarded", got.guarded);
    check(name + " loss", std::fabs(got.loss - loss), 1e-3 * std::fabs(loss) + 1e-12);
    if (!backward)
        return;
    products const exact(gradients, false, states, weights, count, outputs, hidden);
    products const coarse(gradients, true, states, weights, count, outputs, hidden);
    check_close(name + " rows", got.rows, to_float(coarse.rows), exact.rows);
    // The answer lies on top of 0.25 in float32.
    double norm = 0, error = 0;
    for (std::size_t i = 0; i != exact.weight.size(); ++i) {
        norm += exact.weight[i] * exact.weight[i];
        error += std::pow(got.weight[i] - exact.weight[i], 2);
    }
    double const naive = norm > 0 ? relative_error(to_float(coarse.weight), exact.weight) : 0;
    check(name + " weight", std::sqrt(error),
          (2 * naive + 1e-3) * std::sqrt(norm) + 3e-8 * std::sqrt(double(exact.weight.size())));
}

/** The buffers that both heads over hidden states share. */
struct head_arrays {
    std::uint32_t capacity, active, all;
    device_array<std::uint32_t> count, before;
    device_array<bf16> rows, weight;
    device_array<float> scale, factor, rows_gradient, weight_gradient;
    device_array<double> loss;

    head_arrays(std::vector<float> const& states, std::vector<float> const& weights, std::uint32_t rows_count,
                std::uint32_t hidden, float scale_, float factor_)
        : capacity(rows_count + 21), active(rows_count + 9), all(first_k + rows_count + 21 + beyond_k),
          count(std::vector{rows_count}), before(std::vector<std::uint32_t>{1}), rows(std::size_t(all) * hidden),
          weight(to_bf16(weights)), scale(std::vector{scale_}), factor(std::vector{factor_}),
          rows_gradient(std::size_t(all) * hidden), weight_gradient(std::vector<float>(weights.size(), before_k)),
          loss(std::vector<double>{before_k}) {
        std::vector<float> padded(std::size_t(first_k) * hidden, std::numeric_limits<float>::quiet_NaN());
        padded.insert(padded.end(), states.begin(), states.end());
        rows.upload(to_bf16(padded));
    }

    answers take(std::uint32_t rows_count, std::uint32_t hidden, std::size_t weights) const {
        answers got;
        got.loss = loss.download()[0] - before_k;
        std::vector<float> const gradient = rows_gradient.download();
        std::size_t const begin = std::size_t(first_k) * hidden, end = begin + std::size_t(rows_count) * hidden;
        got.rows = part(gradient, begin, end - begin);
        got.weight = part(weight_gradient.download(), 0, weights);
        for (float& value : got.weight)
            value -= before_k;
        for (std::size_t i = 0; i != gradient.size(); ++i)
            got.guarded = got.guarded && ((i >= begin && i < end) || std::isnan(gradient[i]));
        got.guarded = got.guarded && rows_gradient.guarded() && weight_gradient.guarded() && loss.guarded();
        return got;
    }
};

bool same_answers(answers const& one, answers const& two) {
    return one.loss == two.loss && same_bits(one.rows, two.rows) && same_bits(one.weight, two.weight);
}

void check_bytes_head(std::uint32_t count, std::uint32_t hidden, bool backward, float sharpness) {
    random_values random(8 + count);
    std::vector<float> const states = rounded(random.normal(std::size_t(count) * hidden));
    std::vector<float> const table =
        rounded(random.normal(std::size_t(260) * hidden, sharpness / std::sqrt(float(hidden))));
    std::vector<std::uint8_t> targets(count);
    for (auto& target : targets)
        target = static_cast<std::uint8_t>(random.below(256));
    float const scale = 1.f / static_cast<float>(count + 3), weight = 0.7f;
    std::string const name = "bytes " + std::to_string(count) + "x" + std::to_string(hidden) +
                             (backward ? "" : " value") + (sharpness > 1 ? " sharp" : "");
    auto const answer = [&](how mode) {
        head_arrays const arrays(states, table, count, hidden, scale, weight);
        device_array<std::uint8_t> const device_targets(targets, arrays.capacity);
        device_array<std::uint8_t> const workspace(vram::bytes_head_workspace_bytes(hidden, arrays.capacity));
        uform_bytes_head_t head{};
        head.hidden = hidden, head.capacity = arrays.capacity, head.active = arrays.active, head.first = first_k - 1,
        head.before = arrays.before.data();
        head.count = arrays.count.data(), head.rows = arrays.rows.data(), head.table = arrays.weight.data();
        head.targets = device_targets.data(), head.scale = arrays.scale.data(), head.weight = arrays.factor.data();
        head.loss = arrays.loss.data();
        head.rows_gradient = backward ? arrays.rows_gradient.data() : nullptr;
        head.table_gradient = backward ? arrays.weight_gradient.data() : nullptr;
        head.workspace = workspace.data(), head.workspace_bytes = workspace.bytes();
        once(mode, "bytes_head", [&] { require(vram::bytes_head(stream(), &head), "bytes_head"); });
        answers got = arrays.take(backward ? count : 0, hidden, std::size_t(256) * hidden);
        for (float const beyond :
             part(arrays.weight_gradient.download(), std::size_t(256) * hidden, std::size_t(4) * hidden))
            got.guarded = got.guarded && beyond == before_k;
        got.guarded = got.guarded && workspace.guarded();
        return got;
    };
    answers const got = answer(how::direct);
    check(name + " twice", same_answers(got, answer(how::captured)));
    double loss = 0;
    std::vector<double> gradients(std::size_t(count) * 256);
    for (std::size_t row = 0; row != count; ++row) {
        double* const of_row = gradients.data() + row * 256;
        for (std::size_t i = 0; i != 256; ++i)
            of_row[i] = predict(states.data() + row * hidden, table.data() + i * hidden, hidden);
        double const maximum = *std::max_element(of_row, of_row + 256), target = of_row[targets[row]];
        double sum = 0;
        for (std::size_t i = 0; i != 256; ++i)
            sum += std::exp(of_row[i] - maximum);
        loss += scale * (maximum + std::log(sum) - target);
        for (std::size_t i = 0; i != 256; ++i)
            of_row[i] = double(scale) * weight * (std::exp(of_row[i] - maximum) / sum - (i == targets[row] ? 1 : 0));
    }
    check_answers(name, got, loss, gradients, states, table, count, 256, hidden, backward);
}

template <typename element_at> std::vector<element_at> random_elements(random_values& random, std::size_t count) {
    std::vector<element_at> values(count);
    for (element_at& value : values) {
        if constexpr (std::is_same_v<element_at, float>)
            value = random.normal(1)[0];
        else
            value = static_cast<element_at>(static_cast<int>(random.below(256)) - (sizeof(element_at) == 1 ? 0 : 128));
    }
    return values;
}

template <typename element_at>
void check_patches_head(std::uint32_t element, std::uint32_t count, std::uint32_t hidden, std::uint32_t width,
                        bool backward) {
    random_values random(9 + count);
    std::vector<float> const states = rounded(random.normal(std::size_t(count) * hidden));
    std::vector<float> const weights =
        rounded(random.normal(std::size_t(width) * hidden, 1 / std::sqrt(float(hidden))));
    std::uint32_t const patches = 2 * count + 3;
    std::vector<element_at> values = random_elements<element_at>(random, std::size_t(patches) * width);
    std::vector<std::uint32_t> covered(count);
    for (std::uint32_t i = 0; i != count; ++i)
        covered[i] = 2 * i + 1;
    if (count > 1) // one patch of a single colour
        std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(std::size_t(covered[1]) * width), width, values[0]);
    float const scale = 1.f / static_cast<float>(count + 3), weight = 1.3f, multiplier = 2.f / 255, offset = -1;
    std::string const name = "patches " + std::to_string(count) + "x" + std::to_string(hidden) + "x" +
                             std::to_string(width) + " element " + std::to_string(element) + (backward ? "" : " value");
    auto const answer = [&](how mode) {
        head_arrays const arrays(states, weights, count, hidden, scale, weight);
        device_array<element_at> const device_values(values);
        device_array<std::uint32_t> const device_covered(covered, arrays.capacity);
        device_array<std::uint8_t> const workspace(vram::patches_head_workspace_bytes(hidden, width, arrays.capacity));
        uform_patches_head_t head{};
        head.hidden = hidden, head.width = width, head.element = element, head.multiplier = multiplier;
        head.offset = offset, head.capacity = arrays.capacity, head.active = arrays.active, head.first = first_k - 1,
        head.before = arrays.before.data();
        head.count = arrays.count.data(), head.rows = arrays.rows.data(), head.values = device_values.data();
        head.covered_patches = device_covered.data(), head.head = arrays.weight.data();
        head.head_gradient = backward ? arrays.weight_gradient.data() : nullptr;
        head.scale = arrays.scale.data(), head.weight = arrays.factor.data(), head.loss = arrays.loss.data();
        head.rows_gradient = backward ? arrays.rows_gradient.data() : nullptr;
        head.workspace = workspace.data(), head.workspace_bytes = workspace.bytes();
        once(mode, "patches_head", [&] { require(vram::patches_head(stream(), &head), "patches_head"); });
        answers got = arrays.take(backward ? count : 0, hidden, weights.size());
        got.guarded = got.guarded && workspace.guarded();
        return got;
    };
    answers const got = answer(how::direct);
    check(name + " twice", same_answers(got, answer(how::captured)));
    double loss = 0;
    std::vector<double> gradients(std::size_t(count) * width);
    for (std::size_t row = 0; row != count; ++row) {
        std::vector<double> target(width);
        double mean = 0, variance = 0;
        for (std::size_t i = 0; i != width; ++i) {
            target[i] = double(values[std::size_t(covered[row]) * width + i]) * multiplier + offset;
            mean += target[i] / width;
        }
        for (double const value : target)
            variance += (value - mean) * (value - mean) / width;
        for (std::size_t i = 0; i != width; ++i) {
            double const error = predict(states.data() + row * hidden, weights.data() + i * hidden, hidden) -
                                 (target[i] - mean) / std::sqrt(variance + 1e-6);
            loss += scale * error * error / width;
            gradients[row * width + i] = double(scale) * weight * 2 * error / width;
        }
    }
    check_answers(name, got, loss, gradients, states, weights, count, width, hidden, backward);
}

void check_cross_entropy(std::uint32_t classes, std::size_t count, float magnitude, std::string const& place) {
    random_values random(10);
    std::vector<float> const logits = random.normal(count * classes, magnitude);
    std::vector<std::uint8_t> targets(count);
    for (auto& target : targets)
        target = static_cast<std::uint8_t>(random.below(std::min(classes, 256u)));
    device_array<float> const given(logits), apart(logits.size());
    device_array<std::uint8_t> const device_targets(targets);
    device_array<double> const loss(std::vector<double>{before_k});
    device_array<std::uint8_t> const workspace(vram::cross_entropy_workspace_bytes(classes, count));
    float* const answer = place == "none" ? nullptr : place == "apart" ? apart.data() : given.data();
    uform_cross_entropy_t problem{};
    problem.classes = classes, problem.count = count, problem.logits = given.data();
    problem.targets = device_targets.data(), problem.scale = 1.f / static_cast<float>(count + 1);
    problem.loss = loss.data(), problem.gradient = answer;
    problem.workspace = workspace.data(), problem.workspace_bytes = workspace.bytes();
    run("cross_entropy", vram::cross_entropy, problem);
    double expected = 0;
    std::vector<double> gradient(logits.size());
    for (std::size_t row = 0; row != count; ++row) {
        float const* const of_row = logits.data() + row * classes;
        double const maximum = *std::max_element(of_row, of_row + classes);
        double sum = 0;
        for (std::size_t i = 0; i != classes; ++i)
            sum += std::exp(of_row[i] - maximum);
        expected += problem.scale * (maximum + std::log(sum) - of_row[targets[row]]);
        for (std::size_t i = 0; i != classes; ++i)
            gradient[row * classes + i] =
                problem.scale * (std::exp(of_row[i] - maximum) / sum - (i == targets[row] ? 1 : 0));
    }
    std::string const name = "cross_entropy " + std::to_string(count) + "x" + std::to_string(classes) + " " + place;
    check(name + " loss", std::fabs(loss.download()[0] - before_k - expected), 1e-5 * std::fabs(expected) + 1e-12);
    if (answer && count)
        check(name + " gradient", relative_error(place == "apart" ? apart.download() : given.download(), gradient),
              1e-4);
    check(name + " guarded", given.guarded() && apart.guarded() && workspace.guarded() && loss.guarded());
}

void bench() {
    stopwatch watch;
    for (auto const& [hidden, count] : {std::pair{512u, 19660u}, {768u, 19660u}, {1024u, 9830u}}) {
        random_values random(5);
        std::vector<float> const states = random.normal(std::size_t(count) * hidden);
        std::string const name = std::to_string(count) + "x" + std::to_string(hidden);
        {
            std::vector<float> const table = random.normal(std::size_t(260) * hidden, 0.02f);
            head_arrays const arrays(states, table, count, hidden, 1e-4f, 1);
            device_array<std::uint8_t> const targets(std::vector<std::uint8_t>(count, 7), arrays.capacity);
            device_array<std::uint8_t> const workspace(vram::bytes_head_workspace_bytes(hidden, arrays.capacity));
            uform_bytes_head_t head{};
            head.hidden = hidden, head.capacity = arrays.capacity, head.active = arrays.active,
            head.first = first_k - 1, head.before = arrays.before.data();
            head.count = arrays.count.data(), head.rows = arrays.rows.data(), head.table = arrays.weight.data();
            head.targets = targets.data(), head.scale = arrays.scale.data(), head.weight = arrays.factor.data();
            head.loss = arrays.loss.data(), head.rows_gradient = arrays.rows_gradient.data();
            head.table_gradient = arrays.weight_gradient.data();
            head.workspace = workspace.data(), head.workspace_bytes = workspace.bytes();
            auto const time = [&](std::string const& title, double operations) {
                watch.operations(title + name, operations * count * 256 * hidden,
                                 [&] { require(vram::bytes_head(stream(), &head), "bytes_head"); });
            };
            time("bytes_head ", 6);
            head.rows_gradient = nullptr, head.table_gradient = nullptr;
            time("bytes_head value ", 2);
        }
        {
            constexpr std::uint32_t classes = 256;
            device_array<float> const logits(noise(std::size_t(count) * classes)), gradient(logits.size());
            device_array<std::uint8_t> const targets(std::vector<std::uint8_t>(count, 7));
            device_array<double> const loss(std::vector<double>{0});
            device_array<std::uint8_t> const workspace(vram::cross_entropy_workspace_bytes(classes, count));
            uform_cross_entropy_t problem{};
            problem.classes = classes, problem.count = count, problem.logits = logits.data();
            problem.targets = targets.data(), problem.scale = 1e-4f, problem.loss = loss.data();
            problem.gradient = gradient.data();
            problem.workspace = workspace.data(), problem.workspace_bytes = workspace.bytes();
            watch.bytes("cross_entropy " + std::to_string(count), 8. * double(logits.size()),
                        [&] { require(vram::cross_entropy(stream(), &problem), "cross_entropy"); });
        }
        constexpr std::uint32_t width = 768;
        std::vector<float> const weights = random.normal(std::size_t(width) * hidden, 0.02f);
        head_arrays const arrays(states, weights, count, hidden, 1e-4f, 1);
        device_array<std::uint8_t> const values(std::vector<std::uint8_t>(std::size_t(count) * width, 9));
        std::vector<std::uint32_t> covered(count);
        for (std::uint32_t i = 0; i != count; ++i)
            covered[i] = i;
        device_array<std::uint32_t> const device_covered(covered, arrays.capacity);
        device_array<std::uint8_t> const workspace(vram::patches_head_workspace_bytes(hidden, width, arrays.capacity));
        uform_patches_head_t head{};
        head.hidden = hidden, head.width = width, head.element = uform_element_uint8_k, head.multiplier = 1;
        head.capacity = arrays.capacity, head.active = arrays.active, head.first = first_k - 1,
        head.before = arrays.before.data();
        head.count = arrays.count.data(), head.rows = arrays.rows.data(), head.values = values.data();
        head.covered_patches = device_covered.data(), head.head = arrays.weight.data();
        head.head_gradient = arrays.weight_gradient.data(), head.scale = arrays.scale.data();
        head.weight = arrays.factor.data(), head.loss = arrays.loss.data();
        head.rows_gradient = arrays.rows_gradient.data();
        head.workspace = workspace.data(), head.workspace_bytes = workspace.bytes();
        auto const time = [&](std::string const& title, double operations) {
            watch.operations(title + name, operations * count * width * hidden,
                             [&] { require(vram::patches_head(stream(), &head), "patches_head"); });
        };
        time("patches_head ", 6);
        head.rows_gradient = nullptr, head.head_gradient = nullptr;
        time("patches_head value ", 2);
    }
}

/** @param large More rows, too, than are worked on at a time: a sanitizer has enough with the rest. */
void check_all(bool large) {
    for (auto const& [rows, hidden] : {std::pair{0u, 64u}, {1, 64}, {3, 72}, {129, 64}, {1111, 136}})
        for (bool backward : {true, false})
            check_bytes_head(rows, hidden, backward, 1);
    check_bytes_head(200, 64, true, 12);
    check_bytes_head(300, 520, true, 1); // more steps of the depth than are on their way at a time
    if (large) {
        check_bytes_head(9001, 72, true, 1); // more tiles than blocks, and shares of unequal length
        check_bytes_head(66000, 8, true, 1); // more than one panel
    }
    for (auto const& [rows, hidden, width] : {std::tuple{0u, 64u, 12u}, {1, 64, 27}, {130, 72, 147}, {333, 136, 192}})
        for (bool backward : {true, false}) {
            check_patches_head<std::uint8_t>(uform_element_uint8_k, rows, hidden, width, backward);
            check_patches_head<std::int16_t>(uform_element_int16_k, rows, hidden, width, backward);
            check_patches_head<float>(uform_element_float32_k, rows, hidden, width, backward);
        }
    check_patches_head<std::uint8_t>(uform_element_uint8_k, 300, 520, 400, true);
    check_patches_head<std::int16_t>(uform_element_int16_k, 300, 520, 416, true);
    check_patches_head<float>(uform_element_float32_k, 63, 72, 160, true);
    if (large) {
        check_patches_head<std::uint8_t>(uform_element_uint8_k, 9001, 72, 160, true);
        check_patches_head<std::uint8_t>(uform_element_uint8_k, 66000, 8, 27, true);
        check_patches_head<std::uint8_t>(uform_element_uint8_k, 66000, 8, 32, true);
    }
    for (std::size_t rows : {0, 1, 128, 515})
        for (std::uint32_t classes : {2u, 33u, 100u, 256u, 508u, 1000u, 1028u})
            for (float magnitude : {1.f, 50.f})
                for (char const* place : {"none", "apart", "over the logits"})
                    check_cross_entropy(classes, rows, magnitude, place);
}

} // namespace

int main(int count, char** arguments) {
    if (wants_checks(count, arguments))
        check_all(!asked(count, arguments, "--small"));
    if (wants_bench(count, arguments))
        bench();
    return native_test::report();
}
