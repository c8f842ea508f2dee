#include "core/replica.h"

#include <algorithm>

#include "core/encoder.h"
#include "core/host.h"

namespace uform {

namespace {

uform_status_t reconstruct_for(uform_host_t* host, uint32_t, uint32_t modality, float const* scale, float const* weight,
                               double* term) {
    return guard([&] {
        if (!scale || !weight || !term)
            fail(uform_status_invalid_argument_k, "reconstruct: ",
                 !scale    ? "scale"
                 : !weight ? "weight"
                           : "term",
                 " is null");
        host->replica->reconstruct(modality, scale, weight, term);
    });
}

} // namespace

replica::replica(composition& whole, replica_layout const& layout, executor& on, uint32_t device)
    : whole_(whole), layout_(layout), operations_(on.operations()), stream_(on.stream(device)), device_(device),
      block_(operations_, stream_, layout.plan.bytes()), upload_stream_(on.upload_stream(device)),
      uploaded_(operations_, stream_), taken_(operations_, stream_), graphs_(operations_, stream_) {
    size_t const slots = operations_.host_memory ? 0 : whole.training() ? slots_k : 1;
    for (size_t slot = 0; slot != slots; ++slot)
        slots_.push_back(std::make_unique<staging_block>(operations_, stream_, layout.staging_parts.bytes));
    wire_parameters();
    wire_layers();
    size_t parts = 4;
    for (modality_instance const& one : whole.modalities)
        parts += one.staging_parts.size();
    for (objective_instance const& one : whole.objectives)
        parts += one.staging_parts.size();
    stretches_.reserve(parts);
    for (modality_instance& one : whole.modalities)
        modalities_.push_back(wire_plugin(one));
    for (objective_instance& one : whole.objectives)
        objectives_.push_back(wire_plugin(one));
    wire_graphs();
}

/** A section is captured where every plugin that takes part in it allows it. */
void replica::wire_graphs() {
    if (!whole_.training() || !graphs_wanted())
        return;
    auto const capturable = [](auto const& instances) {
        return std::all_of(instances.begin(), instances.end(),
                           [](auto const& one) { return one.plugin->capturable != 0; });
    };
    bool const modalities = capturable(whole_.modalities), objectives = capturable(whole_.objectives);
    bool const columns = std::all_of(whole_.objectives.begin(), whole_.objectives.end(),
                                     [](auto const& one) { return !one.vectors_width || one.plugin->capturable; });
    graphs_.allow(section::whole, modalities && objectives);
    graphs_.allow(section::forward, modalities && columns);
    graphs_.allow(section::score, modalities && objectives); // modalities reconstruct for objectives
    graphs_.allow(section::backward, modalities && columns);
    graphs_.allow(section::update, true);
}

void replica::wire_parameters() {
    auto const& all = whole_.declared.parameters.all();
    std::vector<uform_parameter_span_t> spans;
    for (size_t index = 0; index != all.size(); ++index) {
        parameter const& one = all[index];
        void* const working = layout_.has_working[index] ? block_.at<void>(layout_.working[index])
                                                         : static_cast<void*>(parameters() + one.offset);
        weights_.push_back(working);
        gradients_.push_back(whole_.training() ? gradient() + one.offset : nullptr);
        spans.push_back({one.offset, one.count(), one.decayed() ? 1.0f : 0.0f, one.minimum, one.maximum, one.rows,
                         one.columns, one.kind, working});
    }
    if (!whole_.training())
        return;
    check(operations_.memory_upload(stream_, block_.at<void>(layout_.spans), spans.data(),
                                    spans.size() * sizeof(spans[0])));
    check(operations_.stream_synchronize(stream_)); // a GPU may read them as late as that
}

void replica::wire_layers() {
    columns_.capacity = whole_.run.columns_capacity;
    columns_.segments_capacity = whole_.run.segments_capacity;
    columns_.bags_capacity = whole_.run.bags_capacity;
    uint8_t* const staging = device_staging();
    columns_.counts = reinterpret_cast<uint32_t const*>(staging + layout_.staging_parts.counts);
    columns_.segments = reinterpret_cast<uform_segment_t const*>(staging + layout_.staging_parts.segments);
    columns_.codes = reinterpret_cast<uint16_t const*>(staging + layout_.staging_parts.codes);
    columns_.segment_of = block_.at<uint32_t>(layout_.segment_of);
    columns_.positions = block_.at<uint16_t>(layout_.positions);
    size_t const kept = layout_.states.size();
    for (uint32_t block = 0; block != whole_.extents.depth; ++block) {
        block_parameters const& own = whole_.blocks[block];
        uform_layer_t layer{};
        layer.extents = whole_.extents;
        layer.norm1 = weights_[own.norm1], layer.norm1_gradient = gradients_[own.norm1];
        layer.qkv = weights_[own.qkv], layer.qkv_gradient = gradients_[own.qkv];
        layer.out = weights_[own.out], layer.out_gradient = gradients_[own.out];
        layer.norm2 = weights_[own.norm2], layer.norm2_gradient = gradients_[own.norm2];
        layer.up = weights_[own.up], layer.up_gradient = gradients_[own.up];
        layer.down = weights_[own.down], layer.down_gradient = gradients_[own.down];
        layer.input = block_.at<void>(layout_.states[block % kept]);
        layer.output = block_.at<void>(layout_.states[(block + 1) % kept]);
        if (whole_.training())
            layer.gradient = block_.at<void>(layout_.gradient_states);
        layer.saved = block_.at<void>(layout_.saved[block % layout_.saved.size()]);
        layer.saved_bytes = layout_.saved_bytes;
        layer.workspace = block_.at<void>(layout_.layer_workspace);
        layer.workspace_bytes = layout_.layer_workspace_bytes;
        layers_.push_back(layer);
    }
}

template <typename instance_at> replica::plugin_pointers<instance_at> replica::wire_plugin(instance_at& instance) {
    plugin_pointers<instance_at> pointers{&instance, {}, {}};
    for (uint32_t index : instance.parameters) {
        pointers.weights.push_back(weights_[index]);
        pointers.gradients.push_back(gradients_[index]);
    }
    return pointers;
}

void replica::import_weights() {
    auto const& all = whole_.declared.parameters.all();
    for (size_t index = 0; index != all.size(); ++index)
        if (layout_.has_working[index])
            check(operations_.weights_import(stream_, all[index].kind, all[index].rows, all[index].columns,
                                             parameters() + all[index].offset,
                                             block_.at<void>(layout_.working[index])));
}

void replica::begin(batch const& planned, size_t slot) {
    planned_ = &planned;
    packed_device_t const& packed = planned.devices()[device_];
    size_ = step_size(packed.columns, columns_.capacity, packed.longest, whole_.run.row_columns);
    columns_.active = size_.active(columns_.capacity);
    columns_.longest = size_.longest(whole_.run.row_columns);
    for (uform_layer_t& layer : layers_)
        layer.columns = columns_;
    if (!slots_.empty())
        upload(slots_[slot]->data());
}

/** Lists what this step uses of the staging. */
void replica::plan_upload() {
    packed_device_t const& packed = planned_->devices()[device_];
    staging_layout const& parts = layout_.staging_parts;
    stretches_.clear();
    auto const send = [&](size_t offset, size_t bytes) {
        if (!bytes)
            return;
        // One copy takes what lies close together: starting another costs more than the gap.
        constexpr size_t gap = size_t(64) << 10;
        if (!stretches_.empty() && offset - (stretches_.back().offset + stretches_.back().bytes) <= gap)
            stretches_.back().bytes = offset + bytes - stretches_.back().offset;
        else
            stretches_.push_back({offset, bytes});
    };
    send(parts.counts, sizeof(batch_counts));
    send(parts.segments, sizeof(uform_segment_t) * packed.segments);
    send(parts.codes, sizeof(uint16_t) * packed.columns);
    send(parts.covered, sizeof(uint32_t) * planned_->covered_total(device_));
    for (size_t place = 0; place != whole_.modalities.size(); ++place)
        for (staging_part const& part : whole_.modalities[place].staging_parts) {
            size_t const units = part.unit == uform_staging_unit_content_k   ? planned_->content_columns(device_, place)
                                 : part.unit == uform_staging_unit_covered_k ? planned_->covered_count(device_, place)
                                                                             : 1;
            send(whole_.modalities[place].staging_offset + part.offset, part.bytes * units);
        }
    for (objective_instance const& one : whole_.objectives)
        for (staging_part const& part : one.staging_parts)
            send(one.staging_offset + part.offset, part.bytes);
}

/** In training by way of the inbox, so that it overlaps the step before. */
void replica::upload(uint8_t const* from) {
    plan_upload();
    uint8_t* const to = device_staging();
    if (!whole_.training()) {
        for (stretch const& one : stretches_)
            check(operations_.memory_upload(stream_, to + one.offset, from + one.offset, one.bytes));
        return;
    }
    uint8_t* const inbox = block_.at<uint8_t>(layout_.inbox);
    taken_.hold(upload_stream_);
    for (stretch const& one : stretches_)
        check(operations_.memory_upload(upload_stream_, inbox + one.offset, from + one.offset, one.bytes));
    uploaded_.record(upload_stream_);
    uploaded_.hold(stream_);
    for (stretch const& one : stretches_)
        check(operations_.memory_copy(stream_, to + one.offset, inbox + one.offset, one.bytes));
    taken_.record(stream_);
}

void replica::clear() {
    check(operations_.memory_zero(stream_, gradient(), sizeof(float) * whole_.declared.parameters.flat()));
    check(operations_.memory_zero(stream_, terms(), sizeof(double) * UFORM_TERMS_CAPACITY));
}

template <typename instance_at>
uform_pass_t replica::pass_for(plugin_pointers<instance_at> const& pointers, uform_host_t* host) const {
    uform_pass_t pass{};
    pass.host = host;
    pass.run = &whole_.run;
    pass.operations = &operations_;
    pass.stream = stream_;
    pass.device = device_;
    pass.rank = whole_.run.first_rank + device_;
    pass.backward = whole_.training();
    pass.columns = columns_;
    pass.staging = device_staging() + pointers.instance->staging_offset;
    pass.workspace = block_.at<uint8_t>(pointers.instance->workspace_offset);
    pass.weights = pointers.weights.data();
    pass.gradients = pointers.gradients.data();
    pass.fail = fail_on_host;
    return pass;
}

void replica::forward() {
    graphs_.run(section::forward, size_, [&] {
        clear();
        embed();
        encode();
        pool();
        gather_covered();
        columns_forward();
    });
}

void replica::embed() {
    check(operations_.columns_expand(stream_, &columns_));
    // Rows that nobody writes are looked through as well.
    if (whole_.training() && std::any_of(whole_.modalities.begin(), whole_.modalities.end(),
                                         [](modality_instance const& one) { return !one.own; }))
        check(operations_.memory_zero(stream_, const_cast<void*>(layers_.front().input),
                                      operations_.state_bytes(whole_.run.hidden) * columns_.active));
    for (auto const& pointers : modalities_) {
        uform_host_t host{.parts = pointers.instance, .replica = this};
        uform_pass_t pass = pass_for(pointers, &host);
        pass.states = const_cast<void*>(layers_.front().input);
        call_plugin(*pointers.instance, "embed_forward",
                    [&] { return pointers.instance->plugin->embed_forward(pointers.instance->self, &pass); });
        if (whole_.training())
            look_through_columns(*pointers.instance, pass.states);
    }
}

void replica::encode() {
    encoder_forward(operations_, stream_, layers_);
    uform_norm_t const norm = norm_arguments();
    check(operations_.norm_forward(stream_, &norm));
}

void replica::pool() {
    uform_pool_t const pool = pool_arguments();
    check(operations_.pool_forward(stream_, &pool));
}

void replica::gather_covered() {
    if (!whole_.covered_capacity)
        return;
    uform_rows_t const rows = rows_arguments();
    check(operations_.rows_gather(stream_, &rows));
}

/** An objective's pass over its vector for every column. */
uform_pass_t replica::pass_over_columns(plugin_pointers<objective_instance> const& pointers, uform_host_t* host) const {
    uform_pass_t pass = pass_for(pointers, host);
    pass.states = block_.at<void>(layout_.hidden_states);
    pass.vectors = vectors(*pointers.instance);
    if (whole_.training()) {
        pass.states_gradient = block_.at<void>(layout_.gradient_states);
        pass.world_vectors = world_vectors(*pointers.instance);
        pass.world_vectors_gradient = world_vectors_gradient(*pointers.instance);
    }
    return pass;
}

void replica::columns_forward() {
    for (auto const& pointers : objectives_) {
        if (!pointers.instance->vectors_width)
            continue;
        uform_host_t host{.parts = pointers.instance, .replica = this};
        uform_pass_t const pass = pass_over_columns(pointers, &host);
        call_plugin(*pointers.instance, "columns_forward",
                    [&] { return pointers.instance->plugin->columns_forward(pointers.instance->self, &pass); });
    }
}

/** Adds to the gradient of the hidden states, which others have written. */
void replica::columns_backward() {
    for (auto const& pointers : objectives_) {
        if (!pointers.instance->vectors_width)
            continue;
        uform_host_t host{.parts = pointers.instance, .replica = this};
        uform_pass_t pass = pass_over_columns(pointers, &host);
        pass.states_written = 1;
        call_plugin(*pointers.instance, "columns_backward",
                    [&] { return pointers.instance->plugin->columns_backward(pointers.instance->self, &pass); });
    }
}

void replica::score() {
    graphs_.run(section::score, size_, [&] { score_objectives(); });
}

void replica::score_objectives() {
    size_t const pooled_bytes = sizeof(float) * whole_.run.hidden * whole_.run.bags_capacity;
    check(operations_.memory_zero(stream_, bags_gradient(), pooled_bytes));
    if (whole_.taps & uform_tap_world_bags_k)
        check(operations_.memory_zero(stream_, world_bags_gradient(), pooled_bytes * whole_.run.world_devices));
    bool written = false;
    for (auto const& pointers : objectives_) {
        uform_host_t host{.parts = pointers.instance, .replica = this};
        uform_pass_t pass = pass_for(pointers, &host);
        double* own_terms[UFORM_TERMS_CAPACITY];
        for (size_t handle = 0; handle != pointers.instance->terms.size(); ++handle)
            own_terms[handle] = terms() + pointers.instance->terms[handle];
        pass.terms = own_terms;
        pass.states = block_.at<void>(layout_.hidden_states);
        pass.states_gradient = block_.at<void>(layout_.gradient_states);
        pass.states_written = written;
        written |= (pointers.instance->plugin->taps & uform_tap_columns_k) != 0;
        pass.bags = bags();
        pass.bags_gradient = bags_gradient();
        if (whole_.taps & uform_tap_world_bags_k) {
            pass.world_bags = world_bags();
            pass.world_bags_gradient = world_bags_gradient();
        }
        if (pointers.instance->vectors_width) {
            pass.vectors = vectors(*pointers.instance);
            pass.world_vectors = world_vectors(*pointers.instance);
            pass.world_vectors_gradient = world_vectors_gradient(*pointers.instance);
        }
        pass.reconstruct = reconstruct_for;
        call_plugin(*pointers.instance, "forward_backward",
                    [&] { return pointers.instance->plugin->forward_backward(pointers.instance->self, &pass); });
        look_through_taps(*pointers.instance, pointers.instance->plugin->taps);
        look_through_parameters(*pointers.instance);
    }
}

/** Finds what is not finite in what a third party wrote: what others wrote before it is looked through already. */
void replica::look_through(plugin_parts const& parts, finding what, void const* values, uint32_t rows, uint32_t width,
                           int32_t scalar) {
    int const place = parts.findings[static_cast<uint32_t>(what)];
    if (place == no_place_k)
        return;
    uform_widen_t look{};
    look.rows = rows;
    look.width = width;
    look.scalar = scalar;
    look.row_stride = width;
    look.column_stride = 1;
    look.from = values;
    look.not_finite = state()->not_finite + place;
    check(operations_.rows_widen(stream_, &look));
}

void replica::look_through_taps(plugin_parts const& parts, uint32_t taps) {
    uint32_t const hidden = whole_.run.hidden, bags = whole_.run.bags_capacity;
    if (taps & uform_tap_world_bags_k)
        look_through(parts, finding::bags, world_bags_gradient(), whole_.run.world_devices * bags, hidden,
                     uform_scalar_float32_k);
    else if (taps & uform_tap_bags_k)
        look_through(parts, finding::bags, bags_gradient(), bags, hidden, uform_scalar_float32_k);
    if (taps & uform_tap_columns_k)
        look_through_columns(parts, block_.at<void>(layout_.gradient_states));
}

/** Columns' states or their gradient, in the backend's type. */
void replica::look_through_columns(plugin_parts const& parts, void const* values) {
    uint32_t const hidden = whole_.run.hidden;
    bool const wide = operations_.state_bytes(hidden) == sizeof(float) * hidden;
    look_through(parts, finding::columns, values, columns_.active, hidden,
                 wide ? uform_scalar_float32_k : uform_scalar_bfloat16_k);
}

/** A plugin's parameters lie end to end. */
void replica::look_through_parameters(plugin_parts const& parts) {
    if (parts.own || parts.parameters.empty())
        return;
    parameter_table const& table = whole_.declared.parameters;
    parameter const &first = table.at(parts.parameters.front()), &last = table.at(parts.parameters.back());
    // Parameters begin at multiples of these, and what lies between one's end and the next is zero.
    constexpr uint32_t values = parameter_table::alignment_k;
    uint64_t const rows = (last.offset + last.count() - first.offset + values - 1) / values;
    look_through(parts, finding::parameters, gradient() + first.offset, static_cast<uint32_t>(rows), values,
                 uform_scalar_float32_k);
}

uform_answer_t replica::infer(size_t place) {
    auto const& pointers = objectives_[place];
    uform_host_t host{.parts = pointers.instance, .replica = this};
    uform_pass_t pass = pass_over_columns(pointers, &host);
    pass.bags = bags();
    uform_answer_t answer{};
    if (pointers.instance->vectors_width)
        call_plugin(*pointers.instance, "columns_forward",
                    [&] { return pointers.instance->plugin->columns_forward(pointers.instance->self, &pass); });
    call_plugin(*pointers.instance, "infer",
                [&] { return pointers.instance->plugin->infer(pointers.instance->self, &pass, &answer); });
    return answer;
}

void replica::reconstruct(uint32_t modality, float const* scale, float const* weight, double* term) {
    int const place = whole_.find(modality);
    if (place < 0)
        fail(uform_status_internal_k, "reconstruct: the run has no modality ", modality);
    auto const& pointers = modalities_[static_cast<size_t>(place)];
    if (pointers.instance->plugin->cover_kind == uform_cover_kind_none_k)
        fail(uform_status_invalid_argument_k, "reconstruct: the columns of plugin ", pointers.instance->name,
             " cannot be covered");
    uform_host_t host{.parts = pointers.instance, .replica = this};
    uform_pass_t const pass = pass_for(pointers, &host);
    auto const* counts = reinterpret_cast<batch_counts const*>(columns_.counts);
    uform_reconstruction_t reconstruction{};
    reconstruction.active = covered_active();
    reconstruction.capacity = static_cast<uint32_t>(whole_.covered_capacity);
    reconstruction.before = counts->covered_first + place;
    reconstruction.count = counts->covered_of + place;
    reconstruction.rows = block_.at<void>(layout_.covered_rows);
    reconstruction.rows_gradient = block_.at<float>(layout_.covered_gradient);
    reconstruction.scale = scale;
    reconstruction.weight = weight;
    reconstruction.term = term;
    call_plugin(*pointers.instance, "reconstruct", [&] {
        return pointers.instance->plugin->reconstruct(pointers.instance->self, &pass, &reconstruction);
    });
}

void replica::backpropagate() {
    graphs_.run(section::backward, size_, [&] { backpropagate_all(); });
}

void replica::backpropagate_all() {
    // The first tap overwrites the gradient of the hidden states, later ones add. Bags reach nearly all columns, and so
    // come before the covered ones, which would have to zero the others.
    bool written = (whole_.taps & uform_tap_columns_k) != 0;
    bool const pooled = (whole_.taps & (uform_tap_bags_k | uform_tap_world_bags_k)) != 0;
    if (pooled || (!written && !whole_.covered_capacity)) {
        uform_pool_t pool = pool_arguments();
        pool.accumulate = written;
        check(operations_.pool_backward(stream_, &pool));
        written = true;
    }
    if (whole_.covered_capacity) {
        uform_rows_t rows = rows_arguments();
        rows.accumulate = written;
        check(operations_.rows_scatter(stream_, &rows));
    }
    columns_backward();
    uform_norm_t const norm = norm_arguments();
    check(operations_.norm_backward(stream_, &norm));
    encoder_backward(operations_, stream_, layers_);
    for (auto const& pointers : modalities_) {
        uform_host_t host{.parts = pointers.instance, .replica = this};
        uform_pass_t pass = pass_for(pointers, &host);
        pass.states_gradient = layers_.front().gradient;
        call_plugin(*pointers.instance, "embed_backward",
                    [&] { return pointers.instance->plugin->embed_backward(pointers.instance->self, &pass); });
        look_through_parameters(*pointers.instance);
    }
}

void replica::update() {
    step_size any; // columns have no part in it
    any.bucket = 1;
    graphs_.run(section::update, any, [&] { apply_update(); });
}

void replica::apply_update() {
    settings const& run = whole_.derived;
    uform_update_t update{};
    update.count = whole_.declared.parameters.flat();
    update.parameters = parameters();
    update.gradient = gradient();
    update.first_moment = first_moment();
    update.second_moment = second_moment();
    update.spans = block_.at<uform_parameter_span_t>(layout_.spans);
    update.spans_count = static_cast<uint32_t>(whole_.declared.parameters.all().size());
    update.terms_count = static_cast<uint32_t>(whole_.declared.terms.size());
    update.peak = run.schedule.learning_rate;
    update.floor = run.schedule.min_learning_rate;
    update.warmup_steps = run.schedule.warmup_steps;
    update.steps = run.schedule.steps;
    update.beta1 = run.optimizer.beta1;
    update.beta2 = run.optimizer.beta2;
    update.epsilon = run.optimizer.epsilon;
    update.decay = run.optimizer.weight_decay;
    update.max_norm = run.optimizer.max_gradient_norm;
    update.state = state();
    update.workspace = block_.at<void>(layout_.update_workspace);
    update.workspace_bytes = operations_.update_workspace_bytes(update.count);
    check(operations_.update(stream_, &update));
}

uform_norm_t replica::norm_arguments() const {
    uform_norm_t norm{};
    norm.columns = columns_;
    norm.hidden = whole_.run.hidden;
    norm.gain = weights_[whole_.norm];
    norm.gain_gradient = gradients_[whole_.norm];
    norm.input = layers_.back().output;
    norm.output = block_.at<void>(layout_.hidden_states);
    norm.inverse_rms = block_.at<float>(layout_.inverse_rms);
    norm.gradient = layers_.back().gradient;
    norm.workspace = block_.at<void>(layout_.norm_workspace);
    norm.workspace_bytes = layout_.norm_workspace_bytes;
    return norm;
}

uform_pool_t replica::pool_arguments() const {
    uform_pool_t pool{};
    pool.columns = columns_;
    pool.hidden = whole_.run.hidden;
    pool.hidden_states = block_.at<void>(layout_.hidden_states);
    pool.pooled = bags();
    pool.lengths = block_.at<float>(layout_.lengths);
    pool.bag_columns = block_.at<uint32_t>(layout_.bag_columns);
    if (whole_.training()) {
        pool.pooled_gradient = bags_gradient();
        pool.gradient = block_.at<void>(layout_.gradient_states);
    }
    pool.workspace = block_.at<void>(layout_.pool_workspace);
    pool.workspace_bytes = layout_.pool_workspace_bytes;
    return pool;
}

uform_rows_t replica::rows_arguments() const {
    uform_rows_t rows{};
    rows.hidden = whole_.run.hidden;
    rows.capacity = static_cast<uint32_t>(whole_.covered_capacity);
    rows.active = covered_active();
    rows.count = &reinterpret_cast<batch_counts const*>(columns_.counts)->covered;
    rows.indices = reinterpret_cast<uint32_t const*>(device_staging() + layout_.staging_parts.covered);
    rows.states = block_.at<void>(layout_.hidden_states);
    rows.rows = block_.at<void>(layout_.covered_rows);
    rows.rows_gradient = block_.at<float>(layout_.covered_gradient);
    rows.gradient = block_.at<void>(layout_.gradient_states);
    rows.columns_active = columns_.active;
    return rows;
}

/** An upper bound of the covered columns that depends on the bucket alone. */
uint32_t replica::covered_active() const {
    return std::min(static_cast<uint32_t>(whole_.covered_capacity), columns_.active);
}

/** Where a world tap is in use, this device's own slots of it: the sum over devices then holds both taps. */
float* replica::bags_gradient() const {
    if (!(whole_.taps & uform_tap_world_bags_k))
        return block_.at<float>(layout_.bags_gradient);
    size_t const rank = whole_.run.first_rank + device_;
    return world_bags_gradient() + rank * whole_.run.bags_capacity * whole_.run.hidden;
}

} // namespace uform
