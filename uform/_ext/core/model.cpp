#include "core/model.h"

#include <algorithm>
#include <cstring>

#include "core/adapter.h"
#include "core/choices.h"
#include "core/process.h"
#include "core/progress.h"
#include "core/token_rows.h"

namespace uform {

namespace {

// A pass of inference starts with room for this many columns a device and grows for larger bags.
constexpr int32_t pass_columns_k = 8192;

template <typename instance_at> std::vector<selection> selections_of(std::vector<instance_at> const& instances) {
    std::vector<selection> chosen;
    for (instance_at const& one : instances)
        chosen.push_back({one.name, {}});
    return chosen;
}

/** Of how many of a query's first columns an objective answers the vectors: of all where it has no such setting. */
uint32_t query_span(objective_instance const& objective) {
    for (size_t index = 0; index != objective.plugin->fields_count; ++index) {
        uform_field_t const& field = objective.plugin->fields[index];
        if (std::string_view("max_query_span") != field.name)
            continue;
        if (field.type != uform_field_type_int32_k)
            fail(uform_status_invalid_argument_k, "plugin ", objective.name,
                 ": its field max_query_span, by which queries are cut, is no int32");
        int32_t value = 0;
        std::memcpy(&value, objective.config.data() + field.offset, sizeof(value));
        return value > 0 ? static_cast<uint32_t>(value) : UINT32_MAX;
    }
    return UINT32_MAX;
}

template <typename... parts_at> [[noreturn]] void refuse_inferred(plugin_parts const& of, parts_at const&... why) {
    fail(uform_status_invalid_argument_k, "plugin ", of.name, ": infer: ", why...);
}

/**
 *  Looks through what an objective answers for a device's items before any of it is read.
 *  @param width Of a row.
 *  @param rows_of How many rows an item is to have.
 */
template <typename rows_of_at>
void check_inferred(plugin_parts const& of, uform_answer_t const& answer, uint32_t device,
                    std::span<uform_item_t const> items, uint32_t width, rows_of_at&& rows_of) {
    if (!answer.values)
        refuse_inferred(of, "its values is null: expected rows of ", width);
    if (answer.width != width)
        refuse_inferred(of, "its width is ", answer.width, ": expected ", width);
    if (!answer.offsets)
        refuse_inferred(of, "its offsets is null: expected one a segment, and the end");
    if (answer.offsets[0] != 0)
        refuse_inferred(of, "its offsets[0] is ", answer.offsets[0], ": expected 0");
    uint32_t rows = 0;
    for (uform_item_t const& item : items) { // by segment
        if (item.device != device)
            continue;
        uint32_t const own = rows_of(item), end = answer.offsets[item.segment + 1];
        if (end < rows)
            refuse_inferred(of, "its offsets[", item.segment + 1, "] is ", end, ": expected none below ", rows,
                            ", the one before it");
        if (end - rows != own)
            refuse_inferred(of, "its offsets[", item.segment + 1, "] is ", end, ": expected ", uint64_t(rows) + own,
                            ", which ends the ", own, " rows of contents[", item.content, "]");
        rows = end;
    }
}

} // namespace

model::model(std::shared_ptr<executor> on, std::string path) : executor_(std::move(on)), file_(std::move(path)) {
    std::lock_guard order(executor_->order());
    file_.naming([&] {
        saved_ = file_.restore(executor_->operations(), executor_->devices(), false);
        uform_batch_shape_t const& batch = saved_->derived.batch;
        build(static_cast<uint32_t>(
            std::clamp(pass_columns_k / batch.max_columns_per_row, 1, batch.max_rows_per_device)));
    });
}

void model::build(uint32_t rows) {
    auto made = std::make_unique<engine>();
    settings asked;
    asked.modalities = selections_of(saved_->modalities);
    asked.objectives = selections_of(saved_->objectives);
    asked.batch.max_rows_per_device = static_cast<int32_t>(rows);
    // No segment is shorter than its marker, so neither segments nor bags ever bind.
    int64_t const columns = int64_t(rows) * saved_->derived.batch.max_columns_per_row;
    asked.batch.max_segments_per_device = asked.batch.max_bags_per_device =
        static_cast<int32_t>(std::min<int64_t>(columns, int64_t(1) << 24));
    made->whole = compose(std::move(asked), saved_.get(), executor_->operations(), executor_->devices(), false);
    made->layout = lay_out(*made->whole);
    allocate(made->layout, [&] {
        for (uint32_t device = 0; device != executor_->devices(); ++device)
            made->replicas.push_back(std::make_unique<replica>(*made->whole, made->layout, *executor_, device));
    });
    for (auto const& one : made->replicas) {
        made->staging.emplace_back(one->host_staging(), made->layout.staging_parts);
        made->bases.push_back(one->host_staging());
        made->views.push_back({nullptr, 0, 0, 0, made->staging.back().segments});
        made->pooled.push_back(one->bags());
    }
    // Rows bound the length of one item, which measuring sees to; a pass is otherwise one row, without any gaps.
    uform_run_t const& run = made->whole->run;
    pack_capacities_t const capacities{run.devices, 1, run.columns_capacity, run.segments_capacity, run.bags_capacity};
    made->planner = std::make_unique<batch>(*made->whole, executor_->pool(), capacities);
    made->plans =
        std::make_unique<planning>(run, made->whole->objectives, nullptr, executor_->pool(), made->plan_lists);
    load(*made);
    made->answers = std::make_unique<answer>(*executor_, run.hidden, run.bags_capacity);
    engine_ = std::move(made);
}

void model::load(engine& made) {
    parameter_table const& table = made.whole->declared.parameters;
    if (parameters_.empty()) {
        std::vector<float> values(table.flat());
        for (parameter const& one : table.all())
            file_.read_parameter(one, values.data() + one.offset);
        parameters_ = std::move(values);
    }
    for (uint32_t device = 0; device != made.replicas.size(); ++device) {
        check(executor_->operations().memory_upload(executor_->stream(device), made.replicas[device]->parameters(),
                                                    parameters_.data(), sizeof(float) * parameters_.size()));
        made.replicas[device]->import_weights();
    }
}

uint64_t model::embed(uform_items_t const& items, uform_output_t const& output, listener told) {
    std::lock_guard own(mutex_);
    std::lock_guard order(executor_->order());
    numbering_.number(items.bags, items.count);
    size_t const bags = numbering_.count();
    engine_->answers->check(output, bags);
    if (bags == 0)
        return 0;
    if (!output.data)
        fail(uform_status_invalid_argument_k, "output: its data is missing");
    group_by_bag(items, nullptr);
    uint64_t const truncated = engine_->planner->truncated();
    reserve(items, nullptr);
    progress done(told.call, told.state, 1, bags);
    for (size_t bag = 0; bag != bags;) {
        size_t const taken = choose_bags(bag);
        run_pass(items, nullptr);
        for (auto& one : engine_->replicas)
            one->pool();
        engine_->answers->write(*engine_->planner, engine_->pooled, output, bag);
        bag += taken;
        done.advance(taken);
    }
    return truncated;
}

uint64_t model::text_choose(uform_items_t const& items, uform_choice_texts_t const& choices, float* probabilities,
                            size_t count, listener told) {
    std::lock_guard own(mutex_);
    std::lock_guard order(executor_->order());
    int const objective = saved_->find_answer(uform_answer_kind_choices_k);
    if (objective < 0)
        fail(uform_status_invalid_argument_k, "text_choose: the checkpoint was trained without choices");
    check_choices(choices, items, UINT32_MAX);
    std::vector<uint64_t> offsets(items.count + 1);
    for (size_t item = 0; item != items.count; ++item)
        offsets[item + 1] = offsets[item] + count_choices(choices, items, item);
    if (offsets.back() != count)
        fail(uform_status_invalid_argument_k, "probabilities: ", offsets.back(), " are answered, room is for ", count);
    if (items.count == 0)
        return 0;
    std::vector<float> answered(count);
    numbering_.number(nullptr, items.count);
    group_by_bag(items, &choices);
    uint64_t const truncated = engine_->planner->truncated();
    reserve(items, &choices);
    progress done(told.call, told.state, 1, items.count);
    for (size_t text = 0; text != items.count;) {
        size_t const taken = choose_bags(text);
        run_pass(items, &choices);
        fetch_answers(static_cast<size_t>(objective), offsets, answered);
        text += taken;
        done.advance(taken);
    }
    // Where they are wanted may be a GPU's memory.
    uform_operations_t const& operations = executor_->operations();
    check(operations.memory_copy(executor_->stream(0), probabilities, answered.data(), sizeof(float) * count));
    check(operations.stream_synchronize(executor_->stream(0)));
    return truncated;
}

/** What an objective answers for a device's part of the pass, looked through; it is the plugin's until its next call.
 */
template <typename rows_of_at>
uform_answer_t model::infer(size_t objective, uint32_t device, uint32_t width, rows_of_at&& rows_of) {
    if (!engine_->planner->devices()[device].segments)
        return {};
    uform_answer_t const answer = engine_->replicas[device]->infer(objective);
    objective_instance const& of = saved_->objectives[objective];
    check_inferred(of, answer, device, engine_->planner->items(), width, rows_of);
    int32_t own = 0, answered = 0;
    uform_operations_t const& operations = executor_->operations();
    check(operations.memory_device(executor_->stream(device), engine_->pooled[device], &own));
    check(operations.memory_device(executor_->stream(device), answer.values, &answered));
    if (answered != own)
        refuse_inferred(of, "its values is memory of GPU ", answered, " (-1 is the host's): expected that of GPU ",
                        own);
    return answer;
}

/** Copies what an objective answers for each item of the pass to where the call's item begins. */
void model::fetch_answers(size_t objective, std::span<uint64_t const> offsets, std::span<float> to) {
    uform_operations_t const& operations = executor_->operations();
    auto const choices_of = [&](uform_item_t const& item) {
        return static_cast<uint32_t>(offsets[item.content + 1] - offsets[item.content]);
    };
    for (uint32_t device = 0; device != engine_->replicas.size(); ++device) {
        uform_answer_t const answer = infer(objective, device, 1, choices_of);
        uint32_t const segments = engine_->planner->devices()[device].segments;
        if (!segments)
            continue;
        fetched_.resize(answer.offsets[segments]);
        check(operations.memory_download(executor_->stream(device), fetched_.data(), answer.values,
                                         sizeof(float) * fetched_.size()));
        check(operations.stream_synchronize(executor_->stream(device)));
        for (uform_item_t const& item : engine_->planner->items()) {
            if (item.device != device)
                continue;
            auto const first = fetched_.begin() + answer.offsets[item.segment];
            auto const last = fetched_.begin() + answer.offsets[item.segment + 1];
            std::copy(first, last, to.begin() + static_cast<ptrdiff_t>(offsets[item.content]));
        }
    }
}

/** The place of the objective whose vectors `embed_tokens` answers. */
size_t model::tokens_objective() const {
    int const objective = saved_->find_answer(uform_answer_kind_tokens_k);
    if (objective < 0)
        fail(uform_status_invalid_argument_k, "embed_tokens: the checkpoint was trained without late interaction");
    return static_cast<size_t>(objective);
}

uint32_t model::measure_tokens(uform_items_t const& items, uint8_t const* sides, std::span<uint64_t> offsets) {
    std::lock_guard own(mutex_);
    std::lock_guard order(executor_->order());
    return place_tokens(items, sides, offsets);
}

/** Where each item's vectors begin; answers their width. */
uint32_t model::place_tokens(uform_items_t const& items, uint8_t const* sides, std::span<uint64_t> offsets) {
    objective_instance const& objective = saved_->objectives[tokens_objective()];
    check_sides(sides, items.count);
    uint32_t const span = query_span(objective);
    std::span<uint32_t const> const columns = engine_->planner->measure_all(items, nullptr);
    offsets[0] = 0;
    for (size_t item = 0; item != items.count; ++item) {
        bool const query = sides && sides[item] == uform_late_interaction_side_query_k;
        offsets[item + 1] = offsets[item] + (query ? std::min(columns[item], span) : columns[item]);
    }
    return objective.vectors_width;
}

uint64_t model::embed_tokens(uform_items_t const& items, uint8_t const* sides, uform_output_t const& output,
                             listener told) {
    std::lock_guard own(mutex_);
    std::lock_guard order(executor_->order());
    std::vector<uint64_t> offsets(items.count + 1);
    uint32_t const width = place_tokens(items, sides, offsets);
    token_rows const rows(*executor_, output, width, offsets.back());
    if (items.count == 0)
        return 0;
    numbering_.number(nullptr, items.count);
    group_by_bag(items, nullptr);
    uint64_t const truncated = engine_->planner->truncated();
    reserve(items, nullptr);
    auto const columns_of = [&](uform_item_t const& item) {
        return engine_->staging[item.device].segments[item.segment].columns;
    };
    progress done(told.call, told.state, 1, items.count);
    for (size_t item = 0; item != items.count;) {
        size_t const taken = choose_bags(item);
        run_pass(items, nullptr);
        for (uint32_t device = 0; device != engine_->replicas.size(); ++device)
            rows.write(device, infer(tokens_objective(), device, width, columns_of), engine_->planner->items(),
                       offsets);
        item += taken;
        done.advance(taken);
    }
    return truncated;
}

void model::group_by_bag(uform_items_t const& items, uform_choice_texts_t const* choices) {
    std::span<uint32_t const> const columns = engine_->planner->measure_all(items, choices);
    std::span<uint32_t const> const numbers = numbering_.bags();
    size_t const bags = numbering_.count();
    auto const bag_of = [&](size_t item) { return numbers.empty() ? static_cast<uint32_t>(item) : numbers[item]; };
    offsets_.assign(bags + 1, 0);
    bag_columns_.assign(bags, 0);
    for (size_t item = 0; item != items.count; ++item) {
        ++offsets_[bag_of(item) + 1];
        bag_columns_[bag_of(item)] += columns[item];
    }
    for (size_t bag = 0; bag != bags; ++bag)
        offsets_[bag + 1] += offsets_[bag];
    members_.resize(items.count);
    std::vector<uint32_t> next(offsets_.begin(), offsets_.end() - 1);
    for (size_t item = 0; item != items.count; ++item)
        members_[next[bag_of(item)]++] = static_cast<uint32_t>(item);
}

void model::reserve(uform_items_t const& items, uform_choice_texts_t const* choices) {
    auto const largest = std::max_element(bag_columns_.begin(), bag_columns_.end());
    uform_run_t const& run = engine_->whole->run;
    if (*largest <= run.columns_capacity)
        return;
    uint64_t const rows = (*largest + run.row_columns - 1) / run.row_columns;
    uint64_t const most_rows = static_cast<uint64_t>(saved_->derived.batch.max_rows_per_device);
    if (rows > most_rows)
        refuse_bag(items, static_cast<size_t>(largest - bag_columns_.begin()), most_rows * run.row_columns);
    build(static_cast<uint32_t>(rows));
    engine_->planner->measure_all(items, choices); // it is another one
}

/** By the word and the first item of the caller: its number among the bags is ours. */
void model::refuse_bag(uform_items_t const& items, size_t bag, uint64_t most) const {
    uint32_t const first = members_[offsets_[bag]], count = offsets_[bag + 1] - offsets_[bag];
    fail(uform_status_invalid_argument_k, "bags[", first, "] is ", items.bags ? items.bags[first] : first, ": the ",
         count, " items of that bag hold ", bag_columns_[bag], " columns, over the ", most,
         " that one device of its training held");
}

/** Takes whole bags from `first_bag` on while every one surely finds a device; answers how many. */
size_t model::choose_bags(size_t first_bag) {
    uform_run_t const& run = engine_->whole->run;
    chosen_.clear();
    words_.clear();
    uint64_t sum = 0, largest = 0;
    size_t bag = first_bag;
    for (; bag != bag_columns_.size(); ++bag) {
        uint64_t const columns = bag_columns_[bag];
        largest = std::max(largest, columns);
        // The least loaded device has room for any bag as long as the sum stays below this.
        uint64_t const room =
            run.devices == 1 ? run.columns_capacity
                             : std::max<uint64_t>(run.columns_capacity, run.devices * (run.columns_capacity - largest));
        if (bag != first_bag && sum + columns > room)
            break;
        sum += columns;
        for (uint32_t member = offsets_[bag]; member != offsets_[bag + 1]; ++member) {
            chosen_.push_back(members_[member]);
            words_.push_back(static_cast<uint32_t>(bag));
        }
    }
    return bag - first_bag;
}

/** The hidden states of the bags chosen. */
void model::run_pass(uform_items_t const& items, uform_choice_texts_t const* choices) {
    batch& planner = *engine_->planner;
    planner.plan(items, chosen_, words_.data(), nullptr, choices);
    if (planner.dropped())
        fail(uform_status_internal_k, planner.dropped(), " items found no room in a pass planned for them");
    // A device that had no part in the last pass was not waited for, and may still read its staging.
    for (uint32_t device = 0; device != engine_->replicas.size(); ++device)
        check(executor_->operations().stream_synchronize(executor_->stream(device)));
    planner.fill(engine_->staging);
    for (size_t device = 0; device != engine_->views.size(); ++device) {
        packed_device_t const& packed = planner.devices()[device];
        engine_->views[device].columns = packed.columns;
        engine_->views[device].segments_count = packed.segments;
        engine_->views[device].bags_count = packed.bags;
    }
    uform_relations_t const none{};
    engine_->plans->run({0, planner.items(), planner.bags(), engine_->views, engine_->bases, nullptr, &none, choices});
    planner.finish();
    for (auto& one : engine_->replicas) {
        one->begin(planner);
        one->embed();
        one->encode();
    }
}

std::string model::describe() {
    std::lock_guard own(mutex_);
    json page = page_description(file_.configuration());
    page.set("step", file_.counters().applied);
    page.set("devices", executor_->devices());
    page.set("parameter_count", engine_->whole->declared.parameters.trained());
    return page.dump();
}

} // namespace uform

struct uform_model_t {
    uform::model body;
};

namespace {

uform_status_t init_model(uform_executor_t* executor, char const* path, uform_executor_kind_t kind,
                          uform_model_t** model) {
    return uform::guard([&] {
        if (executor->body->kind() != kind)
            uform::fail(uform_status_invalid_argument_k, "executor: it is ",
                        kind == uform_executor_kind_vram_k ? "on RAM; use init_ram" : "on GPUs; use init_vram");
        *model = new uform_model_t{{executor->body, path}};
    });
}

} // namespace

extern "C" {

uform_status_t uform_model_init_ram(uform_executor_t* executor, char const* path, uform_model_t** model) {
    return init_model(executor, path, uform_executor_kind_ram_k, model);
}

uform_status_t uform_model_init_vram(uform_executor_t* executor, char const* path, uform_model_t** model) {
    return init_model(executor, path, uform_executor_kind_vram_k, model);
}

void uform_model_free(uform_model_t* model) { delete model; }

uform_status_t uform_model_embed(uform_model_t* model, uform_items_t const* items, uform_output_t const* output,
                                 uint64_t* truncated, uform_progress_t progress, void* progress_state) {
    return uform::guard([&] {
        uint64_t const cut = model->body.embed(*items, *output, {progress, progress_state});
        if (truncated)
            *truncated = cut;
    });
}

uform_status_t uform_model_text_choose(uform_model_t* model, uform_items_t const* items,
                                       uform_choice_texts_t const* choices, float* probabilities, size_t count,
                                       uint64_t* truncated, uform_progress_t progress, void* progress_state) {
    return uform::guard([&] {
        uint64_t const cut =
            model->body.text_choose(*items, *choices, probabilities, count, {progress, progress_state});
        if (truncated)
            *truncated = cut;
    });
}

uform_status_t uform_model_measure_tokens(uform_model_t* model, uform_items_t const* items, uint8_t const* sides,
                                          uint64_t* offsets, size_t* width) {
    return uform::guard([&] { *width = model->body.measure_tokens(*items, sides, {offsets, items->count + 1}); });
}

uform_status_t uform_model_embed_tokens(uform_model_t* model, uform_items_t const* items, uint8_t const* sides,
                                        uform_output_t const* output, uint64_t* truncated, uform_progress_t progress,
                                        void* progress_state) {
    return uform::guard([&] {
        uint64_t const cut = model->body.embed_tokens(*items, sides, *output, {progress, progress_state});
        if (truncated)
            *truncated = cut;
    });
}

uform_status_t uform_model_describe(uform_model_t* model, char** json) {
    return uform::guard([&] { *json = uform::copy_string(model->body.describe()); });
}
}
