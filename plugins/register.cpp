/** The first party's plugins, in the order in which a run asks for them. A new one is added here and nowhere else. */
#include <uform/plugin.h>

#include "plugins/modalities/image/image.h"
#include "plugins/modalities/text/text.h"
#include "plugins/objectives/choices/choices.h"
#include "plugins/objectives/contrastive/contrastive.h"
#include "plugins/objectives/late_interaction/late_interaction.h"
#include "plugins/objectives/masked/masked.h"

extern "C" {

uform_objective_plugin_t const* const uform_own_objectives[] = {&uform::masked_plugin, &uform::contrastive_plugin,
                                                                &uform::late_interaction_plugin, &uform::choices_plugin,
                                                                nullptr};
uform_modality_plugin_t const* const uform_own_modalities[] = {&uform::text_plugin, &uform::image_plugin, nullptr};
}
