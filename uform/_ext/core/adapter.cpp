#include "core/adapter.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "core/evaluate.h"
#include "core/executor.h"
#include "core/fields.h"
#include "core/relations.h"

namespace uform {

namespace {

constexpr char masked_k[] = "masked";
constexpr char contrastive_k[] = "contrastive";
constexpr char late_interaction_k[] = "late_interaction";
constexpr char choices_k[] = "choices";
constexpr char const* modality_names_k[] = {"text", "image", "video", "audio"};

constexpr char const* negatives_names_k[] = {"AMBIENT", "NAMED"};
constexpr char const* pair_loss_names_k[] = {"DERIVED", "BALANCED", "RANKED", "SIGMOID"};
constexpr char const* ambient_scope_names_k[] = {"EVERY", "CROSS_MODAL", "TARGETS", "CROSS_SIDE"};

/** The members of the page's enumeration that a field of structures takes, none where it takes no enumeration. */
std::span<char const* const> members_of(std::string_view field) {
    if (field == "negatives")
        return negatives_names_k;
    if (field == "pair_loss")
        return pair_loss_names_k;
    if (field == "ambient_scope")
        return ambient_scope_names_k;
    return {};
}

bool is_own(std::string_view name) {
    return name == masked_k || name == contrastive_k || name == late_interaction_k || name == choices_k;
}

bool is_own_modality(std::string_view name) {
    return std::find(std::begin(modality_names_k), std::end(modality_names_k), name) != std::end(modality_names_k);
}

bool asks_masked(int32_t objective) { return objective != uform_objective_contrastive_k; }
bool asks_contrastive(int32_t objective) { return objective != uform_objective_masked_k; }

char const* objective_name(bool masked, bool contrastive) {
    return masked ? contrastive ? "JOINT" : "MASKED" : contrastive ? "CONTRASTIVE" : "none";
}

bool saved_has(json const& saved, char const* kind, std::string_view name) {
    return saved.at(kind).find(name) != nullptr;
}

void check_objective(uform_trainer_options_t const& options, json const& saved) {
    bool const masked = saved_has(saved, "objectives", masked_k);
    bool const contrastive = saved_has(saved, "objectives", contrastive_k);
    // The enumeration's zero takes what the file has.
    if (options.objective != 0 &&
        (asks_masked(options.objective) != masked || asks_contrastive(options.objective) != contrastive))
        fail(uform_status_invalid_argument_k, "objective: the checkpoint has ", objective_name(masked, contrastive),
             ", ", objective_name(asks_masked(options.objective), asks_contrastive(options.objective)), " was asked");
    if (options.late_interaction && !saved_has(saved, "objectives", late_interaction_k))
        fail(uform_status_invalid_argument_k, "late_interaction: the checkpoint has none, one was asked");
    if (options.choices && !saved_has(saved, "objectives", choices_k))
        fail(uform_status_invalid_argument_k, "choices: the checkpoint has none, some were asked");
    if (options.batch.max_choices_per_item > 0 && !saved_has(saved, "objectives", choices_k))
        fail(uform_status_invalid_argument_k,
             "BatchShape.max_choices_per_item: the checkpoint has no choices, room for ",
             options.batch.max_choices_per_item, " was asked");
}

void check_shape(char const* name, int32_t given, json const* section, char const* field) {
    int64_t const saved = section ? section->at(field).as_int64(field) : 0;
    if (given != 0 && given != saved)
        fail(uform_status_invalid_argument_k, "BatchShape.", name, ".", field, ": the checkpoint has ", saved, ", ",
             given, " was asked");
}

void check_shapes(uform_batch_shape_t const& batch, json const& saved) {
    json const& modalities = saved.at("modalities");
    json const* const image = modalities.find("image");
    check_shape("image", batch.image.patch_side, image, "patch_side");
    check_shape("image", batch.image.channels, image, "channels");
    json const* const video = modalities.find("video");
    check_shape("video", batch.video.patch_side, video, "patch_side");
    check_shape("video", batch.video.tube_frames, video, "tube_frames");
    check_shape("video", batch.video.frame_stride, video, "frame_stride");
    check_shape("video", batch.video.channels, video, "channels");
    json const* const audio = modalities.find("audio");
    check_shape("audio", batch.audio.chunk_samples, audio, "chunk_samples");
    check_shape("audio", batch.audio.sample_rate, audio, "sample_rate");
}

/** Whether a first-party modality takes part: its structure says so, or the checkpoint has it. */
void add_modalities(settings& made, uform_batch_shape_t const& batch, json const* saved) {
    auto const has = [&](char const* name) { return saved && saved_has(*saved, "modalities", name); };
    made.modalities.push_back({"text", {}});
    if (batch.image.patch_side || has("image"))
        made.modalities.push_back(selection::of("image", batch.image));
    if (batch.video.patch_side || has("video"))
        made.modalities.push_back(selection::of("video", batch.video));
    if (batch.audio.chunk_samples || has("audio"))
        made.modalities.push_back(selection::of("audio", batch.audio));
}

/** Late interaction's configuration with what it takes of Contrastive. */
uform_late_interaction_t with_contrastive(uform_late_interaction_t config, uform_contrastive_t const& contrastive) {
    config.negatives = contrastive.negatives;
    config.ambient_repulsion_weight = contrastive.ambient_repulsion_weight;
    config.max_edges_per_device = contrastive.max_edges_per_device;
    config.ambient_scope = contrastive.ambient_scope;
    return config;
}

/** What `with_contrastive` fills in: the page shows it as Contrastive's own. */
constexpr std::string_view of_contrastive_k[] = {"negatives", "ambient_repulsion_weight", "max_edges_per_device",
                                                 "ambient_scope"};

void add_objectives(settings& made, uform_trainer_options_t const& options, json const* saved) {
    auto const has = [&](char const* name) { return saved && saved_has(*saved, "objectives", name); };
    if (saved ? has(masked_k) : asks_masked(options.objective))
        made.objectives.push_back(selection::of(masked_k, options.masking));
    if (saved ? has(contrastive_k) : asks_contrastive(options.objective))
        made.objectives.push_back(selection::of(contrastive_k, options.contrastive));
    if (options.late_interaction || has(late_interaction_k)) {
        uform_late_interaction_t const own =
            options.late_interaction ? *options.late_interaction : uform_late_interaction_t{};
        made.objectives.push_back(selection::of(late_interaction_k, with_contrastive(own, options.contrastive)));
    }
    if (options.choices)
        made.objectives.push_back(selection::of(choices_k, *options.choices));
    else if (saved ? has(choices_k) : options.batch.max_choices_per_item > 0)
        made.objectives.push_back({choices_k, {}});
}

/** Third parties' objectives and modalities, each by its name. */
void add_plugins(settings& made, uform_trainer_options_t const& options, json const* saved) {
    for (size_t index = 0; index != options.plugins_count; ++index) {
        uform_plugin_option_t const& option = options.plugins[index];
        if (!option.name || is_own(option.name) || is_own_modality(option.name))
            fail(uform_status_invalid_argument_k, "plugins: ", option.name ? option.name : "a plugin without a name",
                 option.name && std::string_view(option.name) == "text" ? " is part of every run"
                                                                        : " has its own field");
        auto const* bytes = static_cast<uint8_t const*>(option.config);
        selection chosen{option.name, {bytes, bytes + (bytes ? option.config_bytes : 0)}};
        bool const modality = find_modality(option.name) != nullptr;
        if (!modality && !find_objective(option.name))
            fail(uform_status_invalid_argument_k, "plugins: no plugin named ", option.name, " is registered");
        if (saved && !saved_has(*saved, modality ? "modalities" : "objectives", option.name))
            fail(uform_status_invalid_argument_k, "plugins: the checkpoint has no ", option.name, ", it was asked");
        (modality ? made.modalities : made.objectives).push_back(std::move(chosen));
    }
}

/** The plugins of the checkpoint, in its order, each with what was asked of it. */
std::vector<selection> follow(json const& saved, char const* kind, std::vector<selection> asked) {
    std::vector<selection> chosen;
    for (auto const& [name, section] : saved.at(kind).as_object(kind)) {
        auto const found =
            std::find_if(asked.begin(), asked.end(), [&](selection const& one) { return one.name == name; });
        chosen.push_back(found == asked.end() ? selection{name, {}} : std::move(*found));
    }
    return chosen;
}

/** Refuses the first field given of a page's structure that `is_read` says nothing in the run reads. */
template <typename is_read_at>
void refuse_unread(char const* structure, char const* plugin, void const* config, std::string const& why,
                   is_read_at&& is_read) {
    uform_objective_plugin_t const& known = *find_objective(plugin);
    for (uform_field_t const& field : std::span(known.fields, known.fields_count))
        if (!field_is_zero(field, config) && !is_read(std::string_view(field.name)))
            fail(uform_status_invalid_argument_k, structure, ".", field.name, " is ", shown_field(field, config),
                 ": nothing reads it, since ", why);
}

bool is_chosen(std::vector<selection> const& chosen, std::string_view name) {
    return std::any_of(chosen.begin(), chosen.end(), [&](selection const& one) { return one.name == name; });
}

/** What a shape says of a modality that it leaves out. */
void refuse_unread_shape(char const* field, int32_t value, char const* enabling, int32_t enabled) {
    if (value && !enabled)
        fail(uform_status_invalid_argument_k, "BatchShape.", field, " is ", value, ": nothing reads it, since its ",
             enabling, " is 0");
}

void refuse_unread_shapes(uform_batch_shape_t const& batch) {
    refuse_unread_shape("image.channels", batch.image.channels, "patch_side", batch.image.patch_side);
    refuse_unread_shape("video.tube_frames", batch.video.tube_frames, "patch_side", batch.video.patch_side);
    refuse_unread_shape("video.frame_stride", batch.video.frame_stride, "patch_side", batch.video.patch_side);
    refuse_unread_shape("video.channels", batch.video.channels, "patch_side", batch.video.patch_side);
    refuse_unread_shape("audio.sample_rate", batch.audio.sample_rate, "chunk_samples", batch.audio.chunk_samples);
}

void refuse_unread_masking(settings const& made, uform_masking_t const& masking, std::string const& objective) {
    auto const nothing = [](std::string_view) { return false; };
    if (!is_chosen(made.objectives, masked_k))
        refuse_unread("Masking", masked_k, &masking, objective, nothing);
    for (std::string const name : modality_names_k)
        if (!is_chosen(made.modalities, name))
            refuse_unread("Masking", masked_k, &masking, "the run's batch shape leaves " + name + " out",
                          [&](std::string_view field) { return !field.starts_with(name + "_"); });
}

/** Whether the pairs of this run that nothing names push each other apart. */
bool has_ambient_negatives(uform_contrastive_t const& contrastive, json const* saved) {
    if (contrastive.negatives || !saved)
        return contrastive.negatives == uform_negatives_ambient_k;
    for (char const* name : {contrastive_k, late_interaction_k})
        if (json const* const section = saved->at("objectives").find(name))
            return section->at("negatives").as_int64("negatives") == uform_negatives_ambient_k;
    return true;
}

void refuse_unread_bias(char const* structure, double bias, int32_t form) {
    if (bias && (form == uform_pair_loss_form_balanced_k || form == uform_pair_loss_form_ranked_k))
        fail(uform_status_invalid_argument_k, structure, ".bias is ", bias, ": nothing reads it, since pair_loss is ",
             pair_loss_names_k[form]);
}

void refuse_unread_contrastive(settings const& made, uform_contrastive_t const& contrastive, json const* saved,
                               std::string const& objective) {
    bool const late = is_chosen(made.objectives, late_interaction_k);
    if (!is_chosen(made.objectives, contrastive_k))
        refuse_unread("Contrastive", contrastive_k, &contrastive,
                      objective + (late ? ", of which late interaction reads other fields" : ""),
                      [&](std::string_view field) {
                          return late && std::find(std::begin(of_contrastive_k), std::end(of_contrastive_k), field) !=
                                             std::end(of_contrastive_k);
                      });
    if (!has_ambient_negatives(contrastive, saved))
        refuse_unread("Contrastive", contrastive_k, &contrastive, "negatives is NAMED",
                      [](std::string_view field) { return !field.starts_with("ambient_"); });
    refuse_unread_bias("Contrastive", contrastive.bias, contrastive.pair_loss);
}

/** Refuses what was given to this call and would be lost: a field that is not zero and that nothing in the run reads.
 */
void refuse_unread(settings const& made, uform_trainer_options_t const& options, json const* saved) {
    std::string const objective =
        std::string("the run's objective is ") +
        objective_name(is_chosen(made.objectives, masked_k), is_chosen(made.objectives, contrastive_k));
    if (!saved) // else the checkpoint's shapes are compared with it
        refuse_unread_shapes(options.batch);
    refuse_unread_masking(made, options.masking, objective);
    refuse_unread_contrastive(made, options.contrastive, saved, objective);
    if (options.late_interaction)
        refuse_unread_bias("LateInteraction", options.late_interaction->bias, options.late_interaction->pair_loss);
}

void check_enumeration(char const* name, int32_t value, int32_t count) {
    if (value < 0 || value >= count)
        fail(uform_status_invalid_argument_k, name, ": between 0 and ", count - 1, ", not ", value);
}

double* term_field(uform_trainer_step_stats_t& stats, std::string_view name) {
    if (name == "contrastive_loss")
        return &stats.contrastive_loss;
    if (name == "masked_text_loss")
        return &stats.masked_text_loss;
    if (name == "masked_image_loss")
        return &stats.masked_image_loss;
    if (name == "masked_video_loss")
        return &stats.masked_video_loss;
    if (name == "masked_audio_loss")
        return &stats.masked_audio_loss;
    if (name == "late_interaction_loss")
        return &stats.late_interaction_loss;
    if (name == "choices_loss")
        return &stats.choices_loss;
    return nullptr;
}

} // namespace

settings settings_of(uform_trainer_options_t const& options, json const* saved) {
    check_enumeration("objective", options.objective, 3);
    settings made;
    made.depth = options.depth;
    made.hidden = options.hidden;
    made.batch = options.batch;
    if (options.choices && made.batch.max_choices_per_item == 0 && !saved)
        made.batch.max_choices_per_item = 16;
    made.schedule = options.schedule;
    made.optimizer = options.optimizer;
    made.seed = options.seed;
    if (saved) {
        check_objective(options, *saved);
        check_shapes(options.batch, *saved);
    }
    add_modalities(made, options.batch, saved);
    add_objectives(made, options, saved);
    add_plugins(made, options, saved);
    if (saved) {
        made.modalities = follow(*saved, "modalities", std::move(made.modalities));
        made.objectives = follow(*saved, "objectives", std::move(made.objectives));
    }
    refuse_unread(made, options, saved);
    return made;
}

step_reads reads_of(std::span<objective_instance const> objectives) {
    step_reads reads;
    for (objective_instance const& one : objectives) {
        bool const foreign = !is_own(one.name), late = one.name == late_interaction_k;
        reads.groups |= foreign || one.name == contrastive_k;
        reads.relations |= foreign || late || one.name == contrastive_k;
        reads.sides |= foreign || late;
        if (one.name == contrastive_k) {
            uform_contrastive_t config;
            std::memcpy(&config, one.config.data(), sizeof(config));
            reads.sides |= config.ambient_scope == uform_ambient_scope_cross_side_k;
        }
    }
    return reads;
}

std::string shown_field(uform_field_t const& field, void const* config) {
    if (!field_is_finite(field, config)) // which JSON does not spell
        return "not finite";
    json const value = field_value(field, config);
    std::span<char const* const> const members = members_of(field.name);
    if (members.empty() || field.type != uform_field_type_int32_k)
        return value.dump();
    int64_t const member = value.as_int64(field.name);
    bool const named = member >= 0 && static_cast<size_t>(member) < members.size();
    return named ? members[static_cast<size_t>(member)] : value.dump();
}

json page_description(json const& configuration) {
    json page = json::make_object();
    json const& network = configuration.at("network");
    page.set("depth", network.at("depth"));
    page.set("hidden", network.at("hidden"));
    json const& objectives = configuration.at("objectives");
    page.set("objective", objective_name(objectives.find(masked_k), objectives.find(contrastive_k)));
    json batch = configuration.at("batch");
    json const& modalities = configuration.at("modalities");
    for (char const* name : modality_names_k)
        if (std::string_view(name) != "text")
            if (json const* shape = modalities.find(name))
                batch.set(name, *shape);
    page.set("batch", std::move(batch));
    auto const rename = [&](char const* from, char const* to) {
        if (json const* section = objectives.find(from))
            page.set(to, *section);
    };
    rename(masked_k, "masking");
    rename(contrastive_k, contrastive_k);
    if (json const* section = objectives.find(late_interaction_k)) {
        json own = json::make_object(), of_contrastive = json::make_object();
        for (auto const& [name, value] : section->as_object(late_interaction_k)) {
            bool const shared =
                std::find(std::begin(of_contrastive_k), std::end(of_contrastive_k), name) != std::end(of_contrastive_k);
            (shared ? of_contrastive : own).set(name, value);
        }
        if (!objectives.find(contrastive_k)) // else they are among the objective's
            page.set(contrastive_k, std::move(of_contrastive));
        page.set(late_interaction_k, std::move(own));
    }
    rename(choices_k, choices_k);
    page.set("schedule", configuration.at("schedule"));
    page.set("optimizer", configuration.at("optimizer"));
    page.set("seed", configuration.at("seed"));
    json plugins = json::make_object();
    for (auto const& [name, section] : objectives.as_object("objectives"))
        if (!is_own(name))
            plugins.set(name, section);
    for (auto const& [name, section] : modalities.as_object("modalities"))
        if (!is_own_modality(name))
            plugins.set(name, section);
    page.set("plugins", std::move(plugins));
    return page;
}

bool is_stats_field(std::string_view name) {
    uform_trainer_step_stats_t none{};
    constexpr std::string_view others[] = {"step",    "learning_rate", "loss", "truncated",
                                           "dropped", "gradient_norm", "extra"};
    return term_field(none, name) || std::find(std::begin(others), std::end(others), name) != std::end(others);
}

void report_terms(std::span<term const> terms, std::span<double const> values, uform_trainer_step_stats_t& stats,
                  std::vector<uform_named_value_t>& extra) {
    extra.clear();
    stats.loss = 0;
    for (size_t index = 0; index != terms.size(); ++index) {
        stats.loss += terms[index].weight * values[index];
        if (double* const field = term_field(stats, terms[index].name))
            *field = values[index];
        else
            extra.push_back({terms[index].name.c_str(), values[index]});
    }
    stats.extra = extra.data();
    stats.extra_count = extra.size();
}

namespace {

/** What a scope reads must be given. */
void check_scope(uform_contrastive_t const& config, uint8_t const* modalities, uint8_t const* sides) {
    if (config.ambient_scope == uform_ambient_scope_cross_modal_k && !modalities)
        fail(uform_status_invalid_argument_k, "modalities: ambient_scope CROSS_MODAL needs them");
    if (config.ambient_scope == uform_ambient_scope_cross_side_k && !sides)
        fail(uform_status_invalid_argument_k, "sides: ambient_scope CROSS_SIDE needs them");
}

/** Over given vectors zero is no bound, whereas a run derives one. */
void bound_edges(uform_contrastive_t& config, uform_relations_t const& relations) {
    if (config.max_edges_per_device == 0)
        config.max_edges_per_device = static_cast<int32_t>(std::clamp<uint64_t>(count_edges(relations), 1, INT32_MAX));
}

} // namespace

} // namespace uform

extern "C" {

uform_status_t uform_contrastive_loss(uform_executor_t* executor, uform_contrastive_loss_t const* problem) {
    return uform::guard([&] {
        uform_contrastive_t config = problem->contrastive;
        uform::refuse_unread_bias("Contrastive", config.bias, config.pair_loss);
        uform::check_scope(config, problem->modalities, problem->sides);
        uform::bound_edges(config, problem->relations);
        uform::pair_loss_problem given{};
        given.field = "embeddings";
        given.data = problem->embeddings;
        given.items = given.rows = problem->count;
        given.width = problem->width;
        given.scalar = problem->scalar, given.strided = problem->strided;
        given.row_stride = problem->row_stride, given.column_stride = problem->column_stride;
        given.modalities = problem->modalities, given.sides = problem->sides;
        given.temperature_groups = problem->temperature_groups;
        given.relations = &problem->relations;
        given.max_edges = config.max_edges_per_device;
        given.loss = problem->loss, given.gradient = problem->gradient;
        given.log_inverse_temperature_gradient = problem->log_inverse_temperature_gradient;
        given.bias_gradient = problem->bias_gradient;
        given.row_losses = problem->row_losses, given.counted_rows = problem->rows;
        given.rows_count = problem->rows_count;
        uform::evaluate_pairs(*executor->body, uform::selection::of(uform::contrastive_k, config), given);
    });
}

uform_status_t uform_late_interaction_loss(uform_executor_t* executor, uform_late_interaction_loss_t const* problem) {
    return uform::guard([&] {
        uform_contrastive_t contrastive = problem->contrastive;
        uform::refuse_unread_bias("LateInteraction", problem->late_interaction.bias,
                                  problem->late_interaction.pair_loss);
        uform::check_scope(contrastive, problem->modalities, problem->sides);
        uform::bound_edges(contrastive, problem->relations);
        uform_late_interaction_t config = uform::with_contrastive(problem->late_interaction, contrastive);
        config.weight = 1;
        config.width = static_cast<int32_t>(problem->width);
        if (config.max_query_span == 0) // given queries are as long as they are
            config.max_query_span = UFORM_RUN_CAPACITY;
        uform::pair_loss_problem given{};
        given.field = "tokens";
        given.data = problem->tokens;
        given.items = problem->count, given.rows = problem->count ? problem->offsets[problem->count] : 0;
        given.width = problem->width;
        given.offsets = problem->offsets;
        given.scalar = problem->scalar, given.strided = problem->strided;
        given.row_stride = problem->row_stride, given.column_stride = problem->column_stride;
        given.modalities = problem->modalities, given.sides = problem->sides;
        given.relations = &problem->relations;
        given.max_edges = config.max_edges_per_device;
        given.loss = problem->loss, given.gradient = problem->gradient;
        given.log_inverse_temperature_gradient = problem->log_inverse_temperature_gradient;
        given.bias_gradient = problem->bias_gradient;
        given.row_losses = problem->row_losses, given.counted_rows = problem->rows;
        given.rows_count = problem->rows_count;
        uform::evaluate_pairs(*executor->body, uform::selection::of(uform::late_interaction_k, config), given);
    });
}
}
