#include "core/resume.h"

#include <algorithm>
#include <cstring>

namespace uform {

namespace {

size_t field_bytes(uform_field_t const& field) {
    switch (field.type) {
    case uform_field_type_int32_k:
        return sizeof(int32_t);
    case uform_field_type_int32_list_k:
        return sizeof(int32_t) * field.capacity;
    default:
        return sizeof(int64_t);
    }
}

bool is_zero(uint8_t const* bytes, size_t count) {
    return std::all_of(bytes, bytes + count, [](uint8_t byte) { return byte == 0; });
}

} // namespace

saved_config::saved_config(uform_field_t const* fields, size_t count, size_t bytes, json const* saved,
                           std::string_view path)
    : fields_(fields), count_(count) {
    if (!saved)
        return;
    saved_.resize(bytes);
    restore_fields(fields, count, saved_.data(), *saved, path);
}

void saved_config::complete(void* config) const {
    if (!saved_.empty())
        fill_zeros_from(fields_, count_, config, saved_.data());
}

void saved_config::restore_left_out(void const* given, void* config) const {
    if (saved_.empty())
        return;
    for (size_t index = 0; index != count_; ++index) {
        uform_field_t const& field = fields_[index];
        bool const list = field.type == uform_field_type_int32_list_k;
        size_t const tested = list ? field.count_offset : field.offset;
        size_t const tested_bytes = list ? sizeof(int32_t) : field_bytes(field);
        if (!is_zero(static_cast<uint8_t const*>(given) + tested, tested_bytes))
            continue;
        auto const copy = [&](size_t offset, size_t bytes) {
            std::memcpy(static_cast<uint8_t*>(config) + offset, saved_.data() + offset, bytes);
        };
        copy(field.offset, field_bytes(field));
        if (list)
            copy(field.count_offset, sizeof(int32_t));
    }
}

} // namespace uform
