// Late interaction through the C API: steps on one device and on several, budgets, token vectors, given vectors.
#include <cmath>
#include <string>

#include "tests/native/check.h"
#include "tests/native/problem.h"

using namespace native_test;

namespace {

/** Texts are queries, images are documents; one text is both. */
call_t make_call() {
    call_t call = image_text_call();
    for (uint8_t const modality : call.modalities)
        call.sides.push_back(modality == uform_modality_text_k ? 1 : 2);
    call.sides[2] = 3;
    return call;
}

trainer_ptr make_late(executor_ptr const& executor, uform_late_interaction_t const& late) {
    uform_trainer_options_t options = tiny_options(uform_objective_joint_k);
    options.late_interaction = &late;
    return make_trainer(executor, options);
}

void test_steps() {
    executor_ptr const one = make_executor(1), three = make_executor(3);
    call_t const call = make_call();
    for (int32_t form = 1; form != 4; ++form) {
        uform_late_interaction_t late{};
        late.width = 16, late.max_query_span = 6, late.pair_loss = form;
        trainer_ptr const alone = make_late(one, late), shared = make_late(three, late);
        for (int step = 0; step != 3; ++step) {
            uform_trainer_step_stats_t const here = run_step(alone, call), there = run_step(shared, call);
            CHECK(here.late_interaction_loss > 0);
            CHECK(std::fabs(here.late_interaction_loss - there.late_interaction_loss) <
                  1e-4 * here.late_interaction_loss);
            CHECK(here.extra_count == 1 && here.extra[0].value == 3 && there.extra[0].value == 3);
        }
    }
}

void test_budgets() {
    executor_ptr const executor = make_executor();
    call_t const call = make_call();
    uform_step_t const step = call.step();
    auto const refused = [&](uform_late_interaction_t const& late, char const* field) {
        trainer_ptr const trainer = make_late(executor, late);
        CHECK(uform_trainer_step(trainer.get(), &step, nullptr) == uform_status_invalid_argument_k);
        CHECK(std::string(uform_last_error()).find(field) != std::string::npos);
    };
    uform_late_interaction_t late{};
    late.max_query_tokens_per_device = 3;
    refused(late, "max_query_tokens_per_device");
    late = {}, late.max_documents_per_device = 3;
    refused(late, "max_documents_per_device");
    late = {}, late.max_document_tokens_per_device = 3;
    refused(late, "max_document_tokens_per_device");
}

void test_token_vectors() {
    temporary_folder const folder;
    executor_ptr const executor = make_executor(2);
    uform_late_interaction_t late{};
    late.width = 16, late.max_query_span = 6;
    trainer_ptr const trainer = make_late(executor, late);
    call_t const call = make_call();
    run_step(trainer, call);
    require(uform_trainer_save(trainer.get(), folder.file("run").c_str(), nullptr, nullptr, 0), "save");
    model_ptr const model = make_model(executor, folder.file("run"));
    uform_items_t const items = call.items();
    std::vector<uint64_t> offsets(call.count() + 1);
    size_t width = 0;
    require(uform_model_measure_tokens(model.get(), &items, call.sides.data(), offsets.data(), &width), "measure");
    CHECK(width == 16 && offsets[1] == 5 && offsets[2] == 10 && offsets[3] == 18 && offsets[7] - offsets[6] == 6);
    std::vector<float> values(offsets.back() * width);
    uform_output_t output{values.data(), offsets.back(), sizeof(float) * width, uform_scalar_float32_k};
    require(uform_model_embed_tokens(model.get(), &items, call.sides.data(), &output, nullptr, nullptr, nullptr),
            "embed_tokens");
    for (uint64_t row = 0; row != offsets.back(); ++row) {
        double square = 0;
        for (size_t i = 0; i != width; ++i)
            square += double(values[row * width + i]) * double(values[row * width + i]);
        CHECK(std::fabs(square - 1) < 1e-5);
    }
    --output.rows;
    CHECK(uform_model_embed_tokens(model.get(), &items, call.sides.data(), &output, nullptr, nullptr, nullptr) ==
          uform_status_invalid_argument_k);
}

void test_given_vectors() {
    executor_ptr const executor = make_executor();
    std::vector<float> const tokens{1, 0, -1, 0, -0.6f, 0.8f};
    std::vector<float> gradient(tokens.size()), row_losses(2);
    std::vector<uint64_t> offsets{0, 1, 3};
    std::vector<uint8_t> const sides{1, 2};
    std::vector<uint32_t> rows(2);
    edge_set const edges = edges_of(2, {{0, 1}});
    double loss = 0;
    float temperature = 0, bias = 0;
    size_t counted = 0;
    uform_late_interaction_loss_t problem{};
    problem.tokens = tokens.data(), problem.offsets = offsets.data(), problem.count = 2, problem.width = 2;
    problem.sides = sides.data(), problem.relations.repel = edges.view();
    problem.late_interaction.pair_loss = uform_pair_loss_form_sigmoid_k;
    problem.late_interaction.bias = 1e-30, problem.late_interaction.inverse_temperature = 1;
    problem.loss = &loss, problem.gradient = gradient.data(), problem.row_losses = row_losses.data();
    problem.log_inverse_temperature_gradient = &temperature, problem.bias_gradient = &bias;
    problem.rows = rows.data(), problem.rows_count = &counted;
    require(uform_late_interaction_loss(executor.get(), &problem), "loss");
    // log(1 + e^-0.6): padding, of which there is none, would have made it log 2.
    CHECK(std::fabs(loss - std::log1p(std::exp(-0.6))) < 1e-6);
    CHECK(counted == 1 && rows[0] == 0);
    CHECK(gradient[2] == 0 && gradient[3] == 0 && gradient[4] > 0);
    offsets = {0, 3, 3};
    CHECK(uform_late_interaction_loss(executor.get(), &problem) == uform_status_invalid_argument_k);
    offsets = {0, 4, 3};
    CHECK(uform_late_interaction_loss(executor.get(), &problem) == uform_status_invalid_argument_k);
}

} // namespace

int main() {
    test_steps();
    test_budgets();
    test_token_vectors();
    test_given_vectors();
    return report();
}
