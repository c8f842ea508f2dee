/** Zeros of a configuration that a checkpoint answers. */
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/fields.h"

namespace uform {

/** The saved values of one configuration structure; empty where there is no checkpoint. */
class saved_config {
public:
    saved_config(uform_field_t const* fields, size_t count, size_t bytes, json const* saved, std::string_view path);

    /** Before derivation: gives zeros of `config` the saved values. */
    void complete(void* config) const;

    /**
     *  After derivation, which cannot tell a saved zero from a field left out: gives `config` the saved value of every
     * field that is zero in `given`.
     */
    void restore_left_out(void const* given, void* config) const;

private:
    uform_field_t const* fields_;
    size_t count_;
    std::vector<uint8_t> saved_;
};

} // namespace uform
