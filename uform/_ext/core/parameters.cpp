#include "core/parameters.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/random.h"

namespace uform {

namespace {

// Far under what offsets in bytes can count, and over what any machine holds.
constexpr uint64_t most_values_k = uint64_t(1) << 56;

constexpr double initial_deviation_k = 0.02;

uint32_t name_number(std::string_view name) {
    // FNV-1a: random draws are counted by the parameter's name, so that adding a plugin moves no one else's values.
    uint32_t number = 2166136261u;
    for (char letter : name)
        number = (number ^ static_cast<uint8_t>(letter)) * 16777619u;
    return number;
}

parameter matrix(std::string name, uint32_t rows, uint32_t columns, double deviation) {
    float const endless = std::numeric_limits<float>::infinity();
    return {std::move(name), rows, columns, uform_parameter_kind_matrix_k, deviation, 0, -endless, endless};
}

parameter gain(std::string name, uint32_t rows) {
    float const endless = std::numeric_limits<float>::infinity();
    return {std::move(name), rows, 0, uform_parameter_kind_vector_k, 0, 1, -endless, endless};
}

} // namespace

std::string parameter::bounds() const { return "within " + exact(minimum) + " and " + exact(maximum); }

uint32_t parameter_table::add(parameter asked) {
    if (asked.rows == 0)
        fail(uform_status_invalid_argument_k, "parameter ", asked.name, ": it has no rows");
    if (asked.count() > most_values_k - flat_)
        fail(uform_status_out_of_memory_k, "parameter ", asked.name, ": its ", asked.count(),
             " values pass the address space");
    uint32_t const index = static_cast<uint32_t>(all_.size());
    if (!index_.emplace(asked.name, index).second)
        fail(uform_status_invalid_argument_k, "parameter ", asked.name, ": the name is taken");
    asked.offset = flat_;
    flat_ += (asked.count() + alignment_k - 1) / alignment_k * alignment_k;
    all_.push_back(std::move(asked));
    return index;
}

parameter const* parameter_table::find(std::string_view name) const {
    auto const found = index_.find(name);
    return found == index_.end() ? nullptr : &all_[found->second];
}

uint64_t parameter_table::trained() const {
    uint64_t sum = 0;
    for (parameter const& one : all_)
        sum += one.count();
    return sum;
}

void initialise(parameter const& one, uint64_t seed, float* values) {
    if (one.deviation > 0)
        fill_normal(seed, random_purpose_initial_values_k, name_number(one.name), one.deviation, {values, one.count()});
    else
        std::fill_n(values, one.count(), static_cast<float>(one.value));
    // As the update leaves them, so that what no step has changed can be saved and resumed.
    for (float& value : std::span(values, one.count()))
        value = std::clamp(value, one.minimum, one.maximum);
}

std::vector<uint64_t> parameter::shape() const {
    if (columns)
        return {rows, columns};
    return {rows};
}

std::vector<block_parameters> add_encoder_parameters(parameter_table& table, uform_extents_t const& extents,
                                                     uint32_t& norm) {
    // The two maps that write into the residual stream start smaller: 2 * depth of them add up there.
    double const residual = initial_deviation_k / std::sqrt(2.0 * extents.depth);
    uint32_t const hidden = extents.hidden, inner = extents.inner;
    std::vector<block_parameters> blocks;
    for (uint32_t block = 0; block != extents.depth; ++block) {
        std::string const prefix = "blocks." + std::to_string(block) + ".";
        block_parameters places{};
        places.norm1 = table.add(gain(prefix + "norm1", hidden));
        places.qkv = table.add(matrix(prefix + "qkv", 3 * hidden, hidden, initial_deviation_k));
        places.out = table.add(matrix(prefix + "out", hidden, hidden, residual));
        places.norm2 = table.add(gain(prefix + "norm2", hidden));
        places.up = table.add(matrix(prefix + "up", 2 * inner, hidden, initial_deviation_k));
        places.down = table.add(matrix(prefix + "down", hidden, inner, residual));
        blocks.push_back(places);
    }
    norm = table.add(gain("norm", hidden));
    return blocks;
}

} // namespace uform
