/** Pairwise losses over vectors, panel by panel, so that the matrix of scores is never whole in memory. */
#include <algorithm>
#include <cmath>

#include "ram/operations.h"
#include "ram/pair_row.h"

namespace uform::ram {

namespace {

/** Rows whose dot products with every unit are in memory at a time. */
constexpr std::size_t panel_rows_k = 128;
/** Rows of a panel, and units, that one task takes. */
constexpr std::size_t rows_per_chunk_k = 16;
constexpr std::size_t units_per_chunk_k = 64;

constexpr double smallest_length_k = 1e-12;

double dot_exactly(float const* left, float const* right, std::size_t width) {
    double sum = 0;
    for (std::size_t column = 0; column < width; ++column)
        sum += double(left[column]) * right[column];
    return sum;
}

/** The parts of the operations' workspace. */
struct pairs_workspace {
    float* panel;        /* [panel rows, units] dot products, then coefficients */
    float* row_vectors;  /* [panel rows, width] */
    float* row_gradient; /* [panel rows, width] */
    float* vectors;      /* [units, width] of units with indices */
    float* gradient;     /* as `vectors` */
    named_pair* named;   /* [edges] */
    row_sums* rows;      /* [rows] */
    row_sums* groups;    /* [groups] */

    explicit pairs_workspace(uform_pairs_t const& pairs) {
        workspace_parts parts(pairs.workspace);
        panel = parts.take<float>(panel_rows_k * pairs.units_capacity);
        row_vectors = parts.take<float>(panel_rows_k * pairs.width);
        row_gradient = parts.take<float>(panel_rows_k * pairs.width);
        vectors = parts.take<float>(std::size_t(pairs.units_capacity) * pairs.width);
        gradient = parts.take<float>(std::size_t(pairs.units_capacity) * pairs.width);
        named = parts.take<named_pair>(pairs.edges_capacity);
        rows = parts.take<row_sums>(pairs.rows_capacity);
        groups = parts.take<row_sums>(pairs.groups);
    }
};

/** Which units a row sees as ambient where no edge names them. */
class pair_scope {
public:
    pair_scope(uform_pairs_t const& pairs, std::size_t row) : pairs_(pairs), unit_(pairs.rows[row]) {}

    bool operator()(std::uint32_t unit) const {
        constexpr std::uint8_t query = uform_late_interaction_side_query_k;
        constexpr std::uint8_t document = uform_late_interaction_side_document_k;
        if (pairs_.negatives != uform_negatives_ambient_k || !(pairs_.ambient_weight > 0) || unit == unit_)
            return false;
        switch (pairs_.scope) {
        case uform_ambient_scope_cross_modal_k:
            return !(pairs_.modalities[unit_] & pairs_.modalities[unit]);
        case uform_ambient_scope_targets_k:
            return pairs_.targets[unit] != 0;
        case uform_ambient_scope_cross_side_k:
            return ((pairs_.sides[unit_] & query) && (pairs_.sides[unit] & document)) ||
                   ((pairs_.sides[unit_] & document) && (pairs_.sides[unit] & query));
        default:
            return true;
        }
    }

private:
    uform_pairs_t const& pairs_;
    std::uint32_t unit_;
};

/** A row with its dot products with every unit. Named pairs are taken anew in float64: they lie at the extremes, where
 *  the temperature makes the most of a rounding. */
pair_row<pair_scope> row_of(uform_pairs_t const& pairs, pairs_workspace const& workspace, std::size_t row,
                            float* dots) {
    std::uint32_t const group = pairs.row_groups[row];
    pair_row<pair_scope> made({pairs.form,
                               std::exp(double(static_cast<float const*>(pairs.log_inverse_temperature)[group])),
                               static_cast<float const*>(pairs.bias)[group], pairs.ambient_weight, pairs.counts[0]},
                              {pairs.edge_units, pairs.edge_classes, pairs.edge_weights, pairs.edge_offsets[row],
                               pairs.edge_offsets[row + 1]},
                              pair_scope(pairs, row), dots, workspace.named);
    made.name([&](std::uint32_t unit) {
        return dot_exactly(pairs.vectors + std::size_t(pairs.rows[row]) * pairs.width,
                           pairs.vectors + std::size_t(unit) * pairs.width, pairs.width);
    });
    return made;
}

/** Calls `body(own, indexed)` with the offsets of each unit's values: in the workspace, and where its index says. */
template <typename body_at> void each_indexed(stream const& stream, uform_pairs_t const& pairs, body_at&& body) {
    stream.backend.parallel_chunks(pairs.counts[0], rows_per_task_k, [&](std::size_t begin, std::size_t end) {
        for (std::size_t unit = begin; unit < end; ++unit)
            body(unit * pairs.width, std::size_t(pairs.indices[unit]) * pairs.width);
    });
}

/** The same pairs without indices: products want the units' vectors, and gradients, end to end. */
uform_pairs_t gather_units(stream const& stream, uform_pairs_t const& pairs, pairs_workspace const& workspace) {
    uform_pairs_t gathered = pairs;
    if (!pairs.indices)
        return gathered;
    each_indexed(stream, pairs, [&](std::size_t own, std::size_t indexed) {
        std::copy_n(pairs.vectors + indexed, pairs.width, workspace.vectors + own);
    });
    gathered.indices = nullptr;
    gathered.vectors = workspace.vectors;
    gathered.gradient = workspace.gradient;
    return gathered;
}

/** Adds the gathered gradients to those of the units' rows. */
void scatter_gradients(stream const& stream, uform_pairs_t const& pairs, pairs_workspace const& workspace) {
    each_indexed(stream, pairs, [&](std::size_t own, std::size_t indexed) {
        for (std::size_t column = 0; column < pairs.width; ++column)
            pairs.gradient[indexed + column] += workspace.gradient[own + column];
    });
}

/** Dot products of rows [first, first + count) with every unit. */
void fill_panel(stream const& stream, uform_pairs_t const& pairs, pairs_workspace const& workspace, std::size_t first,
                std::size_t count) {
    std::size_t const width = pairs.width;
    std::size_t const units = pairs.counts[0];
    stream.backend.parallel_chunks(count, rows_per_chunk_k, [&](std::size_t begin, std::size_t end) {
        for (std::size_t row = begin; row < end; ++row)
            std::copy_n(pairs.vectors + pairs.rows[first + row] * width, width, workspace.row_vectors + row * width);
        stream.backend.gemm().nt(end - begin, units, width, 1, workspace.row_vectors + begin * width, width,
                                 pairs.vectors, width, 0, workspace.panel + begin * units, units);
    });
}

/** Calls `body(row, dots)` for each row that counts, in parallel, and `after(first, count)` behind each panel of them.
 */
template <typename body_at, typename after_at>
void visit_rows(stream const& stream, uform_pairs_t const& pairs, pairs_workspace const& workspace, body_at&& body,
                after_at&& after) {
    std::size_t const units = pairs.counts[0];
    std::size_t const rows = pairs.counts[1];
    for (std::size_t first = 0; first < rows; first += panel_rows_k) {
        std::size_t const count = std::min(panel_rows_k, rows - first);
        fill_panel(stream, pairs, workspace, first, count);
        stream.backend.parallel_chunks(count, rows_per_chunk_k, [&](std::size_t begin, std::size_t end) {
            for (std::size_t row = begin; row < end; ++row)
                body(first + row, workspace.panel + row * units);
        });
        after(first, count);
    }
}

/** The coefficients of a panel pull on the candidates, which take them panel by panel, and on the rows themselves. */
void add_vector_gradients(stream const& stream, uform_pairs_t const& pairs, pairs_workspace const& workspace,
                          std::size_t first, std::size_t count) {
    gemm const& product = stream.backend.gemm();
    std::size_t const width = pairs.width;
    std::size_t const units = pairs.counts[0];
    stream.backend.parallel_chunks(units, units_per_chunk_k, [&](std::size_t begin, std::size_t end) {
        product.tn(end - begin, width, count, 1, workspace.panel + begin, units, workspace.row_vectors, width, 1,
                   pairs.gradient + begin * width, width);
    });
    stream.backend.parallel_chunks(count, rows_per_chunk_k, [&](std::size_t begin, std::size_t end) {
        product.nn(end - begin, width, units, 1, workspace.panel + begin * units, units, pairs.vectors, width, 0,
                   workspace.row_gradient + begin * width, width);
        for (std::size_t row = begin; row < end; ++row) {
            float* const to = pairs.gradient + pairs.rows[first + row] * width;
            for (std::size_t column = 0; column < width; ++column)
                to[column] += workspace.row_gradient[row * width + column];
        }
    });
}

void add_group_gradients(uform_pairs_t const& pairs, pairs_workspace const& workspace, double scale) {
    std::fill_n(workspace.groups, pairs.groups, row_sums{});
    for (std::uint32_t row = 0; row < pairs.counts[1]; ++row) {
        row_sums& group = workspace.groups[pairs.row_groups[row]];
        group.log_inverse_temperature += workspace.rows[row].log_inverse_temperature;
        group.bias += workspace.rows[row].bias;
    }
    for (std::uint32_t group = 0; group < pairs.groups; ++group) {
        pairs.log_inverse_temperature_gradient[group] +=
            static_cast<float>(scale * workspace.groups[group].log_inverse_temperature);
        if (pairs.form == uform_pair_loss_form_sigmoid_k)
            pairs.bias_gradient[group] += static_cast<float>(scale * workspace.groups[group].bias);
    }
}

} // namespace

void prefix_forward(stream const& stream, uform_prefix_t const& prefix) {
    stream.backend.parallel_chunks(*prefix.count, rows_per_task_k, [&](std::size_t begin, std::size_t end) {
        for (std::size_t row = begin; row < end; ++row) {
            float const* const from = prefix.source + std::size_t(prefix.indices[row]) * prefix.stride;
            float* const to = prefix.vectors + row * prefix.width;
            double const length = std::sqrt(dot_exactly(from, from, prefix.width));
            double const divisor = prefix.normalize ? std::max(length, smallest_length_k) : 1;
            for (std::size_t column = 0; column < prefix.width; ++column)
                to[column] = static_cast<float>(from[column] / divisor);
            prefix.lengths[row] = static_cast<float>(length);
        }
    });
}

void prefix_backward(stream const& stream, uform_prefix_t const& prefix) {
    stream.backend.parallel_chunks(*prefix.count, rows_per_task_k, [&](std::size_t begin, std::size_t end) {
        for (std::size_t row = begin; row < end; ++row) {
            float const* const unit = prefix.vectors + row * prefix.width;
            float const* const gradient = prefix.vectors_gradient + row * prefix.width;
            float* const to = prefix.source_gradient + std::size_t(prefix.indices[row]) * prefix.stride;
            // Below the smallest length the divisor is a constant, and above it only what is across the vector moves
            // it.
            bool const scaled = prefix.normalize && prefix.lengths[row] > smallest_length_k;
            double const along = scaled ? dot_exactly(unit, gradient, prefix.width) : 0;
            double const divisor = prefix.normalize ? std::max<double>(prefix.lengths[row], smallest_length_k) : 1;
            for (std::size_t column = 0; column < prefix.width; ++column)
                to[column] += static_cast<float>((gradient[column] - along * unit[column]) / divisor);
        }
    });
}

std::size_t pairs_workspace_bytes(std::uint32_t units, std::uint32_t rows, std::uint32_t edges, std::uint32_t width,
                                  std::uint32_t groups) {
    return part_bytes<float>(panel_rows_k * units) + 2 * part_bytes<float>(panel_rows_k * width) +
           2 * part_bytes<float>(std::size_t(units) * width) + part_bytes<named_pair>(edges) +
           part_bytes<row_sums>(rows) + part_bytes<row_sums>(groups);
}

void pairs_forward(stream const& stream, uform_pairs_t const& given) {
    pairs_workspace const workspace(given);
    uform_pairs_t const pairs = gather_units(stream, given, workspace);
    visit_rows(
        stream, pairs, workspace,
        [&](std::size_t row, float* dots) {
            row_outcome const outcome = row_of(pairs, workspace, row, dots).forward();
            workspace.rows[row].loss = outcome.loss;
            pairs.row_logs[row] = outcome.log;
            pairs.row_forces[row] = outcome.forces;
            if (pairs.row_losses)
                pairs.row_losses[row] += static_cast<float>(pairs.row_losses_scale * workspace.rows[row].loss);
        },
        [](std::size_t, std::size_t) {});
    double sum = 0;
    for (std::uint32_t row = 0; row < pairs.counts[1]; ++row)
        sum += workspace.rows[row].loss;
    *pairs.loss += *pairs.scale * sum;
}

void pairs_backward(stream const& stream, uform_pairs_t const& given) {
    pairs_workspace const workspace(given);
    uform_pairs_t const pairs = gather_units(stream, given, workspace);
    double const scale = *pairs.scale;
    std::fill_n(pairs.gradient, std::size_t(pairs.counts[0]) * pairs.width, 0.0f);
    visit_rows(
        stream, pairs, workspace,
        [&](std::size_t row, float* dots) {
            workspace.rows[row] = row_of(pairs, workspace, row, dots).backward(scale);
        },
        [&](std::size_t first, std::size_t count) { add_vector_gradients(stream, pairs, workspace, first, count); });
    if (given.indices)
        scatter_gradients(stream, given, workspace);
    add_group_gradients(pairs, workspace, scale);
}

} // namespace uform::ram
