/** The table of a run's parameters and where each lies in the flat buffers. */
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/operations.h"

namespace uform {

struct parameter {
    std::string name;
    uint32_t rows;
    uint32_t columns; /* 0: a vector of `rows` values */
    uint32_t kind;    /* uform_parameter_kind_t */
    double deviation; /* of the normal initial value; 0: `value` everywhere */
    double value;
    float minimum, maximum;
    uint64_t offset = 0; /* in values, into every flat buffer */

    /** One extent for vectors, two where there are columns. */
    std::vector<uint64_t> shape() const;
    uint64_t count() const { return uint64_t(rows) * (columns ? columns : 1); }
    /** "within a and b", for a message. */
    std::string bounds() const;
    bool decayed() const { return kind == uform_parameter_kind_matrix_k || kind == uform_parameter_kind_embedding_k; }
};

/** Writes a parameter's initial values: the same for a name whatever else is in the run. */
void initialise(parameter const& one, uint64_t seed, float* values);

class parameter_table {
public:
    /** A parameter begins on a cache line, so that vector loads of one never straddle another. */
    static constexpr uint32_t alignment_k = 16;

    /** Answers the parameter's index. Refuses a taken name, an empty shape and more values than memory can address. */
    uint32_t add(parameter asked);

    std::vector<parameter> const& all() const { return all_; }
    parameter const& at(uint32_t index) const { return all_[index]; }
    parameter const* find(std::string_view name) const;
    uint64_t trained() const;               /* values that are parameters */
    uint64_t flat() const { return flat_; } /* values of a flat buffer, padding included */

private:
    std::vector<parameter> all_;
    std::map<std::string, uint32_t, std::less<>> index_;
    uint64_t flat_ = 0;
};

/** Names and places of one block's weights. */
struct block_parameters {
    uint32_t norm1, qkv, out, norm2, up, down;
};

/** Adds the encoder's parameters: one entry a block, then the final norm's gain in `norm`. */
std::vector<block_parameters> add_encoder_parameters(parameter_table& table, uform_extents_t const& extents,
                                                     uint32_t& norm);

} // namespace uform
