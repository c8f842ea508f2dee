/** What the configurations of the pairwise objectives share: form, temperature, bias, negatives, edges. */
#pragma once

#include "plugins/objectives/derivation.h"

namespace uform {

/** The bounds of an inverse temperature, not of its logarithm; the sigmoid form may be sharper. */
constexpr double min_inverse_temperature_k = 1;
constexpr double max_inverse_temperature(int form) { return form == uform_pair_loss_form_sigmoid_k ? 1000 : 100; }

/** @tparam config_at `uform_contrastive_t` or `uform_late_interaction_t`, which name these fields alike. */
template <typename config_at> class pair_derivation : public derivation {
public:
    pair_derivation(char const* of, config_at& config, uform_run_t const& run)
        : derivation(of), config_(config), run_(run) {}

protected:
    void check_enumerations() {
        if (config_.negatives < uform_negatives_ambient_k || config_.negatives > uform_negatives_named_k)
            refuse("negatives", config_.negatives, "no value of Negatives");
        if (config_.pair_loss < uform_pair_loss_form_derived_k || config_.pair_loss > uform_pair_loss_form_sigmoid_k)
            refuse("pair_loss", config_.pair_loss, "no value of PairLossForm");
        if (config_.ambient_scope < uform_ambient_scope_every_k ||
            config_.ambient_scope > uform_ambient_scope_cross_side_k)
            refuse("ambient_scope", config_.ambient_scope, "no value of AmbientScope");
    }

    /** The form, then what depends on it: the bias and the temperature, which derives to one of the two. */
    void derive_form(double temperature, double temperature_of_sigmoid) {
        if (!(std::fabs(config_.bias) <= largest_bias_k)) // NaN is refused, too
            refuse("bias", config_.bias, "it must be finite, and its magnitude at most 1e6");
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
            config_.inverse_temperature = sigmoid ? temperature_of_sigmoid : temperature;
        double const most = max_inverse_temperature(config_.pair_loss);
        if (!(config_.inverse_temperature >= min_inverse_temperature_k && config_.inverse_temperature <= most))
            refuse("inverse_temperature", config_.inverse_temperature, "it must lie between ",
                   min_inverse_temperature_k, " and ", most);
    }

    void derive_negatives() {
        derive_weight("ambient_repulsion_weight", config_.ambient_repulsion_weight);
        derive_count("max_edges_per_device", config_.max_edges_per_device,
                     int64_t(edges_per_segment_k) * run_.segments_capacity);
    }

    config_at& config_;
    uform_run_t const& run_;

private:
    static constexpr double sigmoid_bias_k = -10;
    /** A bias is a value of either sign, so a true zero is asked for by a magnitude below this. */
    static constexpr double smallest_bias_k = 1e-20;
    static constexpr double largest_bias_k = 1e6;
    static constexpr int edges_per_segment_k = 4;
};

} // namespace uform
