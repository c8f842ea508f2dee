#include "config.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "plugins/objectives/pair_derivation.h"

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

class contrastive_derivation : public pair_derivation<uform_contrastive_t> {
public:
    contrastive_derivation(uform_contrastive_t& config, uform_run_t const& run)
        : pair_derivation("Contrastive", config, run) {}

    contrastive_derivation& run() {
        check_enumerations();
        derive_prefixes();
        derive_count("temperature_groups", config_.temperature_groups, 1);
        derive_form(clip_inverse_temperature_k, sigmoid_inverse_temperature_k);
        derive_negatives();
        return *this;
    }

private:
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
};

} // namespace

uform_status_t derive(void* config, uform_run_t const* run, uform_declare_t const* declare) {
    return contrastive_derivation(*static_cast<uform_contrastive_t*>(config), *run).run().answer(*declare);
}

} // namespace uform::contrastive
