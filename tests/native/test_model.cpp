// Inference over a checkpoint: equal to what a step answered for the same weights, however its items are split.
#include <algorithm>
#include <cmath>
#include <limits>

#include "check.h"
#include "problem.h"

using namespace native_test;

namespace {

double largest_difference(std::vector<float> const& left, std::vector<float> const& right) {
    if (left.size() != right.size())
        return std::numeric_limits<double>::infinity();
    double largest = 0;
    for (size_t place = 0; place != left.size(); ++place)
        largest = std::max(largest, std::fabs(double(left[place]) - double(right[place])));
    return largest;
}

/** Embeds a call of which the caller knows the bags; answers one row a bag. */
std::vector<float> embed(model_ptr const& model, call_t const& call, size_t bags, uint64_t* truncated = nullptr) {
    output_t output(bags);
    uform_items_t const items = call.items();
    require(uform_model_embed(model.get(), &items, &output.view, truncated, nullptr, nullptr), "embed");
    return output.values;
}

/** Twelve items in seven bags, some of texts and images. */
call_t mixed_call() {
    call_t call = image_text_call();
    call.add_text("");
    call.add_text(std::string(40, 'l')); // cut at 31 bytes
    call.bags = {5, 5, 9, 5, 1u << 30, 9, 0, 77, 77, 3, 12, 3};
    call.attract = {};
    return call;
}
constexpr size_t mixed_bags_k = 7;

/** A trained run, saved; the embeddings that its next step answers for a call. */
struct trained_t {
    temporary_folder folder;
    std::string path = folder.file("run.safetensors");
    trainer_ptr trainer = make_trainer(make_executor(), tiny_options(uform_objective_contrastive_k));

    trained_t() {
        run_steps(trainer, image_text_call(), 3);
        require(uform_trainer_save(trainer.get(), path.c_str(), nullptr, nullptr, 0), "save");
    }

    std::vector<float> answer(call_t const& call, size_t bags) const {
        output_t output(bags);
        uform_step_t step = call.step();
        step.output = output.view;
        require(uform_trainer_step(trainer.get(), &step, nullptr), "step");
        return output.values;
    }
};

void test_equals_the_step(trained_t const& trained) {
    for (auto const& [call, bags] : {std::pair(mixed_call(), mixed_bags_k), std::pair(image_text_call(), size_t(10))}) {
        trained_t const fresh; // a step changes the weights
        std::vector<float> const answered = fresh.answer(call, bags);
        for (int32_t devices : {1, 2, 3}) {
            model_ptr const model = make_model(make_executor(devices), trained.path);
            uint64_t truncated = 0;
            CHECK(largest_difference(embed(model, call, bags, &truncated), answered) <= 1e-6);
            CHECK(truncated == (bags == mixed_bags_k));
        }
    }
}

/** Items of one call, repeated with other neighbours over many passes, embed as they do alone. */
void test_any_number_of_items(trained_t const& trained) {
    call_t const call = mixed_call();
    for (int32_t devices : {1, 2}) {
        model_ptr const model = make_model(make_executor(devices), trained.path);
        std::vector<float> const once = embed(model, call, mixed_bags_k);
        std::mt19937 random(3);
        call_t many;
        std::vector<float> expected;
        std::vector<std::pair<uint32_t, size_t>> places; // bag words, each with its row in `once`
        size_t const firsts[] = {0, 2, 4, 6, 7, 9, 10};  // the first item of each bag of the call
        for (uint32_t repeat = 0; repeat != 60; ++repeat) {
            size_t const row = random() % mixed_bags_k;
            for (size_t item = 0; item != call.count(); ++item) {
                if (call.bags[item] != call.bags[firsts[row]])
                    continue;
                if (call.modalities[item] == uform_modality_text_k)
                    many.add_text(std::string(call.bytes[item].begin(), call.bytes[item].end()));
                else
                    many.add_image(call.bytes[item]);
                many.bags.push_back(repeat * 17);
            }
            auto const from = once.begin() + static_cast<std::ptrdiff_t>(row * hidden_k);
            expected.insert(expected.end(), from, from + hidden_k);
        }
        CHECK(largest_difference(embed(model, many, 60), expected) <= 1e-6);
        CHECK(embed(model, call_t(), 0).empty());
        CHECK(same_bits(embed(model, call, mixed_bags_k), once));
    }
}

/** The items of one bag need not lie together. */
void test_scattered_bags(trained_t const& trained) {
    model_ptr const model = make_model(make_executor(), trained.path);
    call_t together, scattered;
    for (uint32_t bag = 0; bag != 30; ++bag)
        for (uint32_t part = 0; part != 3; ++part) {
            together.add_text("bag " + std::to_string(bag) + " part " + std::to_string(part));
            together.bags.push_back(bag);
            scattered.add_text("bag " + std::to_string((bag * 3 + part) % 30) + " part " +
                               std::to_string((bag * 3 + part) / 30));
            scattered.bags.push_back((bag * 3 + part) % 30);
        }
    CHECK(largest_difference(embed(model, together, 30), embed(model, scattered, 30)) <= 1e-6);
}

void test_tapes(trained_t const& trained) {
    model_ptr const model = make_model(make_executor(2), trained.path);
    call_t listed;
    for (char const* text : {"one", "", "three", "four words of text"})
        listed.add_text(text);
    std::string const tape = "onethreefour words of text";
    uint64_t const offsets[] = {0, 3, 3, 8, 26};
    uform_items_t items{};
    items.count = 4;
    items.tape = reinterpret_cast<uint8_t const*>(tape.data());
    items.tape_offsets = offsets;
    items.tape_bytes = tape.size();
    output_t output(4);
    require(uform_model_embed(model.get(), &items, &output.view, nullptr, nullptr, nullptr), "embed");
    CHECK(same_bits(output.values, embed(model, listed, 4)));
}

void test_every_scalar(trained_t const& trained) {
    model_ptr const model = make_model(make_executor(2), trained.path);
    call_t const call = mixed_call();
    uform_items_t const items = call.items();
    std::vector<float> const plain = embed(model, call, mixed_bags_k);
    for (int32_t scalar : {uform_scalar_float32_k, uform_scalar_float16_k, uform_scalar_bfloat16_k, uform_scalar_int8_k,
                           uform_scalar_bit_k}) {
        size_t row_bytes = 0;
        require(uform_scalar_row_bytes(scalar, hidden_k, &row_bytes), "row bytes");
        std::vector<uint8_t> got(mixed_bags_k * row_bytes), expected(mixed_bags_k * row_bytes);
        uform_output_t const output{got.data(), mixed_bags_k, row_bytes, scalar};
        require(uform_model_embed(model.get(), &items, &output, nullptr, nullptr, nullptr), "embed");
        require(uform_scalar_convert(plain.data(), mixed_bags_k, hidden_k, scalar, expected.data()), "convert");
        CHECK(got == expected);
    }
}

/* ------------------------------------------------------------------------------------------------ large bags */

call_t bag_of(size_t texts, size_t bytes) {
    call_t call;
    for (size_t text = 0; text != texts; ++text)
        call.add_text(std::string(bytes, static_cast<char>('a' + text % 26)));
    call.bags.assign(texts, 6);
    return call;
}

void test_bags_up_to_a_device(trained_t const& trained) {
    for (int32_t devices : {1, 2}) {
        model_ptr const model = make_model(make_executor(devices), trained.path);
        // A bag takes as many columns as one device trained with, rows or not: 6 texts of 21 columns and one of 2.
        call_t full = bag_of(6, 20);
        full.add_text("f");
        full.bags.push_back(6);
        embed(model, full, 1);
        call_t over = bag_of(6, 20);
        over.add_text("fr");
        over.bags.push_back(6);
        over.add_text("another bag");
        over.bags.push_back(7);
        output_t output(2);
        uform_items_t const items = over.items();
        CHECK(uform_model_embed(model.get(), &items, &output.view, nullptr, nullptr, nullptr) ==
              uform_status_invalid_argument_k);
        std::string const message = uform_last_error();
        CHECK(message.find("bags[0] is 6: the 7 items of that bag hold 129 columns, over the 128") !=
              std::string::npos);
        CHECK(std::all_of(output.values.begin(), output.values.end(), [](float value) { return value == 0; }));
        embed(model, full, 1);
    }
}

/** A pass begins small; a bag over it makes the model grow, and nothing else changes. */
void test_grows_for_a_large_bag() {
    temporary_folder const folder;
    std::string const path = folder.file("run.safetensors");
    auto options = tiny_options(uform_objective_contrastive_k);
    options.depth = 1;
    options.batch.max_rows_per_device = 300;
    options.batch.max_segments_per_device = 600;
    trainer_ptr trainer = make_trainer(make_executor(), options);
    require(uform_trainer_save(trainer.get(), path.c_str(), nullptr, nullptr, 0), "save");
    trainer.reset();
    model_ptr const model = make_model(make_executor(), path);
    call_t const small = bag_of(3, 5);
    std::vector<float> const before = embed(model, small, 1);
    call_t const large = bag_of(26 * 10 + 5, 31); // 8480 columns where passes begin with 8192
    std::vector<float> const grown = embed(model, large, 1);
    CHECK(same_bits(embed(model, small, 1), before));
    CHECK(same_bits(embed(make_model(make_executor(1, 3), path), large, 1), grown));
}

/* ------------------------------------------------------------------------------------------------ refusals */

void check_refused(uform_status_t status, uform_status_t expected, std::string const& part) {
    std::string const message = uform_last_error();
    if (!CHECK(status == expected) || !CHECK(message.find(part) != std::string::npos))
        std::fprintf(stderr, "%s: status %d, %s\n", part.c_str(), status, message.c_str());
}

void test_refusals(trained_t const& trained) {
    executor_ptr const executor = make_executor();
    model_ptr const model = make_model(executor, trained.path);
    call_t call = mixed_call();
    std::vector<float> const before = embed(model, call, mixed_bags_k);
    auto const refused = [&](uform_items_t const& items, uform_output_t const& output, char const* part) {
        check_refused(uform_model_embed(model.get(), &items, &output, nullptr, nullptr, nullptr),
                      uform_status_invalid_argument_k, part);
    };
    output_t output(mixed_bags_k);
    uform_output_t spoilt = output.view;
    refused(call.items(), (spoilt.rows = mixed_bags_k - 1, spoilt), "output");
    refused(call.items(), (spoilt = output.view, spoilt.row_bytes = 255, spoilt), "output");
    refused(call.items(), (spoilt = output.view, spoilt.scalar = -1, spoilt), "scalar");
    refused(call.items(), (spoilt = output.view, spoilt.data = nullptr, spoilt), "output");
    call.modalities[2] = uform_modality_video_k;
    refused(call.items(), output.view, "modalities[2]");
    call.modalities[2] = uform_modality_image_k;
    refused(call.items(), output.view, "contents[2]");
    call.modalities[2] = uform_modality_text_k;
    CHECK(same_bits(embed(model, call, mixed_bags_k), before));

    uform_model_t* none = nullptr;
    std::string const absent = trained.folder.file("absent.safetensors");
    check_refused(uform_model_init_ram(executor.get(), absent.c_str(), &none), uform_status_file_k, absent);
    check_refused(uform_model_init_vram(executor.get(), trained.path.c_str(), &none), uform_status_invalid_argument_k,
                  "init_ram");
    CHECK(!none);
}

/** Between two passes; what was cancelled can be called again. */
void test_cancels(trained_t const& trained) {
    model_ptr const model = make_model(make_executor(), trained.path);
    call_t many;
    for (uint32_t bag = 0; bag != 200; ++bag)
        many.add_text("text " + std::to_string(bag));
    std::vector<float> const expected = embed(model, many, 200);
    struct told_t {
        uint64_t most = 0, last = 0, calls = 0;
    };
    auto const embed_until = [&](uint64_t most) {
        told_t told{most};
        output_t output(200);
        uform_items_t const items = many.items();
        uform_progress_t const call = [](uint64_t done, uint64_t total, void* state) -> int {
            told_t& own = *static_cast<told_t*>(state);
            CHECK(total == 200 && done > own.last && done <= total);
            own.last = done;
            return ++own.calls != own.most;
        };
        uform_status_t const status = uform_model_embed(model.get(), &items, &output.view, nullptr, call, &told);
        CHECK(status == (most ? uform_status_cancelled_k : uform_status_success_k));
        CHECK(most ? told.calls == most && told.last < 200 : told.last == 200);
        CHECK(most || same_bits(output.values, expected));
    };
    embed_until(1);
    embed_until(2);
    embed_until(0);
}

void test_describes(trained_t const& trained) {
    model_ptr const model = make_model(make_executor(2), trained.path);
    char* text = nullptr;
    require(uform_model_describe(model.get(), &text), "describe");
    string_ptr const owner(text);
    std::string const page = text;
    for (char const* part : {"\"depth\":2", "\"hidden\":64", "\"objective\":\"CONTRASTIVE\"", "\"step\":3",
                             "\"devices\":2", "\"patch_side\":4"})
        if (!CHECK(page.find(part) != std::string::npos))
            std::fprintf(stderr, "%s is not in %s\n", part, text);
}

} // namespace

int main() {
    trained_t const trained;
    test_equals_the_step(trained);
    test_any_number_of_items(trained);
    test_scattered_bags(trained);
    test_tapes(trained);
    test_every_scalar(trained);
    test_bags_up_to_a_device(trained);
    test_grows_for_a_large_bag();
    test_refusals(trained);
    test_cancels(trained);
    test_describes(trained);
    return report();
}
