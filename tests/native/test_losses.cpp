// Objectives as functions on known numbers: four anchors and four candidates in the plane (F1 of the given cases).
#include <algorithm>
#include <cmath>
#include <limits>

#include "check.h"
#include "problem.h"

using namespace native_test;

namespace {

constexpr size_t anchors_k = 4, units_k = 2 * anchors_k, width_k = 2;
constexpr double row_losses_k[anchors_k] = {0.063370, 1.099458, 0.763087, 0.202666};
constexpr double mean_k = 0.532145, mean_every_k = 0.786593, mean_twin_ignored_k = 0.273940;
/** The numbers are given to six decimals. */
constexpr double tolerance_k = 2e-6;

using pairs_t = std::vector<std::pair<uint32_t, uint32_t>>;

bool near(double got, double expected, double tolerance = tolerance_k) {
    bool const holds = std::fabs(got - expected) <= tolerance;
    if (!holds)
        std::fprintf(stderr, "%.9g, expected %.9g\n", got, expected);
    return holds;
}

/** A loss over given vectors, with room for all that it answers. */
struct loss_t {
    std::vector<float> vectors;
    edge_set attract, repel, ignore;
    uform_contrastive_t contrastive{};
    std::vector<uint8_t> modalities, sides;
    std::vector<uint32_t> groups;
    size_t width = width_k;
    int32_t scalar = uform_scalar_float32_k;
    float const* elsewhere = nullptr; // where the values of `vectors` lie with strides
    int64_t row_stride = 0, column_stride = 0;

    double loss = -1;
    std::vector<float> gradient, temperature_gradient, bias_gradient, row_losses;
    std::vector<uint32_t> rows;

    size_t count() const { return vectors.size() / width; }

    void lie(float const* at, size_t row, size_t column) {
        elsewhere = at;
        row_stride = static_cast<int64_t>(row), column_stride = static_cast<int64_t>(column);
    }

    uform_status_t evaluate(executor_ptr const& executor) {
        size_t const groups_count = static_cast<size_t>(std::max(contrastive.temperature_groups, 1));
        gradient.assign(vectors.size(), -1);
        temperature_gradient.assign(groups_count, -1);
        bias_gradient.assign(groups_count, -1);
        row_losses.assign(count(), -1);
        rows.assign(count(), UINT32_MAX);
        size_t rows_count = SIZE_MAX;
        uform_contrastive_loss_t problem{};
        problem.embeddings = elsewhere ? elsewhere : vectors.data();
        problem.scalar = scalar;
        problem.strided = elsewhere != nullptr;
        problem.row_stride = row_stride;
        problem.column_stride = column_stride;
        problem.count = count();
        problem.width = width;
        problem.relations = {attract.view(), repel.view(), ignore.view()};
        problem.contrastive = contrastive;
        problem.modalities = modalities.empty() ? nullptr : modalities.data();
        problem.sides = sides.empty() ? nullptr : sides.data();
        problem.temperature_groups = groups.empty() ? nullptr : groups.data();
        problem.loss = &loss;
        problem.gradient = gradient.data();
        problem.log_inverse_temperature_gradient = temperature_gradient.data();
        problem.bias_gradient = bias_gradient.data();
        problem.row_losses = row_losses.data();
        problem.rows = rows.data();
        problem.rows_count = &rows_count;
        uform_status_t const status = uform_contrastive_loss(executor.get(), &problem);
        if (status == uform_status_success_k) {
            row_losses.resize(rows_count);
            rows.resize(rows_count);
        }
        return status;
    }
};

pairs_t partners() {
    pairs_t pairs;
    for (uint32_t anchor = 0; anchor != anchors_k; ++anchor)
        pairs.push_back({anchor, anchor + anchors_k});
    return pairs;
}

/** Each anchor with the candidates of the others. */
pairs_t strangers() {
    pairs_t pairs;
    for (uint32_t anchor = 0; anchor != anchors_k; ++anchor)
        for (uint32_t candidate = 0; candidate != anchors_k; ++candidate)
            if (anchor != candidate)
                pairs.push_back({anchor, candidate + anchors_k});
    return pairs;
}

loss_t f1(int32_t form, int32_t negatives, int32_t scope) {
    constexpr double degrees[units_k] = {0, 30, 60, 90, 10, 50, 50, 100};
    double const pi = std::acos(-1.0);
    loss_t made;
    for (double degree : degrees) {
        made.vectors.push_back(static_cast<float>(std::cos(degree * pi / 180)));
        made.vectors.push_back(static_cast<float>(std::sin(degree * pi / 180)));
    }
    made.contrastive.inverse_temperature = 10;
    made.contrastive.pair_loss = form;
    made.contrastive.negatives = negatives;
    made.contrastive.ambient_scope = scope;
    made.attract = edges_of(units_k, partners());
    if (negatives == uform_negatives_named_k)
        made.repel = edges_of(units_k, strangers());
    return made;
}

double norm(std::vector<float> const& gradient, size_t first, size_t count) {
    double sum = 0;
    for (size_t place = first; place != first + count; ++place)
        sum += double(gradient[place]) * double(gradient[place]);
    return std::sqrt(sum);
}

constexpr int32_t forms_k[] = {uform_pair_loss_form_balanced_k, uform_pair_loss_form_ranked_k};

void test_F1(executor_ptr const& executor) {
    for (int32_t form : forms_k)
        for (int32_t negatives : {uform_negatives_ambient_k, uform_negatives_named_k}) {
            loss_t problem = f1(form, negatives, uform_ambient_scope_targets_k);
            require(problem.evaluate(executor), "loss");
            CHECK(near(problem.loss, mean_k));
            CHECK(problem.rows == std::vector<uint32_t>({0, 1, 2, 3}));
            for (size_t row = 0; row != problem.row_losses.size(); ++row)
                CHECK(near(problem.row_losses[row], row_losses_k[row]));
            CHECK(near(norm(problem.gradient, 0, anchors_k * width_k), 0.702354));
            CHECK(near(norm(problem.gradient, anchors_k * width_k, anchors_k * width_k), 1.313905));
            CHECK(problem.bias_gradient[0] == 0);
        }
}

void test_F1_every_bag_is_ambient(executor_ptr const& executor) {
    for (int32_t form : forms_k) {
        loss_t problem = f1(form, uform_negatives_ambient_k, uform_ambient_scope_every_k);
        require(problem.evaluate(executor), "loss");
        CHECK(near(problem.loss, mean_every_k));
    }
}

void test_CON_01_ignored_twins(executor_ptr const& executor) {
    for (int32_t form : forms_k) {
        loss_t problem = f1(form, uform_negatives_ambient_k, uform_ambient_scope_targets_k);
        problem.ignore = edges_of(units_k, {{1, 6}, {2, 5}});
        require(problem.evaluate(executor), "loss");
        CHECK(near(problem.loss, mean_twin_ignored_k));
    }
}

void test_CON_05_several_positives(executor_ptr const& executor) {
    pairs_t attracted = partners(), repelled = strangers();
    attracted.push_back({1, 6});
    std::erase(repelled, std::pair<uint32_t, uint32_t>(1, 6));
    for (auto const& [form, expected] : {std::pair(uform_pair_loss_form_balanced_k, row_losses_k[1]),
                                         std::pair(uform_pair_loss_form_ranked_k, 0.694415)})
        for (int32_t negatives : {uform_negatives_ambient_k, uform_negatives_named_k}) {
            loss_t problem = f1(form, negatives, uform_ambient_scope_targets_k);
            problem.attract = edges_of(units_k, attracted);
            if (negatives == uform_negatives_named_k)
                problem.repel = edges_of(units_k, repelled);
            require(problem.evaluate(executor), "loss");
            CHECK(near(problem.row_losses[1], expected));
        }
}

/** Slopes of every form against differences, in single precision. */
void test_gradients_are_slopes(executor_ptr const& executor) {
    for (int32_t form :
         {uform_pair_loss_form_balanced_k, uform_pair_loss_form_ranked_k, uform_pair_loss_form_sigmoid_k}) {
        loss_t problem = f1(form, uform_negatives_ambient_k, uform_ambient_scope_every_k);
        if (form == uform_pair_loss_form_sigmoid_k)
            problem.contrastive.bias = -1.5;
        problem.contrastive.ambient_repulsion_weight = 0.5;
        problem.repel = edges_of(units_k, {{5, 0}, {2, 7}});
        problem.repel.weights = {0.25f, 2.0f}; // in the order of their rows
        require(problem.evaluate(executor), "loss");
        auto const at = [&](auto&& change) {
            loss_t moved = problem;
            change(moved);
            require(moved.evaluate(executor), "loss");
            return moved.loss;
        };
        constexpr double step = 1e-2;
        for (size_t place = 0; place != problem.vectors.size(); ++place) {
            auto const move = [&](double by) {
                return at([&](loss_t& moved) { moved.vectors[place] += static_cast<float>(by); });
            };
            CHECK(near((move(step) - move(-step)) / (2 * step), problem.gradient[place], 5e-3));
        }
        auto const heat = [&](double by) {
            return at([&](loss_t& moved) { moved.contrastive.inverse_temperature *= std::exp(by); });
        };
        CHECK(near((heat(step) - heat(-step)) / (2 * step), problem.temperature_gradient[0], 1e-3));
        auto const lift = [&](double by) { return at([&](loss_t& moved) { moved.contrastive.bias += by; }); };
        if (form == uform_pair_loss_form_sigmoid_k)
            CHECK(near((lift(step) - lift(-step)) / (2 * step), problem.bias_gradient[0], 1e-3));
    }
}

/** Bound by no default: every pair may be named. */
void test_every_pair_named(executor_ptr const& executor) {
    pairs_t all;
    for (uint32_t row = 0; row != units_k; ++row)
        for (uint32_t candidate = 0; candidate != units_k; ++candidate)
            if (row != candidate && candidate != row + anchors_k)
                all.push_back({row, candidate});
    loss_t problem = f1(uform_pair_loss_form_balanced_k, uform_negatives_named_k, uform_ambient_scope_every_k);
    problem.repel = edges_of(units_k, all);
    require(problem.evaluate(executor), "loss");
    CHECK(near(problem.loss, mean_every_k));
}

void test_prefixes(executor_ptr const& executor) {
    loss_t whole = f1(uform_pair_loss_form_balanced_k, uform_negatives_ambient_k, uform_ambient_scope_every_k);
    loss_t wide = whole;
    wide.width = 2 * width_k;
    wide.vectors.clear();
    for (size_t unit = 0; unit != units_k; ++unit) // twice as long in the first half, which the prefix undoes
        for (float value : {2 * whole.vectors[2 * unit], 2 * whole.vectors[2 * unit + 1], 5.0f, float(unit)})
            wide.vectors.push_back(value);
    wide.contrastive.matryoshka_dimensions[0] = wide.contrastive.matryoshka_dimensions[1] = width_k;
    wide.contrastive.matryoshka_count = 2;
    require(whole.evaluate(executor), "loss");
    require(wide.evaluate(executor), "loss");
    CHECK(near(wide.loss, whole.loss));
    for (size_t unit = 0; unit != units_k; ++unit) {
        CHECK(wide.gradient[4 * unit + 2] == 0 && wide.gradient[4 * unit + 3] == 0);
        float const along =
            wide.gradient[4 * unit] * wide.vectors[4 * unit] + wide.gradient[4 * unit + 1] * wide.vectors[4 * unit + 1];
        CHECK(near(along, 0)); // a unit vector has no slope along itself
    }
}

void test_temperature_groups(executor_ptr const& executor) {
    loss_t whole = f1(uform_pair_loss_form_balanced_k, uform_negatives_ambient_k, uform_ambient_scope_targets_k);
    loss_t parted = whole;
    parted.contrastive.temperature_groups = 3;
    parted.groups = {0, 2, 0, 2, 1, 1, 1, 1};
    require(whole.evaluate(executor), "loss");
    require(parted.evaluate(executor), "loss");
    CHECK(near(parted.loss, whole.loss));
    auto const& by_group = parted.temperature_gradient;
    CHECK(by_group[0] != 0 && by_group[1] == 0 && by_group[2] != 0);
    CHECK(near(by_group[0] + by_group[2], whole.temperature_gradient[0]));
}

/* ------------------------------------------------------------------------------------------------ edges of the domain
 */

bool all_zero(std::vector<float> const& values) {
    return std::all_of(values.begin(), values.end(), [](float value) { return value == 0; });
}

void test_no_vectors_and_one(executor_ptr const& executor) {
    for (int32_t form :
         {uform_pair_loss_form_balanced_k, uform_pair_loss_form_ranked_k, uform_pair_loss_form_sigmoid_k})
        for (size_t count : {0, 1}) {
            loss_t problem;
            problem.contrastive.pair_loss = form;
            problem.vectors.assign(count * width_k, 0.5f);
            problem.attract.offsets.assign(count + 1, 0);
            if (count) { // an edge to oneself is no pair
                problem.attract.offsets[1] = 1;
                problem.attract.ids = {0};
            }
            require(problem.evaluate(executor), "loss");
            CHECK(problem.loss == 0 && problem.rows.empty());
            CHECK(all_zero(problem.gradient) && all_zero(problem.temperature_gradient));
            CHECK(all_zero(problem.bias_gradient));
        }
}

/** CON-09: a batch of one pair without other candidates. */
void test_CON_09_one_pair(executor_ptr const& executor) {
    for (int32_t form :
         {uform_pair_loss_form_balanced_k, uform_pair_loss_form_ranked_k, uform_pair_loss_form_sigmoid_k}) {
        loss_t problem;
        problem.contrastive.pair_loss = form;
        problem.vectors = {1, 0, 0.6f, 0.8f};
        problem.attract = edges_of(2, {{0, 1}});
        require(problem.evaluate(executor), "loss");
        bool const sigmoid = form == uform_pair_loss_form_sigmoid_k;
        CHECK(near(problem.loss, sigmoid ? std::log1p(std::exp(4.0)) : 0)); // 10 * 0.6 - 10
        CHECK(problem.rows == std::vector<uint32_t>({0}));
        CHECK(all_zero(problem.gradient) == !sigmoid);
    }
}

void test_refusals(executor_ptr const& executor) {
    auto const refused = [&](char const* part, auto&& spoil) {
        loss_t problem = f1(uform_pair_loss_form_balanced_k, uform_negatives_ambient_k, uform_ambient_scope_every_k);
        spoil(problem);
        CHECK(problem.evaluate(executor) == uform_status_invalid_argument_k);
        if (!CHECK(std::string(uform_last_error()).find(part) != std::string::npos))
            std::fprintf(stderr, "%s: %s\n", part, uform_last_error());
        CHECK(problem.loss == -1);
    };
    refused("attract.ids[1]", [](loss_t& problem) { problem.attract.ids[1] = units_k; });
    refused("attract.offsets", [](loss_t& problem) { problem.attract.offsets.pop_back(); });
    refused("temperature_groups", [](loss_t& problem) { problem.groups.assign(units_k, 1); });
    refused("sides[3]", [](loss_t& problem) { problem.sides = {0, 1, 2, 4, 0, 0, 0, 0}; });
    refused("inverse_temperature", [](loss_t& problem) { problem.contrastive.inverse_temperature = 101; });
    refused("matryoshka_dimensions", [](loss_t& problem) {
        problem.contrastive.matryoshka_count = 1;
        problem.contrastive.matryoshka_dimensions[0] = width_k + 1;
    });
    refused("pair_loss", [](loss_t& problem) { problem.contrastive.pair_loss = 4; });
    refused("max_edges_per_device", [](loss_t& problem) { problem.contrastive.max_edges_per_device = 3; });
    refused("modalities",
            [](loss_t& problem) { problem.contrastive.ambient_scope = uform_ambient_scope_cross_modal_k; });
    refused("sides", [](loss_t& problem) { problem.contrastive.ambient_scope = uform_ambient_scope_cross_side_k; });
    refused("embeddings", [](loss_t& problem) { problem.vectors.clear(), problem.width = 0x80000000u; });
}

/* ------------------------------------------------------------------------------------------------ masked bytes */

constexpr size_t classes_k = 256;

uform_status_t masked_bytes(executor_ptr const& executor, std::vector<float> const& logits,
                            std::vector<uint8_t> const& targets, double& loss, float* gradient, int64_t row_stride = 0,
                            int64_t column_stride = 0) {
    uform_masked_bytes_loss_t problem{};
    problem.logits = logits.data();
    problem.targets = targets.data();
    problem.count = targets.size();
    problem.loss = &loss;
    problem.gradient = gradient;
    problem.strided = row_stride != 0;
    problem.row_stride = row_stride;
    problem.column_stride = column_stride;
    return uform_masked_bytes_loss(executor.get(), &problem);
}

void test_MSK_07_masked_bytes(executor_ptr const& executor) {
    std::vector<float> logits(3 * classes_k, 0.25f), gradient(logits.size(), -1);
    std::vector<uint8_t> const targets = {0, 255, 7};
    double loss = -1, value_only = -1;
    require(masked_bytes(executor, logits, targets, loss, gradient.data()), "masked");
    require(masked_bytes(executor, logits, targets, value_only, nullptr), "masked");
    CHECK(near(loss, std::log(256.0)) && value_only == loss);
    for (size_t row = 0; row != 3; ++row)
        for (size_t byte = 0; byte != classes_k; ++byte)
            CHECK(near(gradient[row * classes_k + byte], (1 / 256.0 - (byte == targets[row])) / 3, 1e-7));
    // A logit far above the others: certainty, right or wrong.
    logits.assign(classes_k, -1e4f);
    logits[7] = 1e4f;
    gradient.resize(classes_k);
    for (uint8_t target : {uint8_t(7), uint8_t(8)}) {
        require(masked_bytes(executor, logits, {target}, loss, gradient.data()), "masked");
        CHECK(near(loss, target == 7 ? 0 : 2e4));
        CHECK(near(gradient[7], target == 7 ? 0 : 1) && near(gradient[8], target == 7 ? 0 : -1));
    }
    loss = -1;
    require(masked_bytes(executor, {}, {}, loss, nullptr), "masked");
    CHECK(loss == 0);
}

/* ------------------------------------------------------------------------------------------------ how values lie */

/** The values of `rows` rows of `width` where each is `column_stride` from the next. */
std::vector<float> spread(std::vector<float> const& dense, size_t width, size_t row_stride, size_t column_stride) {
    size_t const rows = dense.size() / width;
    std::vector<float> wide(rows * row_stride + width * column_stride, std::numeric_limits<float>::quiet_NaN());
    for (size_t place = 0; place != dense.size(); ++place)
        wide[place / width * row_stride + place % width * column_stride] = dense[place];
    return wide;
}

void test_DST_05_strided_values(executor_ptr const& executor) {
    loss_t const dense = f1(uform_pair_loss_form_balanced_k, uform_negatives_ambient_k, uform_ambient_scope_every_k);
    loss_t expected = dense;
    require(expected.evaluate(executor), "loss");
    for (auto const& [row_stride, column_stride] : {std::pair<size_t, size_t>(7, 3), {1, units_k}}) {
        std::vector<float> const values = spread(dense.vectors, width_k, row_stride, column_stride);
        loss_t strided = dense;
        strided.lie(values.data(), row_stride, column_stride);
        require(strided.evaluate(executor), "loss");
        CHECK(strided.loss == expected.loss && strided.gradient == expected.gradient);
    }

    // One vector for all: a stride of zero is a stride.
    loss_t same = dense, repeated = dense;
    same.vectors.assign(dense.vectors.size(), 0.5f);
    require(same.evaluate(executor), "loss");
    float const half = 0.5f;
    repeated.lie(&half, 0, 0);
    require(repeated.evaluate(executor), "loss");
    CHECK(repeated.loss == same.loss && repeated.gradient == same.gradient);

    std::vector<float> logits(2 * classes_k), gradient(logits.size()), of_strided(logits.size());
    for (size_t place = 0; place != logits.size(); ++place)
        logits[place] = static_cast<float>(std::sin(double(place)));
    double loss = -1, strided_loss = -2;
    require(masked_bytes(executor, logits, {3, 250}, loss, gradient.data()), "masked");
    std::vector<float> const values = spread(logits, classes_k, 600, 2);
    require(masked_bytes(executor, values, {3, 250}, strided_loss, of_strided.data(), 600, 2), "masked");
    CHECK(loss == strided_loss && gradient == of_strided);
}

void test_what_is_not_finite(executor_ptr const& executor) {
    auto const says = [](char const* part) { return std::string(uform_last_error()).find(part) != std::string::npos; };
    constexpr float infinity = std::numeric_limits<float>::infinity();
    loss_t problem = f1(uform_pair_loss_form_balanced_k, uform_negatives_ambient_k, uform_ambient_scope_every_k);
    problem.vectors[7] = infinity;
    problem.vectors[11] = std::numeric_limits<float>::quiet_NaN();
    CHECK(problem.evaluate(executor) == uform_status_invalid_argument_k && problem.loss == -1);
    CHECK(says("embeddings[3] is not finite: it has inf in column 1"));
    std::vector<float> logits(3 * classes_k), gradient(logits.size());
    logits[2 * classes_k + 9] = -infinity;
    double loss = -1;
    CHECK(masked_bytes(executor, logits, {0, 0, 0}, loss, gradient.data()) == uform_status_invalid_argument_k);
    CHECK(loss == -1 && says("logits[2] is not finite: it has -inf in column 9"));
}

void test_other_types_are_refused(executor_ptr const& executor) {
    for (int32_t scalar : {uform_scalar_float16_k, uform_scalar_bfloat16_k, uform_scalar_int8_k, uform_scalar_bit_k}) {
        loss_t problem = f1(uform_pair_loss_form_balanced_k, uform_negatives_ambient_k, uform_ambient_scope_every_k);
        problem.scalar = scalar;
        CHECK(problem.evaluate(executor) == uform_status_invalid_type_k && problem.loss == -1);
        CHECK(std::string(uform_last_error()).find("embeddings: expected FLOAT32") != std::string::npos);
    }
}

} // namespace

int main() {
    for (int32_t threads : {1, 3}) {
        executor_ptr const executor = make_executor(1, threads);
        test_F1(executor);
        test_F1_every_bag_is_ambient(executor);
        test_CON_01_ignored_twins(executor);
        test_CON_05_several_positives(executor);
        test_gradients_are_slopes(executor);
        test_every_pair_named(executor);
        test_prefixes(executor);
        test_temperature_groups(executor);
        test_no_vectors_and_one(executor);
        test_CON_09_one_pair(executor);
        test_refusals(executor);
        test_MSK_07_masked_bytes(executor);
        test_DST_05_strided_values(executor);
        test_what_is_not_finite(executor);
        test_other_types_are_refused(executor);
    }
    return report();
}
