/** What a training run would take, told before any of it is taken. */
#pragma once

#include <string>

#include <uform/uform.h>

#include "core/executor.h"

namespace uform {

/** The plan of a run with these options on that executor, as JSON: the bytes of each device and of the host. */
std::string budget(executor& on, uform_trainer_options_t const& options);

} // namespace uform
