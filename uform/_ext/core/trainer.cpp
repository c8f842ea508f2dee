#include "core/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/adapter.h"
#include "core/choices.h"
#include "core/process.h"
#include "core/relations.h"
#include "core/unread.h"

namespace uform {

namespace {

constexpr int32_t read_parameter_k = 0, read_gradient_k = 1, read_first_moment_k = 2, read_second_moment_k = 3;

pack_capacities_t capacities_of(composition const& whole) {
    return {whole.run.devices, static_cast<uint32_t>(whole.derived.batch.max_rows_per_device), whole.run.row_columns,
            whole.run.segments_capacity, whole.run.bags_capacity};
}

} // namespace

std::unique_ptr<composition> compose_run(executor const& on, uform_trainer_options_t const& options,
                                         checkpoint const* resumed) {
    uform_operations_t const& operations = on.operations();
    if (!resumed)
        return compose(settings_of(options, nullptr), nullptr, operations, on.devices(), true);
    auto const saved = resumed->restore(operations, on.devices(), true);
    json const described = uform::describe(*saved);
    return compose(settings_of(options, &described), saved.get(), operations, on.devices(), true);
}

trainer::trainer(std::shared_ptr<executor> on, uform_trainer_options_t const& options) : executor_(std::move(on)) {
    std::lock_guard order(executor_->order());
    auto const begin = [&](checkpoint const* resumed) {
        build(options, resumed);
        load(options, resumed);
    };
    if (options.resume) {
        checkpoint const resumed(options.resume);
        resumed.naming([&] { begin(&resumed); });
    } else
        begin(nullptr);
}

void trainer::build(uform_trainer_options_t const& options, checkpoint const* resumed) {
    uint32_t const devices = executor_->devices();
    whole_ = compose_run(*executor_, options, resumed);
    layout_ = lay_out(*whole_);
    allocate(layout_, [&] {
        for (uint32_t device = 0; device != devices; ++device)
            replicas_.push_back(std::make_unique<replica>(*whole_, layout_, *executor_, device));
    });
    batch_ = std::make_unique<batch>(*whole_, executor_->pool(), capacities_of(*whole_));
    planning_ =
        std::make_unique<planning>(whole_->run, whole_->objectives, batch_.get(), executor_->pool(), planning_lists_);
    for (auto const& one : replicas_) {
        pooled_.push_back(one->bags());
        gradients_.push_back(one->gradient());
        terms_.push_back(one->terms());
        bags_.push_back(one->bags());
        world_bags_.push_back(one->world_bags());
        world_gradients_.push_back(one->world_bags_gradient());
    }
    for (objective_instance const& one : whole_->objectives)
        if (one.vectors_width && whole_->run.world_devices > 1)
            shared_vectors_.push_back(share_vectors(one));
    for (size_t place = 0; place != replicas_[0]->slots(); ++place)
        slots_.push_back(make_slot(place));
    for (staging_view const& view : slots_[0].staging)
        views_.push_back({nullptr, 0, 0, 0, view.segments});
    queue_ = std::make_shared<step_queue>(whole_->declared.terms,
                                          [this](uint64_t number, step_outcome& outcome) { settle(number, outcome); });
}

trainer::shared_vectors trainer::share_vectors(objective_instance const& objective) {
    shared_vectors made;
    made.count = uint64_t(whole_->run.columns_capacity) * objective.vectors_width;
    for (auto const& one : replicas_) {
        made.own.push_back(one->vectors(objective));
        made.world.push_back(one->world_vectors(objective));
        made.gradients.push_back(one->world_vectors_gradient(objective));
    }
    return made;
}

trainer::slot trainer::make_slot(size_t place) {
    uform_operations_t const& operations = executor_->operations();
    slot made;
    for (uint32_t device = 0; device != replicas_.size(); ++device) {
        uint8_t* const staging = replicas_[device]->host_staging(place);
        made.staging.emplace_back(staging, layout_.staging_parts);
        made.staging_bases.push_back(staging);
        made.begun.emplace_back(operations, executor_->stream(device));
        made.done.emplace_back(operations, executor_->stream(device));
    }
    made.answered = std::make_unique<answer>(*executor_, whole_->run.hidden, whole_->run.bags_capacity);
    made.state = std::make_unique<staging_block>(operations, executor_->stream(0), sizeof(uform_update_state_t));
    return made;
}

trainer::~trainer() {
    if (queue_)
        queue_->close();
}

void trainer::load(uform_trainer_options_t const& options, checkpoint const* resumed) {
    parameter_table const& table = whole_->declared.parameters;
    progress told(options.progress, options.progress_state, options.progress_steps, table.all().size());
    std::vector<float> values, first, second;
    for (parameter const& one : table.all()) {
        values.resize(one.count());
        if (resumed) {
            first.resize(one.count());
            second.resize(one.count());
            resumed->read_parameter(one, values.data());
            resumed->read_moments(one, first.data(), second.data());
        } else
            initialise(one, whole_->derived.seed, values.data());
        uform_operations_t const& operations = executor_->operations();
        for (uint32_t device = 0; device != replicas_.size(); ++device) {
            replica const& to = *replicas_[device];
            auto const upload = [&](float* base, std::vector<float> const& from) {
                check(operations.memory_upload(executor_->stream(device), base + one.offset, from.data(),
                                               from.size() * sizeof(float)));
            };
            upload(to.parameters(), values);
            if (!resumed)
                continue;
            upload(to.first_moment(), first);
            upload(to.second_moment(), second);
        }
        for (uint32_t device = 0; device != replicas_.size(); ++device) // which may read them as late as that
            check(executor_->operations().stream_synchronize(executor_->stream(device)));
        told.advance();
    }
    std::fill(std::begin(state_.not_finite), std::end(state_.not_finite), UINT64_MAX);
    if (resumed) {
        state_.applied = resumed->counters().applied;
        calls_ = resumed->counters().calls;
    }
    for (uint32_t device = 0; device != replicas_.size(); ++device) {
        replicas_[device]->import_weights();
        check(executor_->operations().memory_upload(executor_->stream(device), replicas_[device]->state(), &state_,
                                                    sizeof(state_)));
        check(executor_->operations().stream_synchronize(executor_->stream(device)));
    }
}

uform_pending_t& trainer::submit(uform_step_t const& step) {
    std::lock_guard own(mutex_);
    check_step(step);
    uint64_t const number = queue_->next();
    size_t const place = number % slots_.size();
    if (number >= slots_.size())
        queue_->wait(number - slots_.size());
    check_not_broken(); // by that one, perhaps
    slot& to = slots_[place];
    uform_pending_t& pending = queue_->open();
    std::lock_guard order(executor_->order());
    bool begun = false;
    try {
        plan(step, to);
        ++calls_;
        dropped_ += batch_->dropped();
        to.dropped = dropped_;
        begun = true;
        begin(place);
        run();
        end(to, step.output);
    } catch (...) {
        if (begun)
            abandon();
        if (begun && !unchanged(to))
            break_off();
        queue_->release(pending);
        throw;
    }
    queue_->append(pending);
    return pending;
}

void trainer::step(uform_step_t const& step, uform_trainer_step_stats_t* stats) {
    struct released {
        step_queue& queue;
        uform_pending_t& pending;
        ~released() { queue.release(pending); }
    } const own{*queue_, submit(step)};
    queue_->wait(own.pending.number);
    queue_->report(own.pending, stats);
}

void trainer::check_not_broken() const {
    std::lock_guard const lock(broken_mutex_);
    if (broken_)
        fail(uform_status_device_k, "trainer: its weights may be half changed, go on from a checkpoint: ", broken_by_);
}

void trainer::break_off() noexcept {
    std::lock_guard const lock(broken_mutex_);
    if (std::exchange(broken_, true))
        return;
    try {
        throw;
    } catch (std::exception const& failure) {
        guard([&] { broken_by_ = failure.what(); });
    } catch (...) {
    }
}

void trainer::check_step(uform_step_t const& step) {
    size_t const count = step.items.count;
    if (count == 0)
        fail(uform_status_invalid_argument_k, "contents: a step needs at least one item in the world, none came");
    relations_.take(step.relations, count, edges_limit(), whole_->run.devices);
    check_sides(step.sides, count);
    refuse_unread(step, relations_.sets(), reads_of(whole_->objectives));
    if (step.choices && whole_->run.choices_capacity == 0)
        fail(uform_status_invalid_argument_k,
             "choices: the run has no room for them; give BatchShape.max_choices_per_item");
    if (step.choices) {
        check_choices(*step.choices, step.items, whole_->run.choices_capacity);
        check_choice_targets(*step.choices, step.items);
    }
}

/** The bound that an objective's configuration sets on the edges of one device, or 0. */
uint64_t trainer::edges_limit() const {
    for (objective_instance const& one : whole_->objectives)
        for (size_t index = 0; index != one.plugin->fields_count; ++index) {
            uform_field_t const& field = one.plugin->fields[index];
            if (field.type != uform_field_type_int32_k || std::strcmp(field.name, "max_edges_per_device"))
                continue;
            int32_t limit = 0;
            std::memcpy(&limit, one.config.data() + field.offset, sizeof(limit));
            return static_cast<uint64_t>(limit);
        }
    return 0;
}

void trainer::plan(uform_step_t const& step, slot& to) {
    batch_->plan(step.items, {}, step.items.bags, step.temperature_groups, step.choices);
    if (step.output.data)
        to.answered->check(step.output, batch_->bags().size());
    batch_->fill(to.staging);
    for (size_t device = 0; device != views_.size(); ++device) {
        packed_device_t const& packed = batch_->devices()[device];
        views_[device].columns = packed.columns;
        views_[device].segments_count = packed.segments;
        views_[device].bags_count = packed.bags;
        views_[device].segments = to.staging[device].segments;
    }
    planning_->run({calls_, batch_->items(), batch_->bags(), views_, to.staging_bases, step.sides, &relations_.sets(),
                    step.choices});
    batch_->finish();
    to.truncated = batch_->truncated();
    to.answers = step.output.data != nullptr;
    if (to.answers)
        to.answered->reserve(step.output);
}

void trainer::begin(size_t place) {
    for (uint32_t device = 0; device != replicas_.size(); ++device) {
        replicas_[device]->begin(*batch_, place);
        slots_[place].begun[device].record(executor_->stream(device));
    }
}

/** Alone, a replica's whole step is one graph; among several, what each does between two exchanges. */
void trainer::run() {
    auto const passes = [&] {
        forward();
        score();
        backward();
        reduce();
        update();
    };
    if (replicas_.size() == 1)
        replicas_[0]->whole_step(passes);
    else
        passes();
}

void trainer::forward() {
    for (auto& one : replicas_)
        one->forward();
    if (whole_->taps & uform_tap_world_bags_k)
        check(executor_->operations().gather(executor_->streams(), bags_.data(), world_bags_.data(),
                                             whole_->run.devices,
                                             sizeof(float) * whole_->run.bags_capacity * whole_->run.hidden));
    for (shared_vectors const& one : shared_vectors_)
        check(executor_->operations().gather(executor_->streams(), one.own.data(), one.world.data(),
                                             whole_->run.devices, sizeof(float) * one.count));
}

void trainer::score() {
    for (auto& one : replicas_)
        one->score();
    if (whole_->taps & uform_tap_world_bags_k)
        check(executor_->operations().reduce_sum(executor_->streams(), world_gradients_.data(), whole_->run.devices,
                                                 uint64_t(whole_->run.world_devices) * whole_->run.bags_capacity *
                                                     whole_->run.hidden));
    for (shared_vectors const& one : shared_vectors_)
        check(executor_->operations().reduce_sum(executor_->streams(), one.gradients.data(), whole_->run.devices,
                                                 one.count * whole_->run.world_devices));
}

void trainer::backward() {
    for (auto& one : replicas_)
        one->backpropagate();
}

void trainer::reduce() {
    uform_operations_t const& operations = executor_->operations();
    check(operations.reduce_sum(executor_->streams(), gradients_.data(), whole_->run.devices,
                                whole_->declared.parameters.flat()));
    check(operations.reduce_terms(executor_->streams(), terms_.data(), whole_->run.devices, UFORM_TERMS_CAPACITY));
}

void trainer::update() {
    for (auto& one : replicas_)
        one->update();
}

/** What the host is told: the statistics, once, and the embeddings where they are asked for. */
void trainer::end(slot& to, uform_output_t const& output) {
    uform_operations_t const& operations = executor_->operations();
    check(operations.memory_download(executor_->stream(0), to.state->data(), replicas_[0]->state(),
                                     sizeof(uform_update_state_t)));
    if (to.answers)
        to.answered->begin(*batch_, pooled_, output, 0);
    for (uint32_t device = 0; device != replicas_.size(); ++device)
        to.done[device].record(executor_->stream(device));
}

/** After a failure in the midst of a call: nothing of it may still read the host's memory. */
void trainer::abandon() noexcept {
    for (uint32_t device = 0; device != replicas_.size(); ++device)
        for (uform_stream_t* stream : {executor_->upload_stream(device), executor_->stream(device)})
            executor_->operations().stream_synchronize(stream);
}

/**
 *  After `abandon`: whether no replica's weights have changed since the last step. An update counts itself before it
 *  changes the first, so the devices know, whatever part of a call, or of a graph, has run.
 */
bool trainer::unchanged(slot& scratch) noexcept {
    bool same = true;
    uform_status_t const asked = guard([&] {
        queue_->drain(); // for what the last step has left
        auto* const found = reinterpret_cast<uform_update_state_t*>(scratch.state->data());
        for (uint32_t device = 0; device != replicas_.size(); ++device) {
            uform_operations_t const& operations = executor_->operations();
            check(operations.memory_download(executor_->stream(device), found, replicas_[device]->state(),
                                             sizeof(*found)));
            check(operations.stream_synchronize(executor_->stream(device)));
            same = same && found->applied == state_.applied;
        }
    });
    return asked == uform_status_success_k && same;
}

/** By whichever thread waits: it touches nothing that a submission does, without a lock. */
void trainer::settle(uint64_t number, step_outcome& outcome) {
    slot const& from = slots_[number % slots_.size()];
    try {
        for (device_event const& done : from.done)
            done.wait();
        device_seconds_ += from.begun[0].seconds_to(from.done[0]);
    } catch (...) {
        lost_ = true;
        break_off();
        throw;
    }
    if (lost_) // it ran on what the lost one has left behind, whatever the device says of it
        check_not_broken();
    std::memcpy(&outcome.state, from.state->data(), sizeof(outcome.state));
    outcome.truncated = from.truncated;
    outcome.dropped = from.dropped;
    state_ = outcome.state;
    if (state_.refused)
        refuse();
    if (from.answers)
        from.answered->finish();
}

/** Refuses a step for what a third party's plugin wrote. */
void trainer::refuse_finding(plugin_parts const& parts, finding what, char const* words) const {
    int const place = parts.findings[static_cast<uint32_t>(what)];
    if (place != no_place_k && state_.not_finite[place] != UINT64_MAX)
        refuse_plugin(parts, uform_status_not_finite_k,
                      std::string(words) + " not finite: the step was refused and changed no weight");
}

void trainer::refuse() const {
    for (modality_instance const& one : whole_->modalities)
        refuse_finding(one, finding::columns, "the states of its columns are");
    auto const& terms = whole_->declared.terms;
    for (size_t index = 0; index != terms.size(); ++index)
        if (!std::isfinite(state_.terms[index]))
            fail(uform_status_not_finite_k, terms[index].name, " is ", state_.terms[index],
                 ": the step was refused and changed no weight");
    for (objective_instance const& one : whole_->objectives) {
        refuse_finding(one, finding::bags, "its gradient of the embeddings is");
        refuse_finding(one, finding::columns, "its gradient of the columns' states is");
    }
    whole_->for_each_foreign(
        [&](plugin_parts const& parts) { refuse_finding(parts, finding::parameters, "its parameters' gradient is"); });
    fail(uform_status_not_finite_k, "the gradient's norm is ", state_.gradient_norm,
         " while every loss is finite: the step was refused and changed no weight");
}

uform_trainer_counters_t trainer::counters() {
    std::lock_guard own(mutex_);
    queue_->drain();
    uform_backend_counters_t const counted = executor_->counters();
    uform_trainer_counters_t made{queue_->next(), device_seconds_, counted.allocations, counted.host_waits, 0, 0};
    for (auto const& one : replicas_) {
        made.graphs += one->counters().graphs;
        made.graph_launches += one->counters().launches;
    }
    return made;
}

float const* trainer::on_host(float const* device_values, uint64_t count, std::vector<float>& copy) {
    if (executor_->operations().host_memory)
        return device_values;
    copy.resize(count);
    check(executor_->operations().memory_download(executor_->stream(0), copy.data(), device_values,
                                                  count * sizeof(float)));
    check(executor_->operations().stream_synchronize(executor_->stream(0)));
    return copy.data();
}

void trainer::save(std::string const& path, uform_progress_t call, void* state, uint64_t every) {
    std::lock_guard own(mutex_);
    queue_->drain();
    check_not_broken();
    std::lock_guard order(executor_->order());
    parameter_table const& table = whole_->declared.parameters;
    replica const& from = *replicas_[0];
    std::vector<float> copy;
    auto const read = [&](float const* values) {
        return [&, values](parameter const& one) { return on_host(values + one.offset, one.count(), copy); };
    };
    run_values const values{read(from.parameters()), read(from.first_moment()), read(from.second_moment())};
    progress told(call, state, every, checkpoint_tensors(table));
    save_checkpoint(path, table, values, {state_.applied, calls_, whole_->derived.seed}, uform::describe(*whole_),
                    told);
}

std::string trainer::describe() {
    std::lock_guard own(mutex_);
    queue_->drain();
    json page = page_description(uform::describe(*whole_));
    page.set("devices", executor_->devices());
    page.set("step", state_.applied);
    page.set("parameter_count", whole_->declared.parameters.trained());
    json parameters = json(json::array{});
    for (parameter const& one : whole_->declared.parameters.all()) {
        json shape = json(json::array{});
        for (uint64_t extent : one.shape())
            shape.push_back(extent);
        json entry = json::make_object();
        entry.set("name", one.name);
        entry.set("shape", std::move(shape));
        parameters.push_back(std::move(entry));
    }
    page.set("parameters", std::move(parameters));
    json planned = json::make_object();
    planned.set("total", layout_.plan.bytes());
    for (auto const& share : layout_.plan.shares())
        planned.set(share.purpose, share.bytes);
    page.set("planned_bytes_per_device", std::move(planned));
    return page.dump();
}

parameter const& trainer::find(std::string const& name) const {
    parameter const* const found = whole_->declared.parameters.find(name);
    if (!found)
        fail(uform_status_invalid_argument_k, "name: the run has no parameter ", name);
    return *found;
}

float* trainer::buffer(replica const& of, int32_t what) const {
    switch (what) {
    case read_parameter_k:
        return of.parameters();
    case read_gradient_k:
        return of.gradient();
    case read_first_moment_k:
        return of.first_moment();
    case read_second_moment_k:
        return of.second_moment();
    default:
        fail(uform_status_invalid_argument_k, "what: between 0 and 3, not ", what);
    }
}

void trainer::read(std::string const& name, int32_t what, float* to, size_t count) {
    std::lock_guard own(mutex_);
    queue_->drain();
    std::lock_guard order(executor_->order());
    parameter const& one = find(name);
    if (count != one.count())
        fail(uform_status_invalid_argument_k, "read: ", name, " has ", one.count(), " values, room is for ", count);
    check(executor_->operations().memory_download(executor_->stream(0), to, buffer(*replicas_[0], what) + one.offset,
                                                  count * sizeof(float)));
    check(executor_->operations().stream_synchronize(executor_->stream(0)));
}

void trainer::write(std::string const& name, float const* from, size_t count) {
    std::lock_guard own(mutex_);
    queue_->drain();
    check_not_broken();
    std::lock_guard order(executor_->order());
    parameter const& one = find(name);
    if (count != one.count())
        fail(uform_status_invalid_argument_k, "write: ", name, " has ", one.count(), " values, ", count, " were given");
    bool const bounded = std::isfinite(one.minimum) || std::isfinite(one.maximum);
    for (size_t place = 0; place != count && bounded; ++place)
        if (!(from[place] >= one.minimum && from[place] <= one.maximum)) // no number lies within no bounds
            fail(uform_status_invalid_argument_k, "array[", place, "] is ", exact(from[place]), ": ", name, " stays ",
                 one.bounds());
    try {
        for (uint32_t device = 0; device != replicas_.size(); ++device) {
            check(executor_->operations().memory_upload(
                executor_->stream(device), replicas_[device]->parameters() + one.offset, from, count * sizeof(float)));
            replicas_[device]->import_weights();
            check(executor_->operations().stream_synchronize(executor_->stream(device)));
        }
    } catch (...) {
        break_off();
        abandon(); // nothing reads the caller's values any more
        throw;
    }
}

} // namespace uform

struct uform_trainer_t {
    uform::trainer body;
};

namespace {

uform_status_t init_trainer(uform_executor_t* executor, uform_trainer_options_t const* options,
                            uform_executor_kind_t kind, uform_trainer_t** trainer) {
    return uform::guard([&] {
        if (executor->body->kind() != kind)
            uform::fail(uform_status_invalid_argument_k, "executor: it is ",
                        kind == uform_executor_kind_vram_k ? "on RAM; use init_ram" : "on GPUs; use init_vram");
        *trainer = new uform_trainer_t{{executor->body, *options}};
    });
}

} // namespace

extern "C" {

uform_status_t uform_trainer_init_ram(uform_executor_t* executor, uform_trainer_options_t const* options,
                                      uform_trainer_t** trainer) {
    return init_trainer(executor, options, uform_executor_kind_ram_k, trainer);
}

uform_status_t uform_trainer_init_vram(uform_executor_t* executor, uform_trainer_options_t const* options,
                                       uform_trainer_t** trainer) {
    return init_trainer(executor, options, uform_executor_kind_vram_k, trainer);
}

void uform_trainer_free(uform_trainer_t* trainer) { delete trainer; }

uform_status_t uform_trainer_step(uform_trainer_t* trainer, uform_step_t const* step,
                                  uform_trainer_step_stats_t* stats) {
    return uform::guard([&] { trainer->body.step(*step, stats); });
}

uform_status_t uform_trainer_submit(uform_trainer_t* trainer, uform_step_t const* step, uform_pending_t** pending) {
    return uform::guard([&] { *pending = &trainer->body.submit(*step); });
}

uform_status_t uform_trainer_counters(uform_trainer_t* trainer, uform_trainer_counters_t* counters) {
    return uform::guard([&] { *counters = trainer->body.counters(); });
}

uform_status_t uform_trainer_save(uform_trainer_t* trainer, char const* path, uform_progress_t progress,
                                  void* progress_state, uint64_t progress_steps) {
    return uform::guard([&] { trainer->body.save(path, progress, progress_state, progress_steps); });
}

uform_status_t uform_trainer_describe(uform_trainer_t* trainer, char** json) {
    return uform::guard([&] { *json = uform::copy_string(trainer->body.describe()); });
}

uform_status_t uform_trainer_read(uform_trainer_t* trainer, char const* name, int32_t what, float* to, size_t count) {
    return uform::guard([&] { trainer->body.read(name, what, to, count); });
}

uform_status_t uform_trainer_write(uform_trainer_t* trainer, char const* name, float const* from, size_t count) {
    return uform::guard([&] { trainer->body.write(name, from, count); });
}
}
