#include "config.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>
#include <string>

namespace uform::contrastive {

uform_field_t const fields[] = {
    {"matryoshka_dimensions", uform_field_type_int32_list_k, offsetof(uform_contrastive_t, matryoshka_dimensions),
     UFORM_MATRYOSHKA_CAPACITY, offsetof(uform_contrastive_t, matryoshka_count)},
    {"temperature_groups", uform_field_type_int32_k, offsetof(uform_contrastive_t, temperature_groups), 1, 0},
    {"inverse_temperature", uform_field_type_double_k, offsetof(uform_contrastive_t, inverse_temperature), 1, 0},
    {"bias", uform_field_type_double_k, offsetof(uform_contrastive_t, bias), 1, 0},
    {"negatives", uform_field_type_int32_k, offsetof(uform_contrastive_t, negatives), 1, 0},
    {"ambient_repulsion_weight", uform_field_type_double_k, offsetof(uform_contrastive_t, ambient_repulsion_weight), 1,
     0},
    {"max_edges_per_device", uform_field_type_int32_k, offsetof(uform_contrastive_t, max_edges_per_device), 1, 0},
    {"pair_loss", uform_field_type_int32_k, offsetof(uform_contrastive_t, pair_loss), 1, 0},
    {"ambient_scope", uform_field_type_int32_k, offsetof(uform_contrastive_t, ambient_scope), 1, 0},
};
std::size_t const fields_count = std::size(fields);

namespace {

constexpr double clip_inverse_temperature_k = 1 / 0.07;
constexpr double sigmoid_inverse_temperature_k = 10;
constexpr double sigmoid_bias_k = -10;
/** A bias is a value of either sign, so a true zero is asked for by a magnitude below this. */
constexpr double smallest_bias_k = 1e-20;
constexpr double largest_bias_k = 1e6;
constexpr int edges_per_segment_k = 4;

/** Derives one configuration; the first refusal keeps its message and later ones are not looked for. */
class derivation {
public:
    derivation(uform_contrastive_t& config, uform_run_t const& run) : config_(config), run_(run) {}

    /** Empty where everything was accepted. */
    std::string run() {
        check_enumerations();
        derive_prefixes();
        derive_groups();
        derive_form();
        derive_ambient_weight();
        derive_edges();
        return message_;
    }

private:
    template <typename value_at, typename... parts_at>
    void refuse(char const* field, value_at value, parts_at const&... why) {
        if (!message_.empty())
            return;
        std::ostringstream text;
        text << "Contrastive." << field << " is " << value << ": ";
        (text << ... << why);
        message_ = std::move(text).str();
    }

    void check_enumerations() {
        if (config_.negatives < uform_negatives_ambient_k || config_.negatives > uform_negatives_named_k)
            refuse("negatives", config_.negatives, "no value of Negatives");
        if (config_.pair_loss < uform_pair_loss_form_derived_k || config_.pair_loss > uform_pair_loss_form_sigmoid_k)
            refuse("pair_loss", config_.pair_loss, "no value of PairLossForm");
        if (config_.ambient_scope < uform_ambient_scope_every_k ||
            config_.ambient_scope > uform_ambient_scope_cross_side_k)
            refuse("ambient_scope", config_.ambient_scope, "no value of AmbientScope");
    }

    void derive_prefixes() {
        int32_t* const first = config_.matryoshka_dimensions;
        int32_t& count = config_.matryoshka_count;
        if (count < 0 || count > UFORM_MATRYOSHKA_CAPACITY)
            return refuse("matryoshka_dimensions", count, "the list may have at most ", UFORM_MATRYOSHKA_CAPACITY,
                          " entries");
        for (int32_t place = 0; place < count; ++place)
            if (first[place] < 1 || static_cast<uint32_t>(first[place]) > run_.hidden)
                return refuse(("matryoshka_dimensions[" + std::to_string(place) + "]").c_str(), first[place],
                              "a prefix has from 1 to ", run_.hidden, " columns");
        if (count == 0)
            first[count++] = static_cast<int32_t>(run_.hidden);
        std::sort(first, first + count);
        count = static_cast<int32_t>(std::unique(first, first + count) - first);
        std::fill(first + count, first + UFORM_MATRYOSHKA_CAPACITY, 0);
    }

    void derive_groups() {
        if (config_.temperature_groups < 0)
            refuse("temperature_groups", config_.temperature_groups, "a count is not negative");
        if (config_.temperature_groups == 0)
            config_.temperature_groups = 1;
    }

    /** The form first: the derived temperature and bias depend on it. */
    void derive_form() {
        if (!std::isfinite(config_.bias))
            refuse("bias", config_.bias, "it must be finite");
        if (std::fabs(config_.bias) > largest_bias_k)
            refuse("bias", config_.bias, "its magnitude must be at most 1e6");
        if (config_.pair_loss == uform_pair_loss_form_derived_k)
            config_.pair_loss = config_.bias != 0                              ? uform_pair_loss_form_sigmoid_k
                                : config_.negatives == uform_negatives_named_k ? uform_pair_loss_form_ranked_k
                                                                               : uform_pair_loss_form_balanced_k;
        bool const sigmoid = config_.pair_loss == uform_pair_loss_form_sigmoid_k;
        if (config_.bias == 0)
            config_.bias = sigmoid ? sigmoid_bias_k : 0;
        else if (std::fabs(config_.bias) < smallest_bias_k)
            config_.bias = 0;
        if (config_.inverse_temperature == 0)
            config_.inverse_temperature = sigmoid ? sigmoid_inverse_temperature_k : clip_inverse_temperature_k;
        double const most = max_inverse_temperature(config_.pair_loss);
        // Written so that NaN is refused, too.
        if (!(config_.inverse_temperature >= min_inverse_temperature_k && config_.inverse_temperature <= most))
            refuse("inverse_temperature", config_.inverse_temperature, "it must lie between ",
                   min_inverse_temperature_k, " and ", most);
    }

    void derive_ambient_weight() {
        double& weight = config_.ambient_repulsion_weight;
        if (!std::isfinite(weight) || !std::isfinite(static_cast<float>(weight)))
            refuse("ambient_repulsion_weight", weight, "it must be finite, as a float32 too");
        else if (weight == 0)
            weight = 1;
        else
            weight = std::max(weight, 0.0); // a negative weight asks for a true zero
    }

    void derive_edges() {
        int32_t& edges = config_.max_edges_per_device;
        if (edges < 0)
            refuse("max_edges_per_device", edges, "a count is not negative");
        if (edges == 0)
            edges = static_cast<int32_t>(
                std::min<int64_t>(int64_t(edges_per_segment_k) * run_.segments_capacity, INT32_MAX));
    }

    uform_contrastive_t& config_;
    uform_run_t const& run_;
    std::string message_;
};

} // namespace

uform_status_t derive(void* config, uform_run_t const* run, uform_declare_t const* declare) {
    std::string const message = derivation(*static_cast<uform_contrastive_t*>(config), *run).run();
    if (message.empty())
        return uform_status_success_k;
    return declare->fail(declare->host, uform_status_invalid_argument_k, message.c_str());
}

} // namespace uform::contrastive
