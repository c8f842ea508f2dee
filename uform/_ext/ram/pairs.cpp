/** Pairwise losses over vectors, panel by panel, so that the matrix of scores is never whole in memory. */
#include <algorithm>
#include <cmath>
#include <limits>

#include "ram/operations.h"

namespace uform::ram {

namespace {

/** Rows whose dot products with every unit are in memory at a time. */
constexpr std::size_t panel_rows_k = 128;
/** Rows of a panel, and units, that one task takes. */
constexpr std::size_t rows_per_chunk_k = 16;
constexpr std::size_t units_per_chunk_k = 64;

constexpr double smallest_length_k = 1e-12;

/** log(1 + e^x) and 1 / (1 + e^-x) without overflow. */
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }
double sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }

double dot_exactly(float const* left, float const* right, std::size_t width) {
    double sum = 0;
    for (std::size_t column = 0; column < width; ++column)
        sum += double(left[column]) * right[column];
    return sum;
}

/** A sum of kappa e^score, kept by its largest score. */
struct exponential_sum {
    double maximum = -std::numeric_limits<double>::infinity();
    double sum = 0;

    void add(double kappa, double score) {
        if (score > maximum) {
            sum *= std::exp(maximum - score);
            maximum = score;
        }
        sum += kappa * std::exp(score - maximum);
    }

    bool empty() const { return sum == 0; }
    double log() const { return maximum + std::log(sum); }
    /** kappa e^score as a part of the sum. */
    double share(double kappa, double score) const { return kappa * std::exp(score - maximum) / sum; }
};

/** A named pair of a row: its score and, backward, d loss / d score. */
struct named_pair {
    double score;
    double force;
};

/** What one row adds to the gradients of its group's parameters; forward only `loss`. */
struct row_sums {
    double loss;
    double log_inverse_temperature;
    double bias;
};

/** The parts of the operations' workspace. */
struct pairs_workspace {
    float* panel;        /* [panel rows, units] dot products, then coefficients */
    float* row_vectors;  /* [panel rows, width] */
    float* row_gradient; /* [panel rows, width] */
    named_pair* named;   /* [edges] */
    row_sums* rows;      /* [rows] */
    row_sums* groups;    /* [groups] */

    explicit pairs_workspace(uform_pairs_t const& pairs) {
        workspace_parts parts(pairs.workspace);
        panel = parts.take<float>(panel_rows_k * pairs.units_capacity);
        row_vectors = parts.take<float>(panel_rows_k * pairs.width);
        row_gradient = parts.take<float>(panel_rows_k * pairs.width);
        named = parts.take<named_pair>(pairs.edges_capacity);
        rows = parts.take<row_sums>(pairs.rows_capacity);
        groups = parts.take<row_sums>(pairs.groups);
    }
};

/** One row while it is scored. */
class pair_row {
public:
    /** @param dots The row's dot products with every unit. Named pairs are taken anew in float64: they lie at the
     * extremes, where the temperature makes the most of a rounding. */
    pair_row(uform_pairs_t const& pairs, pairs_workspace const& workspace, std::size_t row, float* dots)
        : pairs_(pairs), row_(row), unit_(pairs.rows[row]), begin_(pairs.edge_offsets[row]),
          end_(pairs.edge_offsets[row + 1]), dots_(dots), named_(workspace.named) {
        std::uint32_t const group = pairs.row_groups[row];
        tau_ = std::exp(double(static_cast<float const*>(pairs.log_inverse_temperature)[group]));
        beta_ = sigmoid_form() ? double(static_cast<float const*>(pairs.bias)[group]) : 0;
        for (std::uint32_t edge = begin_; edge < end_; ++edge) {
            float const* const left = pairs.vectors + std::size_t(unit_) * pairs.width;
            float const* const right = pairs.vectors + std::size_t(pairs.edge_units[edge]) * pairs.width;
            named_[edge] = {tau_ * dot_exactly(left, right, pairs.width) + beta_, 0};
            if (pairs.edge_classes[edge] == uform_pair_class_attracted_k)
                attraction_ += pairs.edge_weights[edge];
        }
    }

    double forward() {
        exponential_sum const sum = sigmoid_form() ? exponential_sum() : sum_exponentials();
        pairs_.row_logs[row_] = sum.empty() ? -std::numeric_limits<float>::infinity() : static_cast<float>(sum.log());
        pairs_.row_forces[row_] = 0;
        switch (pairs_.form) {
        case uform_pair_loss_form_ranked_k:
            return forward_ranked(sum);
        case uform_pair_loss_form_sigmoid_k:
            return forward_sigmoid();
        default:
            return forward_balanced(sum);
        }
    }

    /** Replaces the dot products by `scale` times the loss's derivatives by them, and answers the row's own sums. The
     * sums of exponentials are built anew in float64: a logarithm of a hundred in float32 would cost the small forces
     * of a row that its positive dominates. */
    row_sums backward(double scale) {
        row_sums sums{};
        switch (pairs_.form) {
        case uform_pair_loss_form_ranked_k:
            find_ranked_forces();
            break;
        case uform_pair_loss_form_sigmoid_k:
            find_sigmoid_forces();
            break;
        default:
            find_balanced_forces();
            break;
        }
        visit_units([&](std::uint32_t unit, bool ambient) {
            double const score = tau_ * dots_[unit] + beta_;
            double const force = ambient ? ambient_force(score) : 0;
            add_force(sums, force, score);
            dots_[unit] = static_cast<float>(force * tau_ * scale);
        });
        for (std::uint32_t edge = begin_; edge < end_; ++edge) {
            add_force(sums, named_[edge].force, named_[edge].score);
            dots_[pairs_.edge_units[edge]] = static_cast<float>(named_[edge].force * tau_ * scale);
        }
        return sums;
    }

private:
    bool sigmoid_form() const { return pairs_.form == uform_pair_loss_form_sigmoid_k; }
    bool attracts(std::uint32_t edge) const { return pairs_.edge_classes[edge] == uform_pair_class_attracted_k; }
    bool repels(std::uint32_t edge) const { return pairs_.edge_classes[edge] == uform_pair_class_repelled_k; }
    double weight(std::uint32_t edge) const { return pairs_.edge_weights[edge]; }
    double target(std::uint32_t edge) const { return weight(edge) / attraction_; }

    /** Whether the row sees an unnamed unit as an ambient negative. */
    bool in_scope(std::uint32_t unit) const {
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

    /** Calls `body(unit, ambient)` for every unit, ascending; a named one is never ambient. */
    template <typename body_at> void visit_units(body_at&& body) const {
        std::uint32_t edge = begin_;
        for (std::uint32_t unit = 0; unit < pairs_.counts[0]; ++unit) {
            bool const named = edge < end_ && pairs_.edge_units[edge] == unit;
            edge += named;
            body(unit, !named && in_scope(unit));
        }
    }

    /** Over repelled and ambient pairs; BALANCED adds the attracted ones. */
    exponential_sum sum_exponentials() const {
        exponential_sum sum;
        visit_units([&](std::uint32_t unit, bool ambient) {
            if (ambient)
                sum.add(pairs_.ambient_weight, tau_ * dots_[unit] + beta_);
        });
        for (std::uint32_t edge = begin_; edge < end_; ++edge) {
            if (repels(edge))
                sum.add(weight(edge), named_[edge].score);
            else if (attracts(edge) && pairs_.form == uform_pair_loss_form_balanced_k)
                sum.add(1, named_[edge].score);
        }
        return sum;
    }

    double forward_balanced(exponential_sum const& sum) const {
        double loss = 0;
        for (std::uint32_t edge = begin_; edge < end_; ++edge)
            if (attracts(edge))
                loss += target(edge) * (sum.log() - named_[edge].score);
        return loss;
    }

    double forward_ranked(exponential_sum const& sum) {
        if (sum.empty())
            return 0;
        double loss = 0;
        double forces = 0;
        for (std::uint32_t edge = begin_; edge < end_; ++edge) {
            if (!attracts(edge))
                continue;
            double const gap = sum.log() - named_[edge].score;
            loss += target(edge) * softplus(gap);
            forces += target(edge) * sigmoid(gap);
        }
        pairs_.row_forces[row_] = static_cast<float>(forces);
        return loss;
    }

    double forward_sigmoid() const {
        double loss = 0;
        visit_units([&](std::uint32_t unit, bool ambient) {
            if (ambient)
                loss += pairs_.ambient_weight * softplus(tau_ * dots_[unit] + beta_);
        });
        for (std::uint32_t edge = begin_; edge < end_; ++edge) {
            if (attracts(edge))
                loss += weight(edge) * softplus(-named_[edge].score);
            else if (repels(edge))
                loss += weight(edge) * softplus(named_[edge].score);
        }
        return loss;
    }

    void find_balanced_forces() {
        sum_ = sum_exponentials();
        opposition_ = 1;
        for (std::uint32_t edge = begin_; edge < end_; ++edge) {
            double const score = named_[edge].score;
            if (attracts(edge))
                named_[edge].force = sum_.share(1, score) - target(edge);
            else if (repels(edge))
                named_[edge].force = sum_.share(weight(edge), score);
        }
    }

    void find_ranked_forces() {
        sum_ = sum_exponentials();
        opposition_ = 0;
        if (sum_.empty())
            return;
        for (std::uint32_t edge = begin_; edge < end_; ++edge) {
            if (!attracts(edge))
                continue;
            double const force = target(edge) * sigmoid(sum_.log() - named_[edge].score);
            named_[edge].force = -force;
            opposition_ += force;
        }
        for (std::uint32_t edge = begin_; edge < end_; ++edge)
            if (repels(edge))
                named_[edge].force = opposition_ * sum_.share(weight(edge), named_[edge].score);
    }

    void find_sigmoid_forces() {
        for (std::uint32_t edge = begin_; edge < end_; ++edge) {
            if (attracts(edge))
                named_[edge].force = -weight(edge) * sigmoid(-named_[edge].score);
            else if (repels(edge))
                named_[edge].force = weight(edge) * sigmoid(named_[edge].score);
        }
    }

    double ambient_force(double score) const {
        if (sigmoid_form())
            return pairs_.ambient_weight * sigmoid(score);
        return opposition_ * sum_.share(pairs_.ambient_weight, score);
    }

    void add_force(row_sums& sums, double force, double score) const {
        sums.log_inverse_temperature += force * (score - beta_);
        sums.bias += force;
    }

    uform_pairs_t const& pairs_;
    std::size_t row_;
    std::uint32_t unit_;
    std::uint32_t begin_, end_; /* of its edges */
    float* dots_;
    named_pair* named_; /* of all rows */
    double tau_ = 1;
    double beta_ = 0;
    double attraction_ = 0; /* the sum of the attracted weights */
    exponential_sum sum_;   /* backward's */
    double opposition_ = 0; /* by what the shares of the negatives are multiplied: 1, or RANKED's A */
};

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
           part_bytes<named_pair>(edges) + part_bytes<row_sums>(rows) + part_bytes<row_sums>(groups);
}

void pairs_forward(stream const& stream, uform_pairs_t const& pairs) {
    pairs_workspace const workspace(pairs);
    visit_rows(
        stream, pairs, workspace,
        [&](std::size_t row, float* dots) {
            workspace.rows[row].loss = pair_row(pairs, workspace, row, dots).forward();
            if (pairs.row_losses)
                pairs.row_losses[row] += static_cast<float>(pairs.row_losses_scale * workspace.rows[row].loss);
        },
        [](std::size_t, std::size_t) {});
    double sum = 0;
    for (std::uint32_t row = 0; row < pairs.counts[1]; ++row)
        sum += workspace.rows[row].loss;
    *pairs.loss += *pairs.scale * sum;
}

void pairs_backward(stream const& stream, uform_pairs_t const& pairs) {
    pairs_workspace const workspace(pairs);
    double const scale = *pairs.scale;
    std::fill_n(pairs.gradient, std::size_t(pairs.counts[0]) * pairs.width, 0.0f);
    visit_rows(
        stream, pairs, workspace,
        [&](std::size_t row, float* dots) {
            workspace.rows[row] = pair_row(pairs, workspace, row, dots).backward(scale);
        },
        [&](std::size_t first, std::size_t count) { add_vector_gradients(stream, pairs, workspace, first, count); });
    add_group_gradients(pairs, workspace, scale);
}

} // namespace uform::ram
