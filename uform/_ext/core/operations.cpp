#include "core/operations.h"

extern "C" uform_operations_t const* uform_operations_ram(void) { return &uform::ram_operations(); }
