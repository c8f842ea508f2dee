// A softmax over each item's choices, against double.
#include "tests/gpu/native/gpu_check.h"

using namespace gpu_test;
using namespace uform;

namespace {

constexpr float before_k = 0.25f; // in everything that is added to

/** Items by how many choices each has, their hidden states and their targets. */
struct problem {
    std::uint32_t hidden;
    float log_inverse_temperature;
    std::vector<std::uint32_t> offsets{0};
    std::vector<float> states, vector, targets;
    float scale, weight = 0.7f;

    std::uint32_t items() const { return static_cast<std::uint32_t>(offsets.size() - 1); }
    std::uint32_t rows() const { return offsets.back(); }

    problem(std::vector<std::uint32_t> const& counts, std::uint32_t hidden_, float sharpness) : hidden(hidden_) {
        random_values random(31 + hidden);
        for (std::uint32_t const count : counts)
            offsets.push_back(offsets.back() + count);
        states = rounded(random.normal(std::size_t(rows()) * hidden));
        vector = random.normal(hidden, 1 / std::sqrt(float(hidden)));
        log_inverse_temperature = std::log(sharpness);
        scale = 1.f / static_cast<float>(items() + 2);
        targets.resize(rows());
        for (std::uint32_t item = 0; item != items(); ++item)
            draw_targets(random, item);
    }

private:
    /** By turns all on one choice, spread, and none. */
    void draw_targets(random_values& random, std::uint32_t item) {
        std::uint32_t const begin = offsets[item], count = offsets[item + 1] - begin;
        if (item % 3 == 0)
            targets[begin + random.below(count)] = 1;
        if (item % 3 != 1)
            return;
        float sum = 0;
        for (std::uint32_t row = begin; row != begin + count; ++row)
            sum += targets[row] = static_cast<float>(1 + random.below(9));
        for (std::uint32_t row = begin; row != begin + count; ++row)
            targets[row] /= sum;
    }
};

/** What the operation answers, without what was there before. */
struct answers {
    double loss = 0;
    std::vector<float> probabilities, rows, vector, temperature;
    bool guarded = true;
};

bool same_answers(answers const& one, answers const& two) {
    return one.loss == two.loss && same_bits(one.probabilities, two.probabilities) && same_bits(one.rows, two.rows) &&
           same_bits(one.vector, two.vector) && same_bits(one.temperature, two.temperature);
}

enum class part { probabilities, value, gradients };

answers choose(problem const& given, part wanted, how mode) {
    std::uint32_t const items_capacity = given.items() + 5, rows_capacity = given.rows() + 9;
    device_array<std::uint32_t> const counts(std::vector{given.items(), given.rows()});
    device_array<std::uint32_t> const offsets(given.offsets, items_capacity + 1);
    device_array<bf16> const rows(to_bf16(given.states), std::size_t(rows_capacity) * given.hidden);
    device_array<float> const vector(given.vector), targets(given.targets, rows_capacity);
    device_array<float> const temperature(std::vector{given.log_inverse_temperature});
    device_array<float> const scale(std::vector{given.scale}), weight(std::vector{given.weight});
    device_array<double> const loss(std::vector<double>{before_k});
    device_array<float> const probabilities(rows_capacity), rows_gradient(std::size_t(rows_capacity) * given.hidden);
    device_array<float> const vector_gradient(std::vector<float>(given.hidden, before_k));
    device_array<float> const temperature_gradient(std::vector{before_k});
    device_array<std::uint8_t> const workspace(
        vram::choices_head_workspace_bytes(given.hidden, items_capacity, rows_capacity));
    uform_choices_head_t head{};
    head.hidden = given.hidden;
    head.items_capacity = items_capacity, head.items_active = given.items() + 3;
    head.rows_capacity = rows_capacity, head.rows_active = given.rows() + 6;
    head.counts = counts.data(), head.offsets = offsets.data(), head.rows = rows.data(), head.vector = vector.data();
    head.log_inverse_temperature = temperature.data(), head.probabilities = probabilities.data();
    if (wanted != part::probabilities) {
        head.targets = targets.data(), head.scale = scale.data(), head.weight = weight.data();
        head.loss = loss.data();
    }
    if (wanted == part::gradients) {
        head.rows_gradient = rows_gradient.data(), head.vector_gradient = vector_gradient.data();
        head.log_inverse_temperature_gradient = temperature_gradient.data();
    }
    head.workspace = workspace.data(), head.workspace_bytes = workspace.bytes();
    once(mode, "choices_head", [&] { require(vram::choices_head(stream(), &head), "choices_head"); });

    answers got;
    got.loss = loss.download()[0] - before_k;
    got.probabilities = probabilities.download();
    got.rows = rows_gradient.download();
    std::size_t const written = wanted == part::gradients ? std::size_t(given.rows()) * given.hidden : 0;
    for (std::size_t i = given.rows(); i != got.probabilities.size(); ++i)
        got.guarded = got.guarded && std::isnan(got.probabilities[i]);
    for (std::size_t i = written; i != got.rows.size(); ++i)
        got.guarded = got.guarded && std::isnan(got.rows[i]);
    got.probabilities.resize(given.rows());
    got.rows.resize(written);
    got.vector = vector_gradient.download();
    got.temperature = temperature_gradient.download();
    for (std::vector<float>* added : {&got.vector, &got.temperature})
        for (float& value : *added)
            value -= before_k;
    got.guarded = got.guarded && loss.guarded() && probabilities.guarded() && rows_gradient.guarded() &&
                  vector_gradient.guarded() && temperature_gradient.guarded() && workspace.guarded();
    return got;
}

/** The same in double. */
struct expectation {
    double loss = 0, temperature = 0, temperature_scale = 0;
    std::vector<double> probabilities, rows, vector;

    explicit expectation(problem const& given)
        : probabilities(given.rows()), rows(std::size_t(given.rows()) * given.hidden), vector(given.hidden) {
        double const sharpness = std::exp(double(given.log_inverse_temperature));
        std::vector<double> logits(given.rows());
        for (std::uint32_t row = 0; row != given.rows(); ++row) {
            for (std::uint32_t i = 0; i != given.hidden; ++i)
                logits[row] += double(given.states[std::size_t(row) * given.hidden + i]) * given.vector[i];
            logits[row] *= sharpness;
        }
        double const factor = double(given.scale) * given.weight;
        for (std::uint32_t item = 0; item != given.items(); ++item) {
            std::uint32_t const begin = given.offsets[item], end = given.offsets[item + 1];
            double const maximum = *std::max_element(logits.begin() + begin, logits.begin() + end);
            double sum = 0, mass = 0;
            for (std::uint32_t row = begin; row != end; ++row)
                sum += std::exp(logits[row] - maximum), mass += given.targets[row];
            for (std::uint32_t row = begin; row != end; ++row) {
                probabilities[row] = std::exp(logits[row] - maximum) / sum;
                loss -= given.scale * given.targets[row] * (logits[row] - maximum - std::log(sum));
                double const slope = factor * (mass * probabilities[row] - given.targets[row]);
                temperature += slope * logits[row];
                temperature_scale += std::fabs(slope * logits[row]);
                for (std::uint32_t i = 0; i != given.hidden; ++i) {
                    std::size_t const at = std::size_t(row) * given.hidden + i;
                    rows[at] = slope * sharpness * given.vector[i];
                    vector[i] += slope * sharpness * given.states[at];
                }
            }
        }
    }
};

double norm(std::vector<double> const& values) {
    double square = 0;
    for (double const value : values)
        square += value * value;
    return std::sqrt(square);
}

/** Everything is float32 but the states, which are given: a thousandth of the policy's allowance would do. */
void check_choices(std::vector<std::uint32_t> const& counts, std::uint32_t hidden, float sharpness) {
    problem const given(counts, hidden, sharpness);
    expectation const exact(given);
    std::string const name = "choices " + std::to_string(given.items()) + " of " + std::to_string(given.rows()) + "x" +
                             std::to_string(hidden) + (sharpness > 1 ? " sharp" : "");
    answers const got = choose(given, part::gradients, how::direct);
    check(name + " twice", same_answers(got, choose(given, part::gradients, how::captured)));
    check(name + " guarded", got.guarded);
    check(name + " loss", std::fabs(got.loss - exact.loss), 1e-5 * exact.loss + 1e-7);
    check(name + " probabilities", relative_error(got.probabilities, exact.probabilities), 1e-4);
    check(name + " rows", relative_error(got.rows, exact.rows), 1e-4);
    double error = 0;
    for (std::uint32_t i = 0; i != hidden; ++i)
        error += std::pow(got.vector[i] - exact.vector[i], 2);
    // These two lie on top of 0.25 in float32.
    check(name + " vector", std::sqrt(error), 1e-4 * norm(exact.vector) + 3e-8 * std::sqrt(double(hidden)));
    check(name + " temperature", std::fabs(got.temperature[0] - exact.temperature),
          1e-5 * exact.temperature_scale + 3e-8);

    answers const value = choose(given, part::value, how::direct);
    check(name + " value alone", value.guarded && value.loss == got.loss &&
                                     same_bits(value.probabilities, got.probabilities) && value.temperature[0] == 0);
    answers const inferred = choose(given, part::probabilities, how::direct);
    check(name + " probabilities alone",
          inferred.guarded && inferred.loss == 0 && same_bits(inferred.probabilities, got.probabilities));
}

/** Items of 1 to `most` choices. */
std::vector<std::uint32_t> uneven(std::uint32_t items, std::uint32_t most) {
    std::vector<std::uint32_t> counts;
    for (std::uint32_t item = 0; item != items; ++item)
        counts.push_back(1 + item * 7 % most);
    return counts;
}

void bench() {
    stopwatch watch;
    for (auto const& [items, choices, hidden] : {std::tuple{256u, 16u, 512u}, {2048, 16, 512}, {2048, 16, 768}}) {
        std::uint32_t const rows = items * choices;
        std::vector<std::uint32_t> offsets;
        for (std::uint32_t item = 0; item <= items; ++item)
            offsets.push_back(item * choices);
        std::size_t const values = std::size_t(rows) * hidden;
        device_array<std::uint32_t> const counts(std::vector{items, rows}), device_offsets(offsets);
        device_array<bf16> const states(to_bf16(noise(values)));
        device_array<float> const vector(noise(hidden)), targets(std::vector<float>(rows, 1.f / 16)),
            probabilities(rows), rows_gradient(values), vector_gradient{std::vector<float>(hidden)},
            one(std::vector{1.f}), temperature(std::vector{0.f}), temperature_gradient(std::vector{0.f});
        device_array<double> const loss(std::vector{0.0});
        device_array<std::uint8_t> const workspace(vram::choices_head_workspace_bytes(hidden, items, rows));
        uform_choices_head_t head{};
        head.hidden = hidden, head.items_capacity = head.items_active = items;
        head.rows_capacity = head.rows_active = rows;
        head.counts = counts.data(), head.offsets = device_offsets.data(), head.rows = states.data();
        head.vector = vector.data(), head.log_inverse_temperature = temperature.data();
        head.probabilities = probabilities.data(), head.targets = targets.data(), head.scale = one.data();
        head.weight = one.data(), head.loss = loss.data(), head.rows_gradient = rows_gradient.data();
        head.vector_gradient = vector_gradient.data();
        head.log_inverse_temperature_gradient = temperature_gradient.data();
        head.workspace = workspace.data(), head.workspace_bytes = workspace.bytes();
        watch.bytes("choices_head " + std::to_string(rows) + "x" + std::to_string(hidden), 6. * double(values),
                    [&] { require(vram::choices_head(stream(), &head), "choices_head"); });
    }
}

/** @param large More items, too: a sanitizer has enough with the rest. */
void check_all(bool large) {
    check_choices({}, 64, 1);
    check_choices({1}, 64, 1);
    check_choices({3, 4}, 72, 1);
    check_choices({33, 1, 200, 32, 31}, 512, 1);
    if (!large)
        return;
    check_choices(uneven(75, 16), 136, 1);
    check_choices(uneven(75, 16), 136, 60);
    check_choices(uneven(700, 9), 64, 1);
    check_choices({5, 2, 7}, 4096, 1);
    check_choices({300, 2, 7, 600}, 1032, 1); // more rows than are at hand, rows narrower than a block
    check_choices(uneven(300, 3), 72, 1);     // more parts than are read at a time
}

} // namespace

int main(int count, char** arguments) {
    if (wants_checks(count, arguments))
        check_all(!asked(count, arguments, "--small"));
    if (wants_bench(count, arguments))
        bench();
    return native_test::report();
}
