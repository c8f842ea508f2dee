// Answers, arenas and losses where a device's memory is not the host's: the same bits as in RAM, and no touch from
// here.
#include <bit>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <span>

#include "check.h"
#include "far_device.h"

using namespace native_test;

namespace {

constexpr int32_t scalars_k[] = {uform_scalar_float32_k, uform_scalar_float16_k, uform_scalar_bfloat16_k,
                                 uform_scalar_int8_k, uform_scalar_bit_k};

struct release_arena {
    void operator()(uform_arena_t* handle) const { uform_arena_free(handle); }
};
using arena_ptr = std::unique_ptr<uform_arena_t, release_arena>;

arena_ptr make_arena(executor_ptr const& executor, int32_t device, size_t capacity = 0) {
    uform_arena_t* made = nullptr;
    require(uform_arena_init_on(executor.get(), device, capacity, &made), "arena");
    return arena_ptr(made);
}

void* allocate(arena_ptr const& arena, size_t bytes) {
    void* memory = nullptr;
    require(uform_arena_allocate(arena.get(), bytes, &memory), "allocate");
    return memory;
}

/** A far copy of values. */
template <typename value_at> value_at* put(arena_ptr const& arena, std::vector<value_at> const& values) {
    void* const memory = allocate(arena, values.size() * sizeof(value_at));
    require(uform_arena_copy(arena.get(), memory, values.data(), values.size() * sizeof(value_at)), "copy");
    return static_cast<value_at*>(memory);
}

template <typename value_at> std::vector<value_at> get(arena_ptr const& arena, void const* memory, size_t count) {
    std::vector<value_at> values(count);
    require(uform_arena_copy(arena.get(), values.data(), memory, count * sizeof(value_at)), "copy");
    return values;
}

bool says(char const* part) {
    bool const found = std::string(uform_last_error()).find(part) != std::string::npos;
    if (!found)
        std::fprintf(stderr, "%s: %s\n", part, uform_last_error());
    return found;
}

/* ------------------------------------------------------------------------------------------------ arenas */

void test_arenas() {
    executor_ptr const executor = make_far_executor({4, 7});
    size_t const before = far_memory::all().blocks();
    {
        arena_ptr const arena = make_arena(executor, 7);
        void *const first = allocate(arena, 10), *const second = allocate(arena, 300);
        CHECK(far_memory::all().device_of(first) == 7 && far_memory::all().device_of(second) == 7);
        CHECK(reinterpret_cast<uintptr_t>(second) % 256 == 0 && uform_arena_used(arena.get()) == 556);
        CHECK(!uform_arena_give_back(arena.get(), second) && uform_arena_used(arena.get()) == 10);
        std::vector<uint8_t> const bytes = {1, 2, 3};
        CHECK(get<uint8_t>(arena, put(arena, bytes), 3) == bytes);
        CHECK(!uform_arena_reset(arena.get()) && uform_arena_used(arena.get()) == 0);
        CHECK(far_memory::all().blocks() == before + 1);
        uform_arena_t* handle = nullptr;
        CHECK(uform_arena_init_on(executor.get(), 5, 0, &handle) == uform_status_invalid_argument_k && !handle);
        CHECK(says("device: device 5 is none of the executor's, 4, 7"));
        CHECK(uform_arena_init_on(executor.get(), 4, size_t(1) << 40, &handle) == uform_status_out_of_memory_k);
        CHECK(says("1099511627776 bytes were asked for"));
    }
    CHECK(far_memory::all().blocks() == before);
}

/** Another thread's step may be captured on the stream that computes: a copy put there would be captured with it. */
void test_arenas_leave_streams_that_compute_alone() {
    static std::set<uform_stream_t*> used;
    static uform_operations_t table = far_operations();
    table.memory_copy = [](uform_stream_t* stream, void* to, void const* from, size_t bytes) {
        used.insert(stream);
        return far_operation<&uform_operations_t::memory_copy>::call(stream, to, from, bytes);
    };
    table.stream_synchronize = [](uform_stream_t* stream) {
        used.insert(stream);
        return far_operation<&uform_operations_t::stream_synchronize>::call(stream);
    };
    executor_ptr const executor(
        new uform_executor_t{uform::executor::on(uform_executor_kind_vram_k, table, {4, 7}, 1, nullptr)});
    for (int32_t device : {4, 7}) {
        arena_ptr const arena = make_arena(executor, device);
        std::vector<uint8_t> const bytes = {1, 2, 3};
        CHECK(get<uint8_t>(arena, put(arena, bytes), 3) == bytes);
        CHECK(!uform_arena_reset(arena.get()));
    }
    CHECK(used.size() == 2 && !used.contains(executor->body->stream(0)) && !used.contains(executor->body->stream(1)));
}

/* ------------------------------------------------------------------------------------------------ runs */

std::string bytes_of_file(std::string const& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

/** Weights reach the device as they were, however late uploads read them; a file takes one tensor at a time. */
void test_a_run_begins_ends_and_goes_on() {
    temporary_folder const folder;
    std::string const here = folder.file("here"), there = folder.file("there");
    uform_trainer_options_t options = tiny_options(uform_objective_joint_k);
    for (std::vector<int32_t> const& indices : {std::vector<int32_t>{3}, {3, 1}}) {
        executor_ptr const far = make_far_executor(indices), ram = make_executor(static_cast<int32_t>(indices.size()));
        options.resume = nullptr;
        trainer_ptr const alone = make_trainer(ram, options), trainer = make_vram_trainer(far, options);
        CHECK(same_run(trainer, alone));
        CHECK(run_step(trainer, image_text_call()).loss == run_step(alone, image_text_call()).loss);
        require(uform_trainer_save(alone.get(), here.c_str(), nullptr, nullptr, 0), "save");
        far_memory::all().take_most_crossed();
        require(uform_trainer_save(trainer.get(), there.c_str(), nullptr, nullptr, 0), "save");
        size_t largest = 0;
        for (parameter_t const& one : parameters_of(trainer))
            largest = std::max(largest, sizeof(float) * one.count);
        CHECK(far_memory::all().take_most_crossed() == largest);
        CHECK(bytes_of_file(here) == bytes_of_file(there));
        options.resume = there.c_str();
        CHECK(same_run(make_vram_trainer(far, options), alone));
    }
}

/* ------------------------------------------------------------------------------------------------ answers */

/** Thirteen bags of 16 texts over rows that hold some of them: the last find no room on one device. */
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
constexpr size_t bags_k = 13;

trainer_ptr make_far_trainer(executor_ptr const& executor) {
    return make_vram_trainer(executor, tiny_options(uform_objective_contrastive_k));
}

std::vector<uint8_t> answer_in_ram(int32_t devices, int32_t scalar, size_t row_bytes) {
    trainer_ptr const trainer = make_trainer(make_executor(devices), tiny_options(uform_objective_contrastive_k));
    std::vector<uint8_t> bytes(bags_k * row_bytes);
    call_t const call = bags_call();
    uform_step_t step = call.step();
    step.output = {bytes.data(), bags_k, row_bytes, scalar};
    require(uform_trainer_step(trainer.get(), &step, nullptr), "step");
    return bytes;
}

void test_a_step_answers_anywhere() {
    call_t const call = bags_call();
    for (std::vector<int32_t> const& indices : {std::vector<int32_t>{3}, {3, 3}, {3, 1, 2}})
        for (int32_t scalar : scalars_k) {
            size_t row_bytes = 0;
            require(uform_scalar_row_bytes(scalar, hidden_k, &row_bytes), "row bytes");
            std::vector<uint8_t> const expected =
                answer_in_ram(static_cast<int32_t>(indices.size()), scalar, row_bytes);
            executor_ptr const executor = make_far_executor(indices);

            std::vector<uint8_t> here(expected.size(), 0xAB);
            uform_step_t step = call.step();
            step.output = {here.data(), bags_k, row_bytes, scalar};
            require(uform_trainer_step(make_far_trainer(executor).get(), &step, nullptr), "step");
            CHECK(here == expected);

            for (int32_t device : indices) {
                arena_ptr const arena = make_arena(executor, device);
                step.output.data = allocate(arena, expected.size());
                require(uform_trainer_step(make_far_trainer(executor).get(), &step, nullptr), "step");
                CHECK(get<uint8_t>(arena, step.output.data, expected.size()) == expected);
            }
        }
}

/** Steps on their way at the same time, each with rows of its own here or there: none reads what a later one pooled. */
void test_steps_submitted_ahead(trainer_ptr const& ahead, arena_ptr const& arena) {
    constexpr size_t steps = 5, row_bytes = hidden_k * sizeof(float);
    call_t const call = bags_call();
    trainer_ptr const alone = make_trainer(make_executor(2), tiny_options(uform_objective_contrastive_k));
    std::vector<std::vector<uint8_t>> expected, here;
    std::vector<void*> there;
    std::vector<uform_pending_t*> pending;
    for (size_t place = 0; place != steps; ++place) {
        expected.emplace_back(bags_k * row_bytes);
        here.emplace_back(bags_k * row_bytes);
        there.push_back(place % 2 ? here.back().data() : allocate(arena, bags_k * row_bytes));
        uform_step_t step = call.step();
        step.output = {expected.back().data(), bags_k, row_bytes, uform_scalar_float32_k};
        require(uform_trainer_step(alone.get(), &step, nullptr), "step");
        step.output.data = there.back();
        require(uform_trainer_submit(ahead.get(), &step, &pending.emplace_back()), "submit");
    }
    for (size_t place = 0; place != steps; ++place) {
        require(uform_pending_wait(pending[place], nullptr), "wait");
        uform_pending_free(pending[place]);
        CHECK((place % 2 ? here[place] : get<uint8_t>(arena, there[place], bags_k * row_bytes)) == expected[place]);
    }
    CHECK(expected.front() != expected.back());
}

void test_steps_submitted_ahead() {
    executor_ptr const far = make_far_executor({3, 1}), ram = make_executor(2);
    test_steps_submitted_ahead(make_far_trainer(far), make_arena(far, 1));
    test_steps_submitted_ahead(make_trainer(ram, tiny_options(uform_objective_contrastive_k)), make_arena(ram, 0));
}

void test_embeddings_go_anywhere() {
    temporary_folder const folder;
    std::string const path = folder.file("run.safetensors");
    require(uform_trainer_save(make_trainer(make_executor(), tiny_options(uform_objective_masked_k)).get(),
                               path.c_str(), nullptr, nullptr, 0),
            "save");
    call_t call;
    for (uint32_t place = 0; place != 300; ++place) { // more than one pass
        call.add_text(std::string(place % 29 + 1, static_cast<char>('a' + place % 26)));
        call.bags.push_back(place * 7 % 250);
    }
    constexpr size_t rows = 250;
    output_t expected(rows);
    uform_items_t const items = call.items();
    require(
        uform_model_embed(make_model(make_executor(2), path).get(), &items, &expected.view, nullptr, nullptr, nullptr),
        "embed");

    executor_ptr const executor = make_far_executor({0, 1});
    uform_model_t* made = nullptr;
    require(uform_model_init_vram(executor.get(), path.c_str(), &made), "model");
    model_ptr const model(made);
    output_t here(rows);
    require(uform_model_embed(model.get(), &items, &here.view, nullptr, nullptr, nullptr), "embed");
    CHECK(same_bits(here.values, expected.values));
    arena_ptr const arena = make_arena(executor, 1);
    uform_output_t there = expected.view;
    there.data = allocate(arena, sizeof(float) * expected.values.size());
    require(uform_model_embed(model.get(), &items, &there, nullptr, nullptr, nullptr), "embed");
    CHECK(same_bits(get<float>(arena, there.data, expected.values.size()), expected.values));
}

void test_memory_of_others_is_refused() {
    executor_ptr const executor = make_far_executor({0}), other = make_far_executor({1});
    arena_ptr const arena = make_arena(other, 1);
    trainer_ptr const trainer = make_far_trainer(executor);
    call_t const call = bags_call();
    uform_step_t step = call.step();
    step.output = {allocate(arena, bags_k * hidden_k), bags_k, hidden_k, uform_scalar_int8_k};
    CHECK(uform_trainer_step(trainer.get(), &step, nullptr) == uform_status_invalid_argument_k);
    CHECK(says("output: device 1 is none of the executor's, 0"));
    step.output.data = nullptr;
    uform_trainer_step_stats_t stats{};
    require(uform_trainer_step(trainer.get(), &step, &stats), "step");
    CHECK(stats.step == 1);
}

/* ------------------------------------------------------------------------------------------------ losses */

constexpr size_t units_k = 14, width_k = 10, groups_k = 2;

std::vector<float> make_vectors() {
    std::vector<float> values(units_k * width_k);
    for (size_t place = 0; place != values.size(); ++place)
        values[place] = static_cast<float>(std::sin(1.0 + double(place * place % 97)) / 3);
    return values;
}

uint16_t to_bfloat16(float value) {
    uint32_t const bits = std::bit_cast<uint32_t>(value);
    return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}
float from_bfloat16(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }

std::vector<uint16_t> to_bfloat16(std::vector<float> const& values) {
    std::vector<uint16_t> narrow(values.size());
    std::transform(values.begin(), values.end(), narrow.begin(), [](float value) { return to_bfloat16(value); });
    return narrow;
}
std::vector<float> from_bfloat16(std::vector<uint16_t> const& values) {
    std::vector<float> wide(values.size());
    std::transform(values.begin(), values.end(), wide.begin(), [](uint16_t bits) { return from_bfloat16(bits); });
    return wide;
}

/** What one loss answers, brought to the host. */
struct answer_t {
    double loss = -1;
    std::vector<uint8_t> gradient;
    std::vector<float> temperatures, biases, row_losses;
    std::vector<uint32_t> rows;

    bool operator==(answer_t const&) const = default;
};

/** How vectors lie: `values` of a scalar at `data`, from which on with which strides. */
struct lying {
    int32_t scalar = uform_scalar_float32_k;
    int32_t strided = 0;
    int64_t row_stride = 0, column_stride = 0;
};

uform_contrastive_loss_t make_problem(void const* data, lying how, edge_set const& attract,
                                      std::vector<uint32_t> const& groups) {
    uform_contrastive_loss_t problem{};
    problem.embeddings = data;
    problem.count = units_k;
    problem.width = width_k;
    problem.relations.attract = attract.view();
    problem.contrastive.temperature_groups = groups_k;
    problem.contrastive.pair_loss = uform_pair_loss_form_sigmoid_k;
    problem.contrastive.matryoshka_dimensions[0] = 6;
    problem.contrastive.matryoshka_dimensions[1] = width_k;
    problem.contrastive.matryoshka_count = 2;
    problem.temperature_groups = groups.data();
    problem.scalar = how.scalar;
    problem.strided = how.strided;
    problem.row_stride = how.row_stride;
    problem.column_stride = how.column_stride;
    return problem;
}

edge_set pairs() { return edges_of(units_k, {{0, 7}, {1, 8}, {2, 9}, {7, 0}, {8, 1}, {9, 2}, {3, 4}}); }

std::vector<uint32_t> make_groups() {
    std::vector<uint32_t> groups(units_k);
    for (uint32_t place = 0; place != units_k; ++place)
        groups[place] = place % groups_k;
    return groups;
}

size_t gradient_bytes(int32_t scalar) {
    return units_k * width_k * (scalar == uform_scalar_float32_k ? sizeof(float) : sizeof(uint16_t));
}

/** From host memory, wherever it is computed. */
answer_t evaluate_here(executor_ptr const& executor, std::vector<float> const& vectors) {
    edge_set const attract = pairs();
    std::vector<uint32_t> const groups = make_groups();
    answer_t answer;
    size_t rows_count = 0;
    answer.gradient.resize(gradient_bytes(uform_scalar_float32_k));
    answer.temperatures.resize(groups_k), answer.biases.resize(groups_k);
    answer.row_losses.resize(units_k), answer.rows.resize(units_k);
    uform_contrastive_loss_t problem = make_problem(vectors.data(), {}, attract, groups);
    problem.loss = &answer.loss;
    problem.gradient = answer.gradient.data();
    problem.log_inverse_temperature_gradient = answer.temperatures.data();
    problem.bias_gradient = answer.biases.data();
    problem.row_losses = answer.row_losses.data();
    problem.rows = answer.rows.data();
    problem.rows_count = &rows_count;
    require(uform_contrastive_loss(executor.get(), &problem), "loss");
    answer.row_losses.resize(rows_count), answer.rows.resize(rows_count);
    return answer;
}

/** From a device's memory, and answered there. */
answer_t evaluate_there(executor_ptr const& executor, int32_t device, void const* data, lying how) {
    edge_set const attract = pairs();
    std::vector<uint32_t> const groups = make_groups();
    arena_ptr const arena = make_arena(executor, device);
    answer_t answer;
    size_t rows_count = 0;
    answer.rows.resize(units_k);
    uform_contrastive_loss_t problem = make_problem(data, how, attract, groups);
    problem.loss = &answer.loss;
    problem.gradient = allocate(arena, gradient_bytes(how.scalar));
    problem.log_inverse_temperature_gradient = static_cast<float*>(allocate(arena, groups_k * sizeof(float)));
    problem.bias_gradient = static_cast<float*>(allocate(arena, groups_k * sizeof(float)));
    problem.row_losses = static_cast<float*>(allocate(arena, units_k * sizeof(float)));
    problem.rows = answer.rows.data();
    problem.rows_count = &rows_count;
    require(uform_contrastive_loss(executor.get(), &problem), "loss");
    answer.gradient = get<uint8_t>(arena, problem.gradient, gradient_bytes(how.scalar));
    answer.temperatures = get<float>(arena, problem.log_inverse_temperature_gradient, groups_k);
    answer.biases = get<float>(arena, problem.bias_gradient, groups_k);
    answer.row_losses = get<float>(arena, problem.row_losses, rows_count);
    answer.rows.resize(rows_count);
    return answer;
}

std::vector<float> floats_of(std::vector<uint8_t> const& bytes) {
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
}

std::vector<uint8_t> bytes_of(std::vector<uint16_t> const& values) {
    std::vector<uint8_t> bytes(values.size() * sizeof(uint16_t));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
}

/** The values with others between them. */
template <typename value_at>
std::vector<value_at> spread(std::vector<value_at> const& dense, size_t row_stride, size_t column_stride,
                             value_at between) {
    std::vector<value_at> wide(units_k * row_stride + width_k * column_stride, between);
    for (size_t place = 0; place != dense.size(); ++place)
        wide[place / width_k * row_stride + place % width_k * column_stride] = dense[place];
    return wide;
}

void test_losses_where_the_vectors_lie() {
    executor_ptr const ram = make_executor(), far = make_far_executor({5, 2});
    std::vector<float> const vectors = make_vectors();
    answer_t const expected = evaluate_here(ram, vectors);
    CHECK(expected.loss > 0 && expected.rows.size() == 7);
    CHECK(evaluate_here(far, vectors) == expected);

    std::vector<uint16_t> const narrow = to_bfloat16(vectors);
    answer_t expected_narrow = evaluate_here(ram, from_bfloat16(narrow));
    expected_narrow.gradient = bytes_of(to_bfloat16(floats_of(expected_narrow.gradient)));
    for (int32_t device : {5, 2}) {
        arena_ptr const arena = make_arena(far, device);
        CHECK(evaluate_there(far, device, put(arena, vectors), {}) == expected);
        CHECK(evaluate_there(far, device, put(arena, narrow), {uform_scalar_bfloat16_k}) == expected_narrow);
        constexpr float nan = std::numeric_limits<float>::quiet_NaN();
        for (auto const& [row, column] : {std::pair<int64_t, int64_t>(25, 2), {1, units_k}, {width_k, 1}}) {
            size_t const rows = static_cast<size_t>(row), columns = static_cast<size_t>(column);
            CHECK(evaluate_there(far, device, put(arena, spread(vectors, rows, columns, nan)),
                                 {uform_scalar_float32_k, 1, row, column}) == expected);
            CHECK(evaluate_there(far, device, put(arena, spread(narrow, rows, columns, to_bfloat16(nan))),
                                 {uform_scalar_bfloat16_k, 1, row, column}) == expected_narrow);
        }
    }
}

void test_losses_refuse() {
    executor_ptr const far = make_far_executor({5, 2}), other = make_far_executor({3});
    arena_ptr const arena = make_arena(far, 5), beside = make_arena(far, 2), elsewhere = make_arena(other, 3);
    edge_set const attract = pairs();
    std::vector<uint32_t> const groups = make_groups();
    std::vector<float> vectors = make_vectors(), gradient(vectors.size());
    std::vector<uint32_t> rows(units_k);
    size_t rows_count = 0;
    double loss = -1;
    auto const refused = [&](void const* data, void* to, lying how, uform_status_t status, char const* part) {
        uform_contrastive_loss_t problem = make_problem(data, how, attract, groups);
        problem.loss = &loss;
        problem.gradient = to;
        problem.rows = rows.data();
        problem.rows_count = &rows_count;
        CHECK(uform_contrastive_loss(far.get(), &problem) == status && says(part) && loss == -1);
    };
    constexpr uform_status_t argument = uform_status_invalid_argument_k, type = uform_status_invalid_type_k;
    refused(put(elsewhere, vectors), gradient.data(), {}, argument, "embeddings: device 3 is none of the executor's");
    refused(put(arena, vectors), gradient.data(), {}, argument, "gradient: it lies on device -1");
    refused(put(arena, vectors), put(beside, gradient), {}, argument,
            "gradient: it lies on device 2, and embeddings on device 5");
    refused(vectors.data(), gradient.data(), {uform_scalar_float32_k, 1, 1, 1}, argument, "must lie end to end");
    refused(vectors.data(), gradient.data(), {uform_scalar_bfloat16_k}, type, "embeddings: expected FLOAT32");
    refused(put(arena, vectors), put(arena, gradient), {uform_scalar_float16_k}, type, "in a GPU's memory BFLOAT16");
    vectors[3 * width_k + 2] = vectors[9 * width_k] = std::numeric_limits<float>::infinity();
    refused(put(arena, vectors), put(arena, gradient), {}, argument,
            "embeddings[3] is not finite: it has inf in column 2");
    refused(put(arena, to_bfloat16(vectors)), put(arena, gradient), {uform_scalar_bfloat16_k}, argument,
            "embeddings[3] is not finite: it has inf in column 2");
    refused(vectors.data(), gradient.data(), {}, argument, "embeddings[3] is not finite: it has inf in column 2");
}

void test_masked_bytes_where_the_logits_lie() {
    constexpr size_t classes_k = 256, rows = 5;
    executor_ptr const ram = make_executor(), far = make_far_executor({1, 6});
    std::vector<float> logits(rows * classes_k), expected(logits.size()), of_narrow(logits.size());
    for (size_t place = 0; place != logits.size(); ++place)
        logits[place] = static_cast<float>(3 * std::sin(double(place)));
    std::vector<uint8_t> const targets = {0, 255, 7, 130, 7};
    std::vector<uint16_t> const narrow = to_bfloat16(logits);
    auto const evaluate = [&](executor_ptr const& executor, void const* from, uint8_t const* bytes, int32_t scalar,
                              void* gradient) {
        double loss = -1;
        uform_masked_bytes_loss_t problem{};
        problem.logits = from;
        problem.targets = bytes;
        problem.count = rows;
        problem.scalar = scalar;
        problem.loss = &loss;
        problem.gradient = gradient;
        require(uform_masked_bytes_loss(executor.get(), &problem), "loss");
        return loss;
    };
    double const loss = evaluate(ram, logits.data(), targets.data(), uform_scalar_float32_k, expected.data());
    double const narrow_loss =
        evaluate(ram, from_bfloat16(narrow).data(), targets.data(), uform_scalar_float32_k, of_narrow.data());
    std::vector<float> here(logits.size());
    CHECK(evaluate(far, logits.data(), targets.data(), uform_scalar_float32_k, here.data()) == loss);
    CHECK(same_bits(here, expected));
    for (int32_t device : {1, 6}) {
        arena_ptr const arena = make_arena(far, device);
        uint8_t const* const bytes = put(arena, targets);
        void* const gradient = allocate(arena, sizeof(float) * logits.size());
        CHECK(evaluate(far, put(arena, logits), bytes, uform_scalar_float32_k, gradient) == loss);
        CHECK(same_bits(get<float>(arena, gradient, logits.size()), expected));
        CHECK(evaluate(far, put(arena, logits), bytes, uform_scalar_float32_k, nullptr) == loss);
        CHECK(evaluate(far, put(arena, narrow), bytes, uform_scalar_bfloat16_k, gradient) == narrow_loss);
        CHECK(get<uint16_t>(arena, gradient, logits.size()) == to_bfloat16(of_narrow));
        uform_masked_bytes_loss_t problem{};
        double untouched = -1;
        problem.logits = put(arena, logits), problem.targets = targets.data();
        problem.count = rows, problem.loss = &untouched;
        CHECK(uform_masked_bytes_loss(far.get(), &problem) == uform_status_invalid_argument_k && untouched == -1);
        CHECK(says("targets: it lies on device -1"));
    }
}

} // namespace

int main() {
    test_arenas();
    test_arenas_leave_streams_that_compute_alone();
    test_a_run_begins_ends_and_goes_on();
    test_a_step_answers_anywhere();
    test_steps_submitted_ahead();
    test_embeddings_go_anywhere();
    test_memory_of_others_is_refused();
    test_losses_where_the_vectors_lie();
    test_losses_refuse();
    test_masked_bytes_where_the_logits_lie();
    CHECK(far_memory::all().blocks() == 0);
    return report();
}
