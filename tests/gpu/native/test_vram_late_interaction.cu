// Late interaction through the C API: a step on the GPU and its token vectors, against the same on RAM.
#include <cmath>
#include <numeric>
#include <vector>

#include "tests/gpu/native/gpu_check.h"
#include "tests/native/problem.h"

using namespace gpu_test;

namespace {

using native_test::call_t;
using native_test::executor_ptr;
using native_test::model_ptr;
using native_test::trainer_ptr;

constexpr int32_t width_k = 32, span_k = 6;

executor_ptr make_executor(bool gpu, int32_t devices) {
    std::vector<std::int32_t> const indices(static_cast<std::size_t>(devices), 0);
    uform_executor_t* made = nullptr;
    require(gpu ? uform_executor_init_vram(indices.data(), indices.size(), &made)
                : uform_executor_init_ram(devices, 2, nullptr, &made),
            "executor");
    return executor_ptr(made);
}

trainer_ptr make_trainer(executor_ptr const& executor, bool gpu, int32_t objective, int32_t form) {
    uform_trainer_options_t options = native_test::tiny_options(objective);
    uform_late_interaction_t late{};
    late.width = width_k, late.max_query_span = span_k, late.pair_loss = form;
    options.late_interaction = &late;
    uform_trainer_t* made = nullptr;
    require(gpu ? uform_trainer_init_vram(executor.get(), &options, &made)
                : uform_trainer_init_ram(executor.get(), &options, &made),
            "trainer");
    return trainer_ptr(made);
}

/** Texts are queries, images are documents; one text is both. */
call_t make_call() {
    call_t call = native_test::image_text_call();
    for (std::uint8_t const modality : call.modalities)
        call.sides.push_back(modality == uform_modality_text_k ? 1 : 2);
    call.sides[2] = 3;
    return call;
}

/** Gives a run on RAM the weights that the GPU's products read. */
void round_weights(trainer_ptr const& trainer) {
    for (native_test::parameter_t const& one : native_test::parameters_of(trainer)) {
        std::vector<float> values(one.count);
        require(uform_trainer_read(trainer.get(), one.name.c_str(), 0, values.data(), one.count), "read");
        values = rounded(values);
        if (one.count > 1) // temperatures and biases stay
            require(uform_trainer_write(trainer.get(), one.name.c_str(), values.data(), one.count), "write");
    }
}

/**
 *  A similarity of vectors in bfloat16 is off by up to about 2^-11, and a score is 20 times as much. Covered columns
 * are nearly equal at first, so that rounding alone lets another of them match: a naive run shows how much that is.
 */
void check_steps(int32_t objective, int32_t form, int32_t devices) {
    constexpr double of_scores = 20. / 2048;
    std::string const name = "objective " + std::to_string(objective) + " form " + std::to_string(form) + " devices " +
                             std::to_string(devices);
    executor_ptr const here = make_executor(false, 1), there = make_executor(true, devices);
    trainer_ptr const ram = make_trainer(here, false, objective, form),
                      naive = make_trainer(here, false, objective, form);
    trainer_ptr const gpu = make_trainer(there, true, objective, form);
    round_weights(naive);
    call_t const call = make_call();
    uform_trainer_step_stats_t const expected = native_test::run_step(ram, call),
                                     got = native_test::run_step(gpu, call);
    native_test::run_step(naive, call);
    check(name + " late interaction", std::fabs(got.late_interaction_loss - expected.late_interaction_loss),
          1e-3 * expected.late_interaction_loss + of_scores);
    check(name + " loss", std::fabs(got.loss - expected.loss), 1e-3 * expected.loss + of_scores);
    check(name + " cut", got.extra_count == 1 && got.extra[0].value == 3);
    std::vector<double> const exact = to_double(native_test::values_of(ram, 1));
    double const of_naive = relative_error(native_test::values_of(naive, 1), exact);
    check(name + " gradient", relative_error(native_test::values_of(gpu, 1), exact), 2 * of_naive + 2e-2, of_naive);
    // The second step of a size is a graph.
    std::vector<uform_trainer_step_stats_t> const later = native_test::run_steps(gpu, call, 12);
    check(name + " learns", later.back().late_interaction_loss < got.late_interaction_loss);
    trainer_ptr const again = make_trainer(there, true, objective, form);
    native_test::run_steps(again, call, 13);
    check(name + " repeats itself", native_test::same_run(gpu, again));
}

/** The vectors of every item, end to end. */
std::vector<float> tokens_of(model_ptr const& model, call_t const& call, std::vector<std::uint64_t>& offsets) {
    uform_items_t const items = call.items();
    offsets.resize(call.count() + 1);
    std::size_t width = 0;
    require(uform_model_measure_tokens(model.get(), &items, call.sides.data(), offsets.data(), &width), "measure");
    std::vector<float> values(offsets.back() * width);
    uform_output_t const output{values.data(), offsets.back(), sizeof(float) * width, uform_scalar_float32_k};
    require(uform_model_embed_tokens(model.get(), &items, call.sides.data(), &output, nullptr, nullptr, nullptr),
            "embed_tokens");
    return values;
}

void check_tokens() {
    native_test::temporary_folder const folder;
    executor_ptr const here = make_executor(false, 1), there = make_executor(true, 2);
    trainer_ptr const trainer = make_trainer(there, true, uform_objective_contrastive_k, 0);
    call_t const call = make_call();
    native_test::run_step(trainer, call);
    std::string const path = folder.file("run");
    require(uform_trainer_save(trainer.get(), path.c_str(), nullptr, nullptr, 0), "save");
    uform_model_t *on_ram = nullptr, *on_gpu = nullptr;
    require(uform_model_init_ram(here.get(), path.c_str(), &on_ram), "model");
    require(uform_model_init_vram(there.get(), path.c_str(), &on_gpu), "model");
    model_ptr const ram(on_ram), gpu(on_gpu);
    std::vector<std::uint64_t> offsets, expected_offsets;
    std::vector<float> const got = tokens_of(gpu, call, offsets), expected = tokens_of(ram, call, expected_offsets);
    check("tokens", relative_error(got, to_double(expected)), 2e-2);
    check("offsets", offsets == expected_offsets);
    check("a query is cut", offsets[7] - offsets[6] == span_k);
}

} // namespace

int main() {
    for (int32_t form = 1; form != 4; ++form)
        check_steps(uform_objective_contrastive_k, form, 1);
    check_steps(uform_objective_masked_k, uform_pair_loss_form_balanced_k, 1);
    check_steps(uform_objective_joint_k, uform_pair_loss_form_balanced_k, 1);
    check_steps(uform_objective_joint_k, uform_pair_loss_form_balanced_k, 3);
    check_tokens();
    return native_test::report();
}
