// A whole run on virtual devices: it learns, repeats itself bit for bit, shares work evenly, resumes, answers and
// counts.
#include <algorithm>
#include <cmath>
#include <limits>

#include <uform/plugin.h>

#include "allocations.h"
#include "check.h"
#include "problem.h"

using namespace native_test;

namespace {

constexpr int32_t objectives_k[] = {uform_objective_masked_k, uform_objective_contrastive_k, uform_objective_joint_k};
constexpr int32_t scalars_k[] = {uform_scalar_float32_k, uform_scalar_float16_k, uform_scalar_bfloat16_k,
                                 uform_scalar_int8_k, uform_scalar_bit_k};

double largest_difference(std::vector<float> const& left, std::vector<float> const& right) {
    if (left.size() != right.size())
        return std::numeric_limits<double>::infinity();
    double largest = 0;
    for (size_t place = 0; place != left.size(); ++place)
        largest = std::max(largest, std::fabs(double(left[place]) - double(right[place])));
    return largest;
}

/* ------------------------------------------------------------------------------------------------ learning */

void check_terms(int32_t objective, uform_trainer_step_stats_t const& stats) {
    bool const masked = objective != uform_objective_contrastive_k, pairs = objective != uform_objective_masked_k;
    CHECK((stats.masked_text_loss > 0) == masked);
    CHECK((stats.masked_image_loss > 0) == masked);
    CHECK((stats.contrastive_loss > 0) == pairs);
    CHECK(stats.masked_video_loss == 0 && stats.masked_audio_loss == 0 && stats.late_interaction_loss == 0);
    double const total = stats.contrastive_loss + stats.masked_text_loss + stats.masked_image_loss;
    CHECK(std::fabs(stats.loss - total) <= 1e-12 * total);
    CHECK(std::isfinite(stats.gradient_norm) && stats.gradient_norm > 0);
    CHECK(stats.truncated == 0 && stats.dropped == 0 && stats.extra_count == 0);
}

void test_loss_falls() {
    constexpr int steps = 30, window = 5;
    executor_ptr const executor = make_executor();
    for (int32_t objective : objectives_k) {
        auto const stats =
            run_steps(make_trainer(executor, tiny_options(objective)), image_text_call(1, objective), steps);
        double first = 0, last = 0;
        for (int step = 0; step != steps; ++step) {
            CHECK(stats[step].step == uint64_t(step) + 1);
            check_terms(objective, stats[step]);
            if (step < window)
                first += stats[step].loss / window;
            if (step >= steps - window)
                last += stats[step].loss / window;
        }
        if (!CHECK(last < 0.9 * first))
            std::fprintf(stderr, "objective %d: %g to %g\n", objective, first, last);
    }
}

void test_schedule() {
    auto options = tiny_options(uform_objective_contrastive_k);
    constexpr double peak = 1e-3;
    options.schedule = {peak, -1, 2, 6};
    trainer_ptr const trainer = make_trainer(make_executor(), options);
    double const pi = std::acos(-1.0);
    for (int step = 1; step != 9; ++step) {
        double const rate = step <= 2 ? step / 2.0 : step >= 6 ? 0.0 : (1 + std::cos(pi * (step - 2) / 4.0)) / 2;
        CHECK(std::fabs(run_step(trainer, image_text_call()).learning_rate - peak * rate) < 1e-12);
    }
}

/* ------------------------------------------------------------------------------------------------ equality */

void test_repeats_itself() {
    executor_ptr const executor = make_executor();
    for (int32_t objective : objectives_k) {
        trainer_ptr const left = make_trainer(executor, tiny_options(objective));
        trainer_ptr const right = make_trainer(executor, tiny_options(objective));
        CHECK(same_bits(values_of(left), values_of(right)));
        auto const left_stats = run_steps(left, image_text_call(1, objective), 3),
                   right_stats = run_steps(right, image_text_call(1, objective), 3);
        CHECK(left_stats.back().loss == right_stats.back().loss);
        CHECK(same_run(left, right));
    }
    auto other = tiny_options(uform_objective_joint_k);
    trainer_ptr const seventh = make_trainer(executor, other);
    other.seed = 8;
    CHECK(!same_bits(values_of(seventh), values_of(make_trainer(executor, other))));
}

/** What three steps end in. */
struct course {
    std::vector<double> losses;
    std::vector<float> weights, embeddings;
};

course course_of(call_t const& call, int32_t objective, int32_t devices) {
    trainer_ptr const trainer = make_trainer(make_executor(devices), tiny_options(objective));
    course made;
    for (auto const& stats : run_steps(trainer, call, 3))
        for (double loss :
             {stats.loss, stats.contrastive_loss, stats.masked_text_loss, stats.masked_image_loss, stats.gradient_norm})
            made.losses.push_back(loss);
    made.weights = values_of(trainer);
    output_t output(call.count());
    uform_step_t step = call.step();
    step.output = output.view;
    require(uform_trainer_step(trainer.get(), &step, nullptr), "step");
    made.embeddings = output.values;
    return made;
}

void test_devices_change_nothing() {
    call_t lonely;
    lonely.add_text("a text without company"); // and most devices without work
    for (int32_t objective : objectives_k) {
        call_t const pairs = image_text_call(1, objective);
        for (call_t const* call : {&pairs, static_cast<call_t const*>(&lonely)}) {
            course const alone = course_of(*call, objective, 1);
            for (int32_t devices : {2, 4}) {
                course const shared = course_of(*call, objective, devices);
                for (size_t place = 0; place != alone.losses.size(); ++place)
                    CHECK(std::fabs(alone.losses[place] - shared.losses[place]) <= 1e-5 * alone.losses[place]);
                CHECK(largest_difference(alone.weights, shared.weights) <= 1e-5);
                CHECK(largest_difference(alone.embeddings, shared.embeddings) <= 1e-5);
            }
        }
    }
}

/* ------------------------------------------------------------------------------------------------ resuming */

void test_resumes() {
    temporary_folder const folder;
    std::string const path = folder.file("run.safetensors");
    executor_ptr const executor = make_executor(2);
    for (int32_t objective : objectives_k) {
        auto options = tiny_options(objective);
        trainer_ptr const straight = make_trainer(executor, options);
        run_steps(straight, image_text_call(1, objective), 3);
        require(uform_trainer_save(straight.get(), path.c_str(), nullptr, nullptr, 0), "save");
        auto const straight_stats = run_steps(straight, image_text_call(2, objective), 3);

        uform_trainer_options_t resumed_options{};
        resumed_options.resume = path.c_str();
        trainer_ptr const resumed = make_trainer(executor, resumed_options);
        auto const resumed_stats = run_steps(resumed, image_text_call(2, objective), 3);
        for (size_t step = 0; step != 3; ++step) {
            CHECK(straight_stats[step].step == resumed_stats[step].step);
            CHECK(straight_stats[step].loss == resumed_stats[step].loss);
            CHECK(straight_stats[step].learning_rate == resumed_stats[step].learning_rate);
        }
        CHECK(same_run(straight, resumed));

        trainer_ptr const elsewhere = make_trainer(make_executor(1), resumed_options);
        run_steps(elsewhere, image_text_call(2, objective), 3);
        CHECK(largest_difference(values_of(straight), values_of(elsewhere)) <= 1e-5);
    }
}

void check_resume_refused(uform_trainer_options_t const& options, std::vector<std::string> const& parts) {
    uform_trainer_t* made = nullptr;
    CHECK(uform_trainer_init_ram(make_executor().get(), &options, &made) == uform_status_invalid_argument_k);
    CHECK(!made);
    for (std::string const& part : parts)
        if (!CHECK(std::string(uform_last_error()).find(part) != std::string::npos))
            std::fprintf(stderr, "%s: %s\n", part.c_str(), uform_last_error());
}

void test_resume_refuses_another_shape() {
    temporary_folder const folder;
    std::string const path = folder.file("run.safetensors");
    trainer_ptr const trainer = make_trainer(make_executor(), tiny_options(uform_objective_masked_k));
    require(uform_trainer_save(trainer.get(), path.c_str(), nullptr, nullptr, 0), "save");
    uform_trainer_options_t options{};
    options.resume = path.c_str();
    auto asked = options;
    asked.depth = 3;
    check_resume_refused(asked, {"depth", "2", "3"});
    asked = options;
    asked.hidden = 128;
    check_resume_refused(asked, {"hidden", "64", "128"});
    asked = options;
    asked.objective = uform_objective_joint_k;
    check_resume_refused(asked, {"objective", "MASKED", "JOINT"});
    asked = options;
    asked.batch.image.patch_side = 8;
    check_resume_refused(asked, {"patch_side", "4", "8"});
}

/* ------------------------------------------------------------------------------------------------ answers */

constexpr size_t kept_bags_k = 9;

/** Thirteen bags of 16 texts: the first seven take two rows, two more a row each, and the last four find no room. */
call_t bags_call() {
    call_t call;
    constexpr uint32_t words[] = {70, 8, 70, 5, 8, 1u << 31, 0, 12, 70, 13};
    for (uint32_t place = 0; place != std::size(words); ++place)
        call.add_text(std::string(place % 4 + 2, static_cast<char>('a' + place)));
    call.bags.assign(std::begin(words), std::end(words));
    for (uint32_t place = 0; place != 6; ++place) {
        call.add_text(std::string(27, static_cast<char>('p' + place)));
        call.bags.push_back(100 + place);
    }
    call.attract = edges_of(call.count(), {{0, 1}, {1, 0}, {3, 5}});
    return call;
}

std::vector<uint8_t> answer_of(call_t const& call, size_t rows, int32_t scalar, size_t padding) {
    trainer_ptr const trainer = make_trainer(make_executor(), tiny_options(uform_objective_contrastive_k));
    size_t row_bytes = 0;
    require(uform_scalar_row_bytes(scalar, hidden_k, &row_bytes), "row bytes");
    std::vector<uint8_t> bytes(rows * (row_bytes + padding), 0xAB);
    uform_step_t step = call.step();
    step.output = {bytes.data(), rows, row_bytes + padding, scalar};
    require(uform_trainer_step(trainer.get(), &step, nullptr), "step");
    return bytes;
}

/** The pooled embedding of one bag's items in a call of their own. */
std::vector<float> embedding_alone(call_t const& call, uint32_t word) {
    call_t alone;
    for (size_t item = 0; item != call.count(); ++item)
        if (call.bags[item] == word)
            alone.add_text(std::string(call.bytes[item].begin(), call.bytes[item].end()));
    alone.bags.assign(alone.count(), 3);
    std::vector<uint8_t> const bytes = answer_of(alone, 1, uform_scalar_float32_k, 0);
    std::vector<float> row(hidden_k);
    std::memcpy(row.data(), bytes.data(), bytes.size());
    return row;
}

void test_answers_bags_in_order() {
    call_t const call = bags_call();
    uform_items_t const items = call.items();
    size_t rows = 0;
    require(uform_items_bags(&items, &rows), "bags");
    CHECK(rows == 13);
    std::vector<uint8_t> const answered = answer_of(call, rows, uform_scalar_float32_k, 0);
    std::vector<float> embeddings(rows * hidden_k);
    std::memcpy(embeddings.data(), answered.data(), answered.size());
    constexpr uint32_t order[] = {70, 8, 5, 1u << 31, 0, 12, 13, 100, 101, 102, 103, 104, 105};
    for (size_t row = 0; row != rows; ++row) {
        std::vector<float> const got(embeddings.begin() + static_cast<std::ptrdiff_t>(row * hidden_k),
                                     embeddings.begin() + static_cast<std::ptrdiff_t>((row + 1) * hidden_k));
        bool const dropped = row >= kept_bags_k;
        std::vector<float> const expected = dropped ? std::vector<float>(hidden_k) : embedding_alone(call, order[row]);
        if (!CHECK(largest_difference(got, expected) <= (dropped ? 0 : 1e-6)))
            std::fprintf(stderr, "row %zu differs by %g\n", row, largest_difference(got, expected));
    }
    for (int32_t scalar : scalars_k) {
        size_t row_bytes = 0;
        require(uform_scalar_row_bytes(scalar, hidden_k, &row_bytes), "row bytes");
        std::vector<uint8_t> const rows_bytes = answer_of(call, rows, scalar, 0);
        std::vector<uint8_t> expected(rows * row_bytes);
        require(uform_scalar_convert(embeddings.data(), kept_bags_k, hidden_k, scalar, expected.data()), "convert");
        CHECK(rows_bytes == expected); // dropped bags are zero in every type
        std::vector<uint8_t> const spaced = answer_of(call, rows, scalar, 24);
        for (size_t row = 0; row != rows; ++row)
            CHECK(!std::memcmp(spaced.data() + row * (row_bytes + 24), expected.data() + row * row_bytes, row_bytes));
    }
}

/* ------------------------------------------------------------------------------------------------ statistics */

void test_counts_what_is_lost() {
    trainer_ptr const trainer = make_trainer(make_executor(), tiny_options(uform_objective_joint_k));
    call_t call;
    call.add_text(std::string(40, 'x'));
    call.add_text(std::string(31, 'y'));
    call.add_text(std::string(32, 'z'));
    CHECK(run_step(trainer, call).truncated == 2);
    CHECK(run_step(trainer, call).dropped == 0);

    call_t crowd;
    for (int item = 0; item != 9; ++item)
        crowd.add_text(std::string(20, static_cast<char>('a' + item)));
    crowd.attract = edges_of(crowd.count(), {{0, 8}, {8, 0}}); // item 8 is dropped, and its edges with it
    uform_step_t const step = crowd.step();
    require(uform_trainer_step(trainer.get(), &step, nullptr), "step");
    auto const stats = run_step(trainer, crowd);
    CHECK(stats.dropped == 10);
    CHECK(stats.truncated == 0);
    CHECK(stats.contrastive_loss == 0);
    CHECK(run_step(trainer, call).dropped == 0);
}

/* A third party's objective, to see its term, its parameter and its place in the total. */

uint32_t probe_term_handle, probe_parameter_handle;

uform_objective_plugin_t const probe_plugin = {
    .abi_version = UFORM_PLUGIN_ABI_VERSION,
    .bytes = sizeof(uform_objective_plugin_t),
    .name = "probe",
    .taps = uform_tap_bags_k,
    .capturable = 0,
    .fields = nullptr,
    .fields_count = 0,
    .config_bytes = 0,
    .derive = [](void*, uform_run_t const*, uform_declare_t const*) { return uform_status_success_k; },
    .create =
        [](void const*, uform_run_t const*, uform_declare_t const* declare, void** self) {
            *self = nullptr;
            uform_parameter_request_t request{};
            request.name = "level";
            request.rows = 1;
            request.kind = uform_parameter_kind_plain_k;
            request.value = 2;
            uform_status_t const status = declare->parameter(declare->host, &request, &probe_parameter_handle);
            return status ? status : declare->term(declare->host, "probe_loss", 0.5, &probe_term_handle);
        },
    .destroy = [](void*) {},
    .covered_capacity = [](void*) { return size_t(0); },
    .plan = [](void*, uform_plan_t const*, uint32_t) { return uform_status_success_k; },
    .forward_backward =
        [](void*, uform_pass_t const* pass) {
            float const level = *static_cast<float const*>(pass->weights[probe_parameter_handle]);
            *pass->terms[probe_term_handle] += level;
            *pass->gradients[probe_parameter_handle] += 0.5f;
            return uform_status_success_k;
        },
    .extra_columns = nullptr,
    .extra_fill = nullptr,
    .answer_kind = uform_answer_kind_none_k,
    .infer = nullptr,
    .columns_forward = nullptr,
    .columns_backward = nullptr,
};

void test_third_partys_term() {
    require(uform_objective_register(&probe_plugin), "register");
    CHECK(uform_objective_register(&probe_plugin) == uform_status_invalid_argument_k);
    uform_objective_plugin_t half = probe_plugin;
    half.name = "half";
    half.answer_kind = uform_answer_kind_tokens_k;
    CHECK(uform_objective_register(&half) == uform_status_invalid_argument_k &&
          std::string(uform_last_error()) == "plugin half: its function infer is missing");
    half.answer_kind = uform_answer_kind_none_k;
    half.extra_columns = [](void*, uform_extra_t const*, uint32_t*, char*, size_t) { return uform_status_success_k; };
    CHECK(uform_objective_register(&half) == uform_status_invalid_argument_k &&
          std::string(uform_last_error()) == "plugin half: its function extra_fill is missing");
    temporary_folder const folder;
    std::string const path = folder.file("run.safetensors");
    auto options = tiny_options(uform_objective_joint_k);
    uform_plugin_option_t const option{"probe", nullptr, 0};
    options.plugins = &option;
    options.plugins_count = 1;
    trainer_ptr const trainer = make_trainer(make_executor(2), options);
    auto const stats = run_step(trainer, image_text_call());
    if (CHECK(stats.extra_count == 1)) {
        CHECK(std::string(stats.extra[0].name) == "probe_loss");
        CHECK(stats.extra[0].value == 4); // 2 on each device
        double const own = stats.contrastive_loss + stats.masked_text_loss + stats.masked_image_loss;
        CHECK(std::fabs(stats.loss - own - 2) < 1e-12);
    }
    float level = 0;
    require(uform_trainer_read(trainer.get(), "probe.level", 0, &level, 1), "read");
    CHECK(level < 2);
    require(uform_trainer_save(trainer.get(), path.c_str(), nullptr, nullptr, 0), "save");
    uform_trainer_options_t resumed{};
    resumed.resume = path.c_str();
    CHECK(same_run(trainer, make_trainer(make_executor(), resumed)));
}

/* ------------------------------------------------------------------------------------------------ submitted steps */

void test_a_refused_step_disturbs_none_behind_it() {
    executor_ptr const executor = make_executor();
    auto options = tiny_options(uform_objective_contrastive_k);
    options.contrastive.pair_loss = uform_pair_loss_form_sigmoid_k;
    trainer_ptr const ahead = make_trainer(executor, options), alone = make_trainer(executor, options);
    call_t const good = image_text_call();
    call_t heavy = image_text_call();
    heavy.attract.weights.assign(heavy.attract.ids.size(), 3e38f);
    std::vector<pending_ptr> pending;
    for (bool refused : {false, true, false, true, false})
        pending.push_back(submit_step(ahead, (refused ? heavy : good).step()));
    uint64_t applied = 0;
    for (size_t step = 0; step != pending.size(); ++step) {
        uform_trainer_step_stats_t stats{};
        uform_status_t const status = uform_pending_wait(pending[step].get(), &stats);
        CHECK(status == (step % 2 ? uform_status_not_finite_k : uform_status_success_k));
        if (step % 2 == 0)
            CHECK(stats.step == ++applied);
    }
    for (int step = 0; step != 3; ++step)
        run_step(alone, good);
    CHECK(same_run(ahead, alone)); // without masks no draw tells the calls apart
}

void test_outcomes_outlive_the_trainer() {
    trainer_ptr trainer = make_trainer(make_executor(), tiny_options(uform_objective_joint_k));
    pending_ptr const pending = submit_step(trainer, image_text_call().step());
    pending_ptr const unwanted = submit_step(trainer, image_text_call().step());
    trainer.reset();
    uform_trainer_step_stats_t stats{};
    require(uform_pending_wait(pending.get(), &stats), "wait");
    CHECK(stats.step == 1 && stats.loss > 0);
}

void test_outcomes_that_nobody_fetches_are_bounded() {
    constexpr size_t most = 64;
    trainer_ptr const trainer = make_trainer(make_executor(), tiny_options(uform_objective_contrastive_k));
    call_t call;
    call.add_text("a");
    uform_step_t const step = call.step();
    std::vector<pending_ptr> pending;
    for (size_t place = 0; place != most; ++place)
        pending.push_back(submit_step(trainer, step));
    uform_pending_t* one_more = nullptr;
    CHECK(uform_trainer_submit(trainer.get(), &step, &one_more) == uform_status_invalid_argument_k && !one_more);
    pending.pop_back();
    pending.push_back(submit_step(trainer, step));
    uform_trainer_step_stats_t stats{};
    require(uform_pending_wait(pending.back().get(), &stats), "wait");
    CHECK(stats.step == most + 1);
}

/* ------------------------------------------------------------------------------------------------ resources */

void test_steps_allocate_nothing() {
    for (int32_t devices : {1, 2}) {
        trainer_ptr const trainer = make_trainer(make_executor(devices), tiny_options(uform_objective_joint_k));
        call_t call = image_text_call();
        call.bags = {4, 5, 6, 7, 8, 9, 1, 2, 3, 4};
        output_t output(9);
        uform_step_t step = call.step();
        step.output = output.view;
        uform_trainer_step_stats_t stats{};
        require(uform_trainer_step(trainer.get(), &step, &stats), "step");
        size_t const before = allocations();
        for (int repeat = 0; repeat != 3; ++repeat)
            require(uform_trainer_step(trainer.get(), &step, &stats), "step");
        size_t const taken = allocations() - before;
        if (!CHECK(taken == 0))
            std::fprintf(stderr, "%zu allocations\n", taken);

        uform_pending_t* pending[4] = {};
        size_t const before_submitted = allocations();
        for (uform_pending_t*& one : pending)
            require(uform_trainer_submit(trainer.get(), &step, &one), "submit");
        for (uform_pending_t* one : pending) {
            require(uform_pending_wait(one, &stats), "wait");
            uform_pending_free(one);
        }
        size_t const taken_by_submitted = allocations() - before_submitted; // before CHECK makes its text
        CHECK(taken_by_submitted == 0);
    }
}

void test_outlives_its_executor() {
    executor_ptr executor = make_executor(2);
    trainer_ptr const trainer = make_trainer(executor, tiny_options(uform_objective_joint_k));
    executor.reset();
    CHECK(run_step(trainer, image_text_call()).step == 1);
}

} // namespace

int main() {
    test_loss_falls();
    test_schedule();
    test_repeats_itself();
    test_devices_change_nothing();
    test_resumes();
    test_resume_refuses_another_shape();
    test_answers_bags_in_order();
    test_counts_what_is_lost();
    test_third_partys_term();
    test_a_refused_step_disturbs_none_behind_it();
    test_outcomes_outlive_the_trainer();
    test_outcomes_that_nobody_fetches_are_bounded();
    test_steps_allocate_nothing();
    test_outlives_its_executor();
    return report();
}
