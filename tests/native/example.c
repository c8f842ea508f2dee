/*
 *  A whole run in C99 through uform.h alone: four pictures and their names, a few steps, a checkpoint, a step of the
 * run that goes on from it, an embedding.
 *
 *      example PATH        # where the checkpoint goes
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <uform/uform.h>

enum { pairs = 4, items = 2 * pairs, side = 8, hidden = 64, steps = 20 };

/* Everything that is freed at the end, whatever happened before. */
struct run {
    uform_executor_t* executor;
    uform_trainer_t* trainer;
    uform_model_t* model;
};

/* The items: each name, then its picture; and edges that attract each to the other. */
struct data {
    uint8_t pictures[pairs][side * side];
    uint8_t modalities[items];
    uform_content_t contents[items];
    size_t offsets[items + 1];
    uint32_t ids[items];
};

static void draw(uint8_t* picture, int number) {
    for (int y = 0; y != side; ++y)
        for (int x = 0; x != side; ++x) {
            int const lit = number == 0 ? y < side / 2 : number == 1 ? x < side / 2 : number == 2 ? x > y : x % 4 < 2;
            picture[y * side + x] = lit ? 230 : 20;
        }
}

static void fill(struct data* data) {
    static char const* const names[pairs] = {"above", "left", "corner", "stripes"};
    memset(data, 0, sizeof(*data));
    for (int pair = 0; pair != pairs; ++pair) {
        uform_content_t* const name = &data->contents[2 * pair];
        uform_content_t* const picture = name + 1;
        draw(data->pictures[pair], pair);
        data->modalities[2 * pair] = uform_modality_text_k;
        name->data = names[pair];
        name->bytes = strlen(names[pair]);
        data->modalities[2 * pair + 1] = uform_modality_image_k;
        picture->data = data->pictures[pair];
        picture->bytes = side * side;
        picture->rank = 2;
        picture->element = uform_element_uint8_k;
        picture->extents[0] = picture->extents[1] = side;
        picture->strides[0] = side;
        picture->strides[1] = 1;
    }
    for (uint32_t item = 0; item != items; ++item) {
        data->ids[item] = item ^ 1;
        data->offsets[item + 1] = item + 1;
    }
}

static uform_status_t take_steps(struct run* run, struct data const* data, int count,
                                 uform_trainer_step_stats_t* stats) {
    uform_step_t step = {{0}, NULL, NULL, NULL, {{0}, {0}, {0}}, {0}};
    step.items.count = items;
    step.items.modalities = data->modalities;
    step.items.contents = data->contents;
    step.relations.attract.offsets = data->offsets;
    step.relations.attract.offsets_count = items + 1;
    step.relations.attract.ids = data->ids;
    step.relations.attract.ids_count = items;
    uform_status_t status = uform_status_success_k;
    for (int taken = 0; status == uform_status_success_k && taken != count; ++taken) {
        status = uform_trainer_step(run->trainer, &step, stats);
        if (status == uform_status_success_k)
            printf("step %d: loss %.9g\n", (int)stats->step, stats->loss);
    }
    return status;
}

static uform_status_t train(struct run* run, struct data const* data, char const* path) {
    uform_trainer_options_t options = {0};
    options.depth = 1;
    options.hidden = hidden;
    options.objective = uform_objective_joint_k;
    options.batch.max_rows_per_device = 4;
    options.batch.max_columns_per_row = 32;
    options.batch.image.patch_side = 4;
    options.batch.image.channels = 1;
    options.schedule.learning_rate = 3e-3;
    options.schedule.steps = steps;
    uform_trainer_step_stats_t stats;
    char* plan = NULL;
    uform_status_t status = uform_trainer_plan_ram(run->executor, &options, &plan);
    if (status == uform_status_success_k)
        printf("%s\n", plan);
    uform_string_free(plan);
    if (status == uform_status_success_k)
        status = uform_trainer_init_ram(run->executor, &options, &run->trainer);
    if (status == uform_status_success_k)
        status = take_steps(run, data, steps - 1, &stats);
    if (status == uform_status_success_k)
        status = uform_trainer_save(run->trainer, path, NULL, NULL, 0);
    if (status == uform_status_success_k)
        status = take_steps(run, data, 1, &stats);
    return status;
}

/* The last step once more, by the run that the checkpoint holds. */
static uform_status_t go_on(struct run* run, struct data const* data, char const* path) {
    uform_trainer_options_t options = {0};
    options.resume = path;
    uform_trainer_step_stats_t stats;
    uform_trainer_free(run->trainer);
    run->trainer = NULL;
    uform_status_t status = uform_trainer_init_ram(run->executor, &options, &run->trainer);
    if (status == uform_status_success_k)
        status = take_steps(run, data, 1, &stats);
    if (status == uform_status_success_k)
        status = uform_trainer_save(run->trainer, path, NULL, NULL, 0);
    return status;
}

static uform_status_t embed(struct run* run, struct data const* data, char const* path) {
    static float embeddings[items][hidden];
    uform_items_t asked = {0};
    asked.count = items;
    asked.modalities = data->modalities;
    asked.contents = data->contents;
    uform_output_t const output = {embeddings, items, sizeof(embeddings[0]), uform_scalar_float32_k};
    uform_status_t status = uform_model_init_ram(run->executor, path, &run->model);
    if (status == uform_status_success_k)
        status = uform_model_embed(run->model, &asked, &output, NULL, NULL, NULL);
    for (int pair = 0; status == uform_status_success_k && pair != pairs; ++pair) {
        float cosine = 0;
        for (int column = 0; column != hidden; ++column)
            cosine += embeddings[2 * pair][column] * embeddings[2 * pair + 1][column];
        printf("pair %d: cosine %.3f\n", pair, cosine);
    }
    return status;
}

int main(int count, char** arguments) {
    if (count != 2) {
        fprintf(stderr, "usage: example PATH\n");
        return 2;
    }
    struct run run = {NULL, NULL, NULL};
    struct data data;
    fill(&data);
    uform_status_t status = uform_executor_init_ram(1, 0, NULL, &run.executor);
    if (status == uform_status_success_k)
        status = train(&run, &data, arguments[1]);
    if (status == uform_status_success_k)
        status = go_on(&run, &data, arguments[1]);
    if (status == uform_status_success_k)
        status = embed(&run, &data, arguments[1]);
    if (status != uform_status_success_k)
        fprintf(stderr, "%s\n", uform_last_error());
    uform_model_free(run.model);
    uform_trainer_free(run.trainer);
    uform_executor_free(run.executor);
    return status == uform_status_success_k ? 0 : 1;
}
