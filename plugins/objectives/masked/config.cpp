#include "config.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "plugins/objectives/derivation.h"

namespace uform::masked {

namespace {

constexpr uform_field_t number(char const* name, std::size_t offset) {
    return {name, uform_field_type_double_k, offset, 1, 0};
}

} // namespace

uform_field_t const fields[] = {
    number("token_mask_probability", offsetof(uform_masking_t, token_mask_probability)),
    number("token_mean_span", offsetof(uform_masking_t, token_mean_span)),
    number("replace_fraction", offsetof(uform_masking_t, replace_fraction)),
    number("random_fraction", offsetof(uform_masking_t, random_fraction)),
    number("image_mask_ratio", offsetof(uform_masking_t, image_mask_ratio)),
    number("video_mask_ratio", offsetof(uform_masking_t, video_mask_ratio)),
    number("audio_mask_ratio", offsetof(uform_masking_t, audio_mask_ratio)),
    number("text_weight", offsetof(uform_masking_t, text_weight)),
    number("image_weight", offsetof(uform_masking_t, image_weight)),
    number("video_weight", offsetof(uform_masking_t, video_weight)),
    number("audio_weight", offsetof(uform_masking_t, audio_weight)),
};
std::size_t const fields_count = std::size(fields);

namespace {

constexpr double mask_probability_k = 0.3;
constexpr double mean_span_k = 6;
constexpr double replace_fraction_k = 0.8;
constexpr double random_fraction_k = 0.1;
constexpr double image_ratio_k = 0.6;
constexpr double video_ratio_k = 0.9;
constexpr double audio_ratio_k = 0.65;
/** Fractions as people write them (0.7 and 0.3) may sum to a little more than 1. */
constexpr double rounding_k = 1e-9;

class masking_derivation : public derivation {
public:
    explicit masking_derivation(uform_masking_t& config) : derivation("Masking"), config_(config) {}

    masking_derivation& run() {
        derive_share("token_mask_probability", config_.token_mask_probability, mask_probability_k);
        derive_span();
        derive_fractions();
        derive_share("image_mask_ratio", config_.image_mask_ratio, image_ratio_k);
        derive_share("video_mask_ratio", config_.video_mask_ratio, video_ratio_k);
        derive_share("audio_mask_ratio", config_.audio_mask_ratio, audio_ratio_k);
        derive_weight("text_weight", config_.text_weight);
        derive_weight("image_weight", config_.image_weight);
        derive_weight("video_weight", config_.video_weight);
        derive_weight("audio_weight", config_.audio_weight);
        return *this;
    }

private:
    /** A share from 0 to 1; zero derives and a negative value asks for a true zero. Written so that NaN is refused. */
    void derive_share(char const* field, double& value, double derived) {
        if (!(value <= 1) || std::isinf(value))
            return refuse(field, value, "it must lie between 0 and 1, or be negative for none");
        value = value == 0 ? derived : std::max(value, 0.0);
    }

    void derive_span() {
        double& span = config_.token_mean_span;
        if (span == 0)
            span = mean_span_k;
        if (!(span >= 1) || std::isinf(span))
            refuse("token_mean_span", span, "a span has at least 1 byte in the mean");
    }

    void derive_fractions() {
        double const replace = config_.replace_fraction;
        double const random = config_.random_fraction;
        double const given_random = random == 0 ? random_fraction_k : random;
        derive_share("replace_fraction", config_.replace_fraction, left_by(given_random, replace_fraction_k));
        derive_share("random_fraction", config_.random_fraction, left_by(config_.replace_fraction, random_fraction_k));
        if (config_.replace_fraction + config_.random_fraction > 1 + rounding_k)
            refuse("replace_fraction", replace, "with random_fraction ", random, " it makes more than 1");
    }

    /** `derived`, or what `other` leaves of 1 where that is less. */
    static double left_by(double other, double derived) {
        return std::max(other, 0.0) + derived > 1 + rounding_k ? std::max(1 - other, 0.0) : derived;
    }

    uform_masking_t& config_;
};

} // namespace

uform_status_t derive(void* config, uform_run_t const*, uform_declare_t const* declare) {
    return masking_derivation(*static_cast<uform_masking_t*>(config)).run().answer(*declare);
}

} // namespace uform::masked
