// What a trainer refuses leaves no trace: bad arguments, numbers that are not finite, and cancelled verbs.
#include <cmath>
#include <functional>
#include <limits>

#include "check.h"
#include "problem.h"

using namespace native_test;

namespace {

/** A call and the step that borrows from it, to be spoilt. */
struct spoilt_t {
    call_t call = image_text_call();
    std::vector<float> values = std::vector<float>(20 * hidden_k);
    uform_step_t step{};
    std::vector<uint64_t> tape_offsets;
    std::vector<uint8_t> tape;

    void view() {
        step = call.step();
        step.output = {values.data(), call.count(), sizeof(float) * hidden_k, uform_scalar_float32_k};
    }
    /** A tape in the place of the contents. */
    void view_tape(std::vector<uint64_t> offsets, size_t bytes) {
        tape_offsets = std::move(offsets);
        tape.assign(bytes, 'a');
        view();
        step.items.count = tape_offsets.size() - 1;
        step.items.modalities = nullptr;
        step.items.contents = nullptr;
        step.items.tape = tape.data();
        step.items.tape_offsets = tape_offsets.data();
        step.items.tape_bytes = tape.size();
        step.relations = {};
        step.output.data = nullptr;
    }
};

struct refusal_t {
    char const* part; /* of the message */
    std::function<void(spoilt_t&)> spoil;
};

uform_edges_t& attract(spoilt_t& spoilt) {
    spoilt.view();
    return spoilt.step.relations.attract;
}

std::vector<refusal_t> bad_edges() {
    float const nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
    auto const weighted = [](float weight) {
        return [weight](spoilt_t& spoilt) {
            spoilt.call.attract.weights.assign(spoilt.call.attract.ids.size(), 1);
            spoilt.call.attract.weights[3] = weight;
            spoilt.view();
        };
    };
    return {
        {"attract.ids[2]", [](spoilt_t& spoilt) { spoilt.call.attract.ids[2] = 10, spoilt.view(); }},
        {"attract.ids[9]", [](spoilt_t& spoilt) { spoilt.call.attract.ids[9] = UINT32_MAX, spoilt.view(); }},
        {"attract.offsets[0]", [](spoilt_t& spoilt) { spoilt.call.attract.offsets[0] = 1, spoilt.view(); }},
        {"attract.offsets[4]", [](spoilt_t& spoilt) { spoilt.call.attract.offsets[4] = 2, spoilt.view(); }},
        {"attract.offsets[10]", [](spoilt_t& spoilt) { spoilt.call.attract.offsets[10] = 11, spoilt.view(); }},
        {"attract.offsets", [](spoilt_t& spoilt) { spoilt.call.attract.offsets.pop_back(), spoilt.view(); }},
        {"attract.offsets", [](spoilt_t& spoilt) { attract(spoilt).offsets = nullptr; }},
        {"attract.ids", [](spoilt_t& spoilt) { attract(spoilt).ids = nullptr; }},
        {"attract.weights[3]", weighted(nan)},
        {"attract.weights[3]", weighted(inf)},
        {"attract.weights[3]", weighted(-1)},
        {"attract.weights", [](spoilt_t& spoilt) { spoilt.call.attract.weights.assign(9, 1), spoilt.view(); }},
        {"ignore.weights",
         [](spoilt_t& spoilt) {
             spoilt.call.ignore = edges_of(spoilt.call.count(), {{0, 2}});
             spoilt.call.ignore.weights.assign(1, 1);
             spoilt.view();
         }},
        {"max_edges_per_device",
         [](spoilt_t& spoilt) {
             std::vector<std::pair<uint32_t, uint32_t>> pairs(65, {1, 2}); // 64 are allowed
             spoilt.call.repel = edges_of(spoilt.call.count(), pairs);
             spoilt.view();
         }},
    };
}

std::vector<refusal_t> bad_items() {
    return {
        {"contents", [](spoilt_t& spoilt) { spoilt.view(), spoilt.step.items.count = 0; }},
        {"temperature_groups",
         [](spoilt_t& spoilt) { spoilt.call.groups.assign(10, 0), spoilt.call.groups[7] = 1, spoilt.view(); }},
        {"modalities[3]", [](spoilt_t& spoilt) { spoilt.call.modalities[3] = 2, spoilt.view(); }},
        {"modalities[9]", [](spoilt_t& spoilt) { spoilt.call.modalities[9] = 255, spoilt.view(); }},
        {"contents[1]", [](spoilt_t& spoilt) { spoilt.call.modalities[1] = 0, spoilt.view(); }},
        {"contents[0]", [](spoilt_t& spoilt) { spoilt.call.modalities[0] = 1, spoilt.view(); }},
        {"contents[5]", [](spoilt_t& spoilt) { spoilt.call.contents[5].extents[1] = 0, spoilt.view(); }},
        {"contents[5]", [](spoilt_t& spoilt) { spoilt.call.contents[5].rank = 4, spoilt.view(); }},
        {"contents[5]", [](spoilt_t& spoilt) { spoilt.call.contents[5].element = 9, spoilt.view(); }},
        {"contents[4]", [](spoilt_t& spoilt) { spoilt.call.contents[4].data = nullptr, spoilt.view(); }},
        {"contents[5]", [](spoilt_t& spoilt) { spoilt.call.contents[5].data = nullptr, spoilt.view(); }},
        {"sides[2]",
         [](spoilt_t& spoilt) { spoilt.call.sides.assign(10, 1), spoilt.call.sides[2] = 4, spoilt.view(); }},
        {"offsets[2]", [](spoilt_t& spoilt) { spoilt.view_tape({0, 3, 2, 6}, 6); }},
        {"offsets[3]", [](spoilt_t& spoilt) { spoilt.view_tape({0, 3, 5, 7}, 6); }},
        {"offsets[3]", [](spoilt_t& spoilt) { spoilt.view_tape({0, 3, 5, UINT64_MAX}, 6); }},
        {"contents",
         [](spoilt_t& spoilt) { spoilt.view_tape({0, 3, 6}, 6), spoilt.step.items.tape_offsets = nullptr; }},
        {"contents", [](spoilt_t& spoilt) { spoilt.view_tape({0, 3, 6}, 6), spoilt.step.items.tape = nullptr; }},
        {"output", [](spoilt_t& spoilt) { spoilt.view(), spoilt.step.output.rows = 9; }},
        {"output", [](spoilt_t& spoilt) { spoilt.view(), spoilt.step.output.rows = 11; }},
        {"output", [](spoilt_t& spoilt) { spoilt.view(), spoilt.step.output.row_bytes = 255; }},
        {"scalar", [](spoilt_t& spoilt) { spoilt.view(), spoilt.step.output.scalar = 5; }},
        {"choices",
         [](spoilt_t& spoilt) {
             static uform_choice_texts_t const choices{};
             spoilt.view();
             spoilt.step.choices = &choices;
         }},
    };
}

void check_refused(trainer_ptr const& trainer, refusal_t const& refusal) {
    std::vector<float> const before = values_of(trainer);
    spoilt_t spoilt;
    refusal.spoil(spoilt);
    uform_trainer_step_stats_t stats{};
    uform_status_t const status = uform_trainer_step(trainer.get(), &spoilt.step, &stats);
    std::string const message = uform_last_error();
    if (!CHECK(status == uform_status_invalid_argument_k) || !CHECK(message.find(refusal.part) != std::string::npos))
        std::fprintf(stderr, "%s: status %d, %s\n", refusal.part, status, message.c_str());
    CHECK(same_bits(values_of(trainer), before));
}

void test_bad_arguments_leave_no_trace() {
    for (int32_t devices : {1, 2}) {
        executor_ptr const executor = make_executor(devices);
        auto options = tiny_options(uform_objective_joint_k);
        if (devices == 2)
            options.contrastive.max_edges_per_device = 32;
        trainer_ptr const tried = make_trainer(executor, options), twin = make_trainer(executor, options);
        run_steps(tried, image_text_call(), 2);
        run_steps(twin, image_text_call(), 2);
        for (auto const& refusals : {bad_edges(), bad_items()})
            for (refusal_t const& refusal : refusals)
                check_refused(tried, refusal);
        auto const tried_stats = run_step(tried, image_text_call(3)), twin_stats = run_step(twin, image_text_call(3));
        CHECK(tried_stats.step == 3);
        CHECK(tried_stats.loss == twin_stats.loss); // so the masks were the same: no draw was spent
        CHECK(tried_stats.dropped == 0);
        CHECK(same_run(tried, twin));
    }
}

/** What nothing in a run reads is refused by the core itself, so that a C program is told as well. */
void test_what_nothing_reads() {
    executor_ptr const executor = make_executor();
    trainer_ptr const tried = make_trainer(executor, tiny_options(uform_objective_masked_k));
    trainer_ptr const twin = make_trainer(executor, tiny_options(uform_objective_masked_k));
    refusal_t const refusals[] = {
        {"relations.attract has 10 ids: expected none", [](spoilt_t& spoilt) { spoilt.view(); }},
        {"temperature_groups[7] is 1",
         [](spoilt_t& spoilt) {
             spoilt.call.groups.assign(10, 0), spoilt.call.groups[7] = 1;
             spoilt.view(), spoilt.step.relations = {};
         }},
        {"sides[2] is QUERY_AND_DOCUMENT",
         [](spoilt_t& spoilt) {
             spoilt.call.sides.assign(10, 0), spoilt.call.sides[2] = 3;
             spoilt.view(), spoilt.step.relations = {};
         }},
    };
    for (refusal_t const& refusal : refusals)
        check_refused(tried, refusal);
    call_t call = image_text_call(1, uform_objective_masked_k);
    call.groups.assign(10, 0), call.sides.assign(10, 0);
    uform_step_t const step = call.step();
    for (uform_trainer_t* one : {tried.get(), twin.get()})
        CHECK(uform_trainer_step(one, &step, nullptr) == uform_status_success_k);
    CHECK(same_run(tried, twin)); // so no draw was spent
}

void check_not_made(executor_ptr const& executor, uform_trainer_options_t const& options, char const* part) {
    uform_trainer_t* made = nullptr;
    char* plan = nullptr;
    CHECK(uform_trainer_init_ram(executor.get(), &options, &made) == uform_status_invalid_argument_k);
    if (!CHECK(std::string(uform_last_error()).find(part) != std::string::npos))
        std::fprintf(stderr, "%s: %s\n", part, uform_last_error());
    CHECK(uform_trainer_plan_ram(executor.get(), &options, &plan) == uform_status_invalid_argument_k);
    CHECK(!made && !plan);
}

void test_configuration_that_nothing_reads() {
    executor_ptr const executor = make_executor();
    auto masked = tiny_options(uform_objective_masked_k);
    masked.contrastive.temperature_groups = 2;
    check_not_made(executor, masked, "Contrastive.temperature_groups is 2: nothing reads it");
    masked.contrastive = {};
    masked.contrastive.negatives = uform_negatives_named_k;
    check_not_made(executor, masked, "Contrastive.negatives is NAMED: nothing reads it");
    auto contrastive = tiny_options(uform_objective_contrastive_k);
    contrastive.masking.audio_weight = -0.0;
    make_trainer(executor, contrastive); // a zero
    contrastive.masking.audio_weight = std::numeric_limits<double>::quiet_NaN();
    check_not_made(executor, contrastive, "Masking.audio_weight is not finite: nothing reads it");
    contrastive.masking = {};
    contrastive.contrastive.bias = -1, contrastive.contrastive.pair_loss = uform_pair_loss_form_ranked_k;
    check_not_made(executor, contrastive, "Contrastive.bias is -1: nothing reads it, since pair_loss is RANKED");
}

void test_bad_names() {
    trainer_ptr const trainer = make_trainer(make_executor(), tiny_options(uform_objective_masked_k));
    float values[hidden_k] = {};
    CHECK(uform_trainer_read(trainer.get(), "norm3", 0, values, hidden_k) == uform_status_invalid_argument_k);
    CHECK(std::string(uform_last_error()).find("norm3") != std::string::npos);
    CHECK(uform_trainer_read(trainer.get(), "norm", 0, values, hidden_k - 1) == uform_status_invalid_argument_k);
    CHECK(uform_trainer_read(trainer.get(), "norm", 4, values, hidden_k) == uform_status_invalid_argument_k);
    CHECK(uform_trainer_write(trainer.get(), "norm", values, hidden_k + 1) == uform_status_invalid_argument_k);
    CHECK(uform_trainer_read(trainer.get(), "norm", 0, values, hidden_k) == uform_status_success_k);
}

/* ------------------------------------------------------------------------------------------------ not finite */

/** Spoils one weight, steps, and puts it back. */
void check_not_finite(trainer_ptr const& trainer, char const* name, size_t count, float poison,
                      call_t const& call = image_text_call()) {
    std::vector<float> good(count);
    require(uform_trainer_read(trainer.get(), name, 0, good.data(), count), "read");
    std::vector<float> bad = good;
    bad[count / 2] = poison;
    require(uform_trainer_write(trainer.get(), name, bad.data(), count), "write");
    std::vector<float> const weights = values_of(trainer), first = values_of(trainer, 2),
                             second = values_of(trainer, 3);
    uform_step_t const step = call.step();
    uform_trainer_step_stats_t stats{};
    uform_status_t const status = uform_trainer_step(trainer.get(), &step, &stats);
    std::string const message = uform_last_error();
    if (!CHECK(status == uform_status_not_finite_k) || !CHECK(message.find("_loss") != std::string::npos))
        std::fprintf(stderr, "%s: status %d, %s\n", name, status, message.c_str());
    CHECK(same_bits(values_of(trainer), weights));
    CHECK(same_bits(values_of(trainer, 2), first) && same_bits(values_of(trainer, 3), second));
    require(uform_trainer_write(trainer.get(), name, good.data(), count), "write");
}

void test_not_finite_changes_no_weight() {
    float const inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
    for (int32_t devices : {1, 2})
        for (int32_t objective : {uform_objective_contrastive_k, uform_objective_joint_k}) {
            executor_ptr const executor = make_executor(devices);
            trainer_ptr const tried = make_trainer(executor, tiny_options(objective));
            trainer_ptr const twin = make_trainer(executor, tiny_options(objective));
            run_step(tried, image_text_call());
            run_step(twin, image_text_call());
            check_not_finite(tried, "blocks.0.norm1", hidden_k, inf);
            check_not_finite(tried, "norm", hidden_k, nan);
            check_not_finite(tried, "blocks.1.qkv", 3 * hidden_k * hidden_k, -inf);
            auto const tried_stats = run_step(tried, image_text_call()), twin_stats = run_step(twin, image_text_call());
            CHECK(tried_stats.step == 2 && twin_stats.step == 2);
            CHECK(std::isfinite(tried_stats.loss));
            // Refused numbers spend draws, which only masks can tell.
            bool const draws = objective == uform_objective_joint_k;
            CHECK((tried_stats.loss == twin_stats.loss) == !draws);
            CHECK(same_run(tried, twin) == !draws);
        }
}

/** The draws that a refused step spent are saved: the resumed run follows. */
void test_spent_draws_are_saved() {
    temporary_folder const folder;
    std::string const path = folder.file("run.safetensors");
    call_t const call = image_text_call(1, uform_objective_masked_k);
    executor_ptr const executor = make_executor();
    trainer_ptr const straight = make_trainer(executor, tiny_options(uform_objective_masked_k));
    run_step(straight, call);
    check_not_finite(straight, "norm", hidden_k, std::numeric_limits<float>::infinity(), call);
    require(uform_trainer_save(straight.get(), path.c_str(), nullptr, nullptr, 0), "save");
    uform_trainer_options_t options{};
    options.resume = path.c_str();
    trainer_ptr const resumed = make_trainer(executor, options);
    CHECK(run_step(straight, call).loss == run_step(resumed, call).loss);
    CHECK(same_run(straight, resumed));
}

/* ------------------------------------------------------------------------------------------------ cancelling */

struct told_t {
    uint64_t cancel_at; /* 0: never */
    uint64_t calls = 0, done = 0, total = 0;
};

int tell(uint64_t done, uint64_t total, void* state) {
    told_t& told = *static_cast<told_t*>(state);
    ++told.calls;
    told.done = done, told.total = total;
    return told.calls != told.cancel_at;
}

void test_cancels_init() {
    executor_ptr const executor = make_executor();
    auto options = tiny_options(uform_objective_joint_k);
    told_t told{0};
    options.progress = tell;
    options.progress_state = &told;
    make_trainer(executor, options);
    CHECK(told.done == told.total && told.calls == told.total && told.total > 10);
    uint64_t const total = told.total;
    for (uint64_t place : {uint64_t(1), total / 2, total}) {
        told = {place};
        uform_trainer_t* made = nullptr;
        CHECK(uform_trainer_init_ram(executor.get(), &options, &made) == uform_status_cancelled_k);
        CHECK(!made && told.calls == place);
    }
    told = {0};
    options.progress_steps = 4;
    make_trainer(executor, options);
    CHECK(told.done == total && told.calls == (total + 3) / 4);
}

void test_cancels_save() {
    temporary_folder const folder;
    std::string const path = folder.file("run.safetensors");
    executor_ptr const executor = make_executor();
    trainer_ptr const trainer = make_trainer(executor, tiny_options(uform_objective_joint_k));
    run_step(trainer, image_text_call());
    told_t told{1};
    auto const save = [&] { return uform_trainer_save(trainer.get(), path.c_str(), tell, &told, 1); };
    CHECK(save() == uform_status_cancelled_k);
    CHECK(folder.files() == 0);
    told = {0};
    CHECK(save() == uform_status_success_k);
    CHECK(folder.files() == 1 && told.done == told.total);
    uint64_t const total = told.total;
    uform_trainer_options_t resumed{};
    resumed.resume = path.c_str();
    trainer_ptr const saved = make_trainer(executor, resumed);
    run_step(trainer, image_text_call());
    for (uint64_t place : {uint64_t(1), total / 2, total}) {
        told = {place};
        CHECK(save() == uform_status_cancelled_k);
        CHECK(folder.files() == 1);
        CHECK(same_run(make_trainer(executor, resumed), saved)); // the old file is whole
    }
    run_step(saved, image_text_call());
    CHECK(same_run(saved, trainer)); // a cancelled save leaves the run as it was
}

void test_unwritable_path() {
    temporary_folder const folder;
    trainer_ptr const trainer = make_trainer(make_executor(), tiny_options(uform_objective_masked_k));
    std::string const path = folder.file("absent/run.safetensors");
    CHECK(uform_trainer_save(trainer.get(), path.c_str(), nullptr, nullptr, 0) == uform_status_file_k);
    CHECK(std::string(uform_last_error()).find(path) != std::string::npos);
    CHECK(run_step(trainer, image_text_call(1, uform_objective_masked_k)).step == 1);
}

} // namespace

int main() {
    test_bad_arguments_leave_no_trace();
    test_what_nothing_reads();
    test_configuration_that_nothing_reads();
    test_bad_names();
    test_not_finite_changes_no_weight();
    test_spent_draws_are_saved();
    test_cancels_init();
    test_cancels_save();
    test_unwritable_path();
    return report();
}
