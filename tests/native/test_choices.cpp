// Choices through the C API: steps and answers on any devices, far ones too, and damage to what callers hand over.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "check.h"
#include "far_device.h"

using namespace native_test;

namespace {

constexpr int32_t most_choices_k = 5;
constexpr size_t row_columns_k = 32;

/** What the items of a call are offered, in buffers of their exact sizes. */
struct offer_t {
    std::vector<uint8_t> tape;
    std::vector<uint64_t> offsets{0}, item_offsets{0}, target_offsets{0};
    std::vector<float> targets;

    /** Choices of the next item, and how likely each is; no targets abstain. */
    void add_item(std::vector<std::string> const& choices, std::vector<float> const& row) {
        for (std::string const& choice : choices) {
            tape.insert(tape.end(), choice.begin(), choice.end());
            offsets.push_back(tape.size());
        }
        targets.insert(targets.end(), row.begin(), row.end());
        item_offsets.push_back(offsets.size() - 1);
        target_offsets.push_back(targets.size());
    }

    uform_choice_texts_t view() const {
        uform_choice_texts_t made{};
        made.tape = tape.data();
        made.tape_offsets = offsets.data();
        made.count = offsets.size() - 1;
        made.item_offsets = item_offsets.data();
        made.targets = targets.data();
        made.targets_count = targets.size();
        made.target_offsets = target_offsets.data();
        made.tape_bytes = tape.size();
        return made;
    }
};

struct question_t {
    call_t call;
    offer_t offer;
};

/** Random texts and images; texts are offered up to as many choices and columns as there may be. */
question_t random_question(std::mt19937& random, size_t count, bool images) {
    question_t made;
    auto const below = [&](size_t bound) { return static_cast<size_t>(random() % bound); };
    for (size_t item = 0; item != count; ++item) {
        if (images && below(4) == 0) {
            made.call.add_image(image_of(static_cast<uint32_t>(below(5)), random));
            made.offer.add_item({}, {});
            continue;
        }
        made.call.add_text(std::string(below(36), static_cast<char>('a' + item % 26)));
        std::vector<std::string> choices;
        size_t room = row_columns_k - 2; // besides the marker and the separator
        for (size_t left = below(most_choices_k + 1); left && room; --left) {
            choices.emplace_back(std::min(below(9), room - 1), static_cast<char>('A' + below(26)));
            room -= 1 + choices.back().size();
        }
        std::vector<float> row;
        if (!choices.empty() && below(3)) {
            row.assign(choices.size(), 0.0f);
            row[below(row.size())] = 1;
        }
        made.offer.add_item(choices, row);
    }
    return made;
}

uform_trainer_options_t options_of(int32_t objective) {
    static uform_choices_t const choices{0.7, 2, 0.1};
    uform_trainer_options_t options = tiny_options(objective);
    options.depth = 1;
    options.batch.max_rows_per_device = 16;
    options.batch.max_choices_per_item = most_choices_k;
    options.choices = &choices;
    return options;
}

uform_status_t step(trainer_ptr const& trainer, question_t const& question, uform_trainer_step_stats_t* stats) {
    uform_choice_texts_t const choices = question.offer.view();
    uform_step_t made = question.call.step();
    made.choices = &choices;
    return uform_trainer_step(trainer.get(), &made, stats);
}

/* ------------------------------------------------------------------------------------------------ steps */

void test_steps_on_any_devices() {
    trainer_ptr const one = make_trainer(make_executor(1), options_of(uform_objective_joint_k));
    trainer_ptr const three = make_trainer(make_executor(3, 4), options_of(uform_objective_joint_k));
    trainer_ptr const far = make_vram_trainer(make_far_executor({0}), options_of(uform_objective_joint_k));
    std::mt19937 random(5);
    int chosen = 0;
    for (int number = 0; number != 12; ++number) {
        question_t const question = random_question(random, 1 + number % 13, true);
        uform_trainer_step_stats_t stats[3] = {};
        require(step(one, question, stats), "step");
        require(step(three, question, stats + 1), "step");
        require(step(far, question, stats + 2), "step");
        chosen += stats[0].choices_loss > 0;
        CHECK(std::isfinite(stats[0].choices_loss) && stats[0].dropped == 0);
        CHECK(std::fabs(stats[1].choices_loss - stats[0].choices_loss) <= 1e-3 * stats[0].choices_loss);
        CHECK(stats[2].choices_loss == stats[0].choices_loss && stats[2].loss == stats[0].loss);
    }
    CHECK(chosen > 6);
    CHECK(same_run(one, far));
}

/* ------------------------------------------------------------------------------------------------ answers */

std::vector<float> choose(model_ptr const& model, question_t const& question, size_t count,
                          uint64_t* truncated = nullptr) {
    std::vector<float> probabilities(count);
    uform_items_t const items = question.call.items();
    uform_choice_texts_t choices = question.offer.view();
    choices.targets = nullptr, choices.target_offsets = nullptr, choices.targets_count = 0;
    require(uform_model_text_choose(model.get(), &items, &choices, probabilities.data(), count, truncated, nullptr,
                                    nullptr),
            "choose");
    return probabilities;
}

/** Many texts in as many passes as they take answer what each does alone, wherever they are computed. */
void test_answers() {
    temporary_folder const folder;
    std::string const path = folder.file("run.safetensors");
    trainer_ptr trainer = make_trainer(make_executor(), options_of(uform_objective_contrastive_k));
    std::mt19937 random(9);
    for (int number = 0; number != 3; ++number)
        require(step(trainer, random_question(random, 9, false), nullptr), "step");
    require(uform_trainer_save(trainer.get(), path.c_str(), nullptr, nullptr, 0), "save");
    trainer.reset();

    question_t const many = random_question(random, 700, false);
    size_t const count = many.offer.offsets.size() - 1;
    uint64_t truncated = 0;
    model_ptr const model = make_model(make_executor(), path);
    std::vector<float> const together = choose(model, many, count, &truncated);
    CHECK(truncated > 0);
    for (int32_t devices : {2, 3}) {
        std::vector<float> const shared = choose(make_model(make_executor(devices, 4), path), many, count);
        CHECK(std::equal(shared.begin(), shared.end(), together.begin(),
                         [](float left, float right) { return std::fabs(left - right) <= 1e-6f; }));
    }
    uform_model_t* far = nullptr;
    executor_ptr const far_executor = make_far_executor({3});
    require(uform_model_init_vram(far_executor.get(), path.c_str(), &far), "model");
    CHECK(same_bits(choose(model_ptr(far), many, count), together));
    for (size_t item = 0; item < many.call.count(); item += 67) {
        question_t alone;
        alone.call.add_text({many.call.bytes[item].begin(), many.call.bytes[item].end()});
        size_t const first = many.offer.item_offsets[item], last = many.offer.item_offsets[item + 1];
        std::vector<std::string> choices;
        for (size_t choice = first; choice != last; ++choice)
            choices.emplace_back(many.offer.tape.begin() + static_cast<std::ptrdiff_t>(many.offer.offsets[choice]),
                                 many.offer.tape.begin() + static_cast<std::ptrdiff_t>(many.offer.offsets[choice + 1]));
        alone.offer.add_item(choices, {});
        std::vector<float> const got = choose(model, alone, choices.size());
        float sum = 0;
        for (size_t choice = 0; choice != got.size(); ++choice) {
            CHECK(std::fabs(got[choice] - together[first + choice]) <= 1e-6f);
            sum += got[choice];
        }
        CHECK(got.empty() || std::fabs(sum - 1) <= 1e-5f);
    }
}

/* ------------------------------------------------------------------------------------------------ damage */

/** One wrong thing, of a size that its buffer has. */
void damage(question_t& question, std::mt19937& random) {
    constexpr float inf = std::numeric_limits<float>::infinity();
    constexpr uint64_t odd[] = {0, 1, 2, 31, UINT32_MAX, uint64_t(UINT32_MAX) + 1, uint64_t(1) << 63, UINT64_MAX};
    constexpr float odd_targets[] = {-1, 0.5f, 2, inf, -inf, std::numeric_limits<float>::quiet_NaN(), 1e38f};
    auto const spoil = [&](auto& values, auto const& with) {
        if (!values.empty())
            values[random() % values.size()] = with[random() % std::size(with)];
    };
    switch (random() % 5) {
    case 0:
        return spoil(question.offer.offsets, odd);
    case 1:
        return spoil(question.offer.item_offsets, odd);
    case 2:
        return spoil(question.offer.target_offsets, odd);
    case 3:
        return spoil(question.offer.targets, odd_targets);
    default:
        question.call.modalities[random() % question.call.count()] ^= 1;
    }
}

void test_damage_leaves_no_trace() {
    executor_ptr const executor = make_executor(2);
    trainer_ptr const tried = make_trainer(executor, options_of(uform_objective_joint_k));
    trainer_ptr const twin = make_trainer(executor, options_of(uform_objective_joint_k));
    std::mt19937 random(21);
    int answered = 0, refused = 0;
    for (int number = 0; number != 250; ++number) {
        question_t question = random_question(random, 1 + random() % 8, true);
        if (random() % 4)
            damage(question, random);
        uform_status_t const status = step(tried, question, nullptr);
        if (status == uform_status_invalid_argument_k) {
            ++refused;
            CHECK(uform_last_error()[0] != '\0');
            continue;
        }
        ++answered;
        CHECK(status == uform_status_success_k);
        CHECK(step(twin, question, nullptr) == status);
    }
    CHECK(answered > 50 && refused > 50);
    CHECK(same_run(tried, twin));
}

/** A choice may fill its row to the last column, and none may pass it. */
void test_the_last_column() {
    trainer_ptr const trainer = make_trainer(make_executor(), options_of(uform_objective_masked_k));
    for (size_t bytes : {size_t(29), size_t(30)}) {
        question_t question;
        question.call.add_text("cut to nothing");
        question.offer.add_item({std::string(bytes, 'c')}, {1});
        uform_trainer_step_stats_t stats{};
        uform_status_t const status = step(trainer, question, &stats);
        CHECK(status == (bytes == 29 ? uform_status_success_k : uform_status_invalid_argument_k));
        CHECK(bytes == 30 || stats.truncated == 1);
        CHECK(bytes == 29 || std::string(uform_last_error()).find("choices[0][0]: its 30 bytes") == 0);
    }
}

} // namespace

int main() {
    test_steps_on_any_devices();
    test_answers();
    test_damage_leaves_no_trace();
    test_the_last_column();
    return report();
}
