// Random, seeded damage to a step's arguments: an answer or a message, and never a trace of what was refused.
#include <cmath>
#include <limits>

#include "check.h"
#include "problem.h"

using namespace native_test;

namespace {

/** Numbers at which arithmetic breaks, and ordinary ones. */
class chance {
public:
    explicit chance(uint32_t seed) : random_(seed) {}

    uint64_t below(uint64_t bound) { return bound ? random_() % bound : 0; }
    bool one_in(uint64_t number) { return below(number) == 0; }

    uint64_t number() {
        constexpr uint64_t odd[] = {0,
                                    1,
                                    2,
                                    31,
                                    32,
                                    255,
                                    65535,
                                    65536,
                                    INT32_MAX,
                                    uint64_t(INT32_MAX) + 1,
                                    UINT32_MAX,
                                    uint64_t(UINT32_MAX) + 1,
                                    INT64_MAX,
                                    uint64_t(INT64_MAX) + 1,
                                    UINT64_MAX - 1,
                                    UINT64_MAX};
        return one_in(3) ? below(12) : odd[below(std::size(odd))];
    }

    float weight() {
        constexpr float inf = std::numeric_limits<float>::infinity();
        constexpr float odd[] = {0.0f,
                                 -0.0f,
                                 1.0f,
                                 0.25f,
                                 3.0f,
                                 -1.0f,
                                 inf,
                                 -inf,
                                 std::numeric_limits<float>::quiet_NaN(),
                                 std::numeric_limits<float>::max(),
                                 std::numeric_limits<float>::denorm_min()};
        return one_in(3) ? odd[below(std::size(odd))] : odd[below(5)];
    }

    template <typename element_at> element_at& any(std::vector<element_at>& from) { return from[below(from.size())]; }

private:
    std::mt19937 random_;
};

/** A random call, whole before it is damaged. */
call_t random_call(chance& draw) {
    call_t call;
    std::mt19937 pixels(static_cast<uint32_t>(draw.below(1000)));
    size_t const count = 1 + draw.below(14);
    for (size_t item = 0; item != count; ++item) {
        if (draw.one_in(2))
            call.add_text(std::string(draw.below(36), static_cast<char>('a' + item)));
        else
            call.add_image(image_of(static_cast<uint32_t>(draw.below(5)), pixels));
    }
    auto const some = [&](uint64_t edges) {
        std::vector<std::pair<uint32_t, uint32_t>> pairs;
        for (uint64_t edge = draw.below(edges + 1); edge; --edge)
            pairs.push_back({static_cast<uint32_t>(draw.below(count)), static_cast<uint32_t>(draw.below(count))});
        return edges_of(count, pairs);
    };
    call.attract = some(2 * count);
    if (draw.one_in(2))
        call.repel = some(count);
    if (draw.one_in(2))
        call.ignore = some(count);
    if (draw.one_in(2))
        for (size_t item = 0; item != count; ++item)
            call.bags.push_back(static_cast<uint32_t>(draw.one_in(4) ? draw.number() : draw.below(6)));
    if (draw.one_in(3))
        for (size_t item = 0; item != count; ++item)
            call.groups.push_back(static_cast<uint32_t>(draw.below(2)));
    if (draw.one_in(3))
        for (size_t item = 0; item != count; ++item)
            call.sides.push_back(static_cast<uint8_t>(draw.below(4)));
    return call;
}

void damage_edges(edge_set& edges, chance& draw) {
    switch (draw.below(8)) {
    case 0:
        if (!edges.offsets.empty())
            draw.any(edges.offsets) = draw.number();
        break;
    case 1:
        if (!edges.ids.empty())
            draw.any(edges.ids) = static_cast<uint32_t>(draw.number());
        break;
    case 2:
        edges.weights.resize(edges.ids.size() + (draw.one_in(4) ? draw.below(3) : 0));
        for (float& weight : edges.weights)
            weight = draw.weight();
        break;
    case 3:
        if (!edges.offsets.empty())
            edges.offsets.resize(draw.below(edges.offsets.size() + 1));
        break;
    case 4:
        edges.offsets.push_back(edges.ids.size());
        break;
    case 5:
        if (!edges.ids.empty())
            edges.ids.resize(draw.below(edges.ids.size()));
        break;
    case 6:
        edges.ids.resize(edges.ids.size() + 1 + (draw.one_in(3) ? 300 : 0)); // 300 are over the run's bound
        if (!edges.offsets.empty())
            edges.offsets.back() = edges.ids.size();
        break;
    default:
        if (edges.offsets.size() > 2)
            std::swap(draw.any(edges.offsets), draw.any(edges.offsets));
    }
}

/** Only what a caller could say of memory that it has: extents shrink, strides change where one element is left. */
void damage_content(uform_content_t& content, chance& draw) {
    size_t const axis = draw.below(3);
    switch (draw.below(6)) {
    case 0:
        content.extents[axis] = 0;
        break;
    case 1:
        content.extents[axis] = 1;
        content.strides[axis] = static_cast<int64_t>(draw.number());
        break;
    case 2:
        content.element = static_cast<uint32_t>(draw.number());
        break;
    case 3:
        content.rank =
            content.rank == 0 ? static_cast<uint32_t>(1 + draw.below(9)) : static_cast<uint32_t>(draw.below(9));
        content.extents[3] = 1;
        break;
    case 4:
        content.bytes = draw.below(content.bytes + 1);
        break;
    default:
        content.data = draw.one_in(3) ? nullptr : content.data;
        content.bytes = content.data ? content.bytes : 0;
    }
}

/** A step over a call that borrows beside it a tape and an answer. */
struct attempt_t {
    call_t call;
    std::vector<uint8_t> tape;
    std::vector<uint64_t> tape_offsets;
    std::vector<float> answer;
    uform_step_t step{};
};

void damage_call(call_t& call, chance& draw) {
    switch (draw.below(8)) {
    case 0:
        damage_edges(call.attract, draw);
        break;
    case 1:
        damage_edges(call.repel, draw);
        break;
    case 2:
        damage_edges(call.ignore, draw);
        break;
    case 3:
        damage_content(draw.any(call.contents), draw);
        break;
    case 4:
        draw.any(call.modalities) = static_cast<uint8_t>(draw.number());
        break;
    case 5:
        if (!call.groups.empty())
            draw.any(call.groups) = static_cast<uint32_t>(draw.number());
        break;
    case 6:
        if (!call.sides.empty())
            draw.any(call.sides) = static_cast<uint8_t>(draw.number());
        break;
    default:
        if (!call.bags.empty())
            draw.any(call.bags) = static_cast<uint32_t>(draw.number());
    }
}

/** A tape of its exact size in the place of the contents, its offsets often wrong. */
void use_tape(attempt_t& attempt, chance& draw) {
    size_t const count = attempt.call.count();
    attempt.tape.assign(draw.one_in(5) ? 0 : draw.below(60), 't');
    attempt.tape.shrink_to_fit();
    attempt.tape_offsets.assign(count + 1, 0);
    for (size_t item = 1; item <= count; ++item)
        attempt.tape_offsets[item] = attempt.tape.size() * item / count;
    if (draw.one_in(2))
        draw.any(attempt.tape_offsets) = draw.number();
    uform_items_t& items = attempt.step.items;
    items.contents = nullptr;
    if (draw.one_in(2))
        items.modalities = nullptr;
    items.tape = attempt.tape.empty() ? nullptr : attempt.tape.data();
    items.tape_offsets = attempt.tape_offsets.data();
    items.tape_bytes = attempt.tape.size();
}

void use_answer(attempt_t& attempt, chance& draw) {
    size_t bags = 0;
    require(uform_items_bags(&attempt.step.items, &bags), "bags");
    attempt.answer.assign(bags * hidden_k, 0);
    attempt.step.output = {attempt.answer.data(), bags, sizeof(float) * hidden_k, uform_scalar_float32_k};
    if (draw.one_in(3))
        attempt.step.output.scalar = static_cast<int32_t>(draw.number() % 7);
    if (draw.one_in(4))
        attempt.step.output.rows = draw.number();
    if (draw.one_in(4))
        attempt.step.output.row_bytes = draw.below(sizeof(float) * hidden_k + 1);
}

attempt_t random_attempt(chance& draw) {
    attempt_t attempt;
    attempt.call = random_call(draw);
    for (uint64_t times = draw.below(4); times; --times)
        damage_call(attempt.call, draw);
    attempt.step = attempt.call.step();
    if (draw.one_in(4))
        use_tape(attempt, draw);
    if (draw.one_in(3))
        use_answer(attempt, draw);
    if (draw.one_in(30))
        attempt.step.items.count = 0;
    return attempt;
}

struct outcomes_t {
    int answered = 0, refused = 0, not_finite = 0;
};

/** Both trainers see every call, except that the twin is spared what was refused. */
void fuzz(int32_t objective, int32_t devices, uint32_t seed, int attempts, outcomes_t& outcomes) {
    executor_ptr const executor = make_executor(devices);
    auto options = tiny_options(objective);
    options.depth = 1;
    options.contrastive.temperature_groups = 2;
    trainer_ptr const tried = make_trainer(executor, options), twin = make_trainer(executor, options);
    chance draw(seed);
    for (int number = 0; number != attempts; ++number) {
        attempt_t const attempt = random_attempt(draw);
        uform_status_t const status = uform_trainer_step(tried.get(), &attempt.step, nullptr);
        if (status == uform_status_invalid_argument_k) {
            ++outcomes.refused;
            CHECK(uform_last_error()[0] != '\0');
            continue;
        }
        ++(status == uform_status_not_finite_k ? outcomes.not_finite : outcomes.answered);
        if (!CHECK(status == uform_status_success_k || status == uform_status_not_finite_k))
            std::fprintf(stderr, "attempt %d: status %d, %s\n", number, status, uform_last_error());
        std::vector<float> const answered = attempt.answer;
        CHECK(uform_trainer_step(twin.get(), &attempt.step, nullptr) == status);
        CHECK(same_bits(answered, attempt.answer));
    }
    call_t const good = image_text_call();
    auto const tried_stats = run_step(tried, good), twin_stats = run_step(twin, good);
    CHECK(std::isfinite(tried_stats.loss) && tried_stats.loss == twin_stats.loss);
    CHECK(tried_stats.dropped == twin_stats.dropped);
    CHECK(same_run(tried, twin));
}

/** The same damage to what a model is asked. */
void fuzz_model(uint32_t seed, int attempts) {
    temporary_folder const folder;
    std::string const path = folder.file("run.safetensors");
    auto options = tiny_options(uform_objective_contrastive_k);
    options.depth = 1;
    require(uform_trainer_save(make_trainer(make_executor(), options).get(), path.c_str(), nullptr, nullptr, 0),
            "save");
    model_ptr const model = make_model(make_executor(2), path);
    call_t const good = image_text_call();
    uform_items_t const good_items = good.items();
    output_t before(good.count()), after(good.count());
    require(uform_model_embed(model.get(), &good_items, &before.view, nullptr, nullptr, nullptr), "embed");
    chance draw(seed);
    for (int number = 0; number != attempts; ++number) {
        attempt_t attempt = random_attempt(draw);
        use_answer(attempt, draw);
        uint64_t truncated = 0;
        uform_status_t const status =
            uform_model_embed(model.get(), &attempt.step.items, &attempt.step.output, &truncated, nullptr, nullptr);
        CHECK(status == uform_status_success_k || status == uform_status_invalid_argument_k);
    }
    require(uform_model_embed(model.get(), &good_items, &after.view, nullptr, nullptr, nullptr), "embed");
    CHECK(same_bits(before.values, after.values));
}

} // namespace

/** An argument moves the seeds, to search further than the test does. */
int main(int count, char** arguments) {
    uint32_t const seed = count > 1 ? static_cast<uint32_t>(std::strtoul(arguments[1], nullptr, 10)) : 0;
    outcomes_t outcomes;
    fuzz(uform_objective_joint_k, 1, seed + 1, 200, outcomes);
    fuzz(uform_objective_joint_k, 3, seed + 2, 150, outcomes);
    fuzz(uform_objective_contrastive_k, 2, seed + 3, 150, outcomes);
    // Damage must neither spare everything nor spoil everything, else nothing was tested.
    CHECK(outcomes.answered > 100 && outcomes.refused > 100);
    std::printf("%d answered, %d refused, %d not finite\n", outcomes.answered, outcomes.refused, outcomes.not_finite);
    fuzz_model(seed + 4, 200);
    return report();
}
