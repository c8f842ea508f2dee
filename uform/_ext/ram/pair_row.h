/** One row of a pairwise loss: from its similarities to its loss and the forces on them (design: "Pairs"). */
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <uform/plugin.h>

namespace uform::ram {

/** log(1 + e^x) and 1 / (1 + e^-x) without overflow. */
inline double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }
inline double sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }

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

/** What the scores of a row are made of. */
struct row_form {
    std::int32_t form; /* uform_pair_loss_form_t, not derived */
    double tau;
    double beta; /* takes part in the sigmoid form alone */
    double ambient_weight;
    std::uint32_t units;
};

/** The named pairs of all rows, and which of them are one row's. */
struct row_edges {
    std::uint32_t const* units; /* ascending within a row */
    std::uint8_t const* classes;
    float const* weights;
    std::uint32_t begin, end;
};

/** What forward tells of a row. */
struct row_outcome {
    double loss;
    float log;    /* of the sum of exponentials, L_i or n_i */
    float forces; /* RANKED's A_i */
};

/**
 *  One row while it is scored.
 *  @tparam scope_at Answers for a unit that no edge names whether the row sees it as an ambient negative.
 */
template <typename scope_at> class pair_row {
public:
    /** @param dots The row's similarities to every unit. @param named Room for the named pairs of all rows. */
    pair_row(row_form const& form, row_edges const& edges, scope_at const& in_scope, float* dots, named_pair* named)
        : form_(form), edges_(edges), in_scope_(in_scope), dots_(dots), named_(named) {
        if (!sigmoid_form())
            form_.beta = 0;
    }

    /** Scores the named pairs; comes first. @param similarity_of Answers a unit's similarity to the row. */
    template <typename similarity_at> void name(similarity_at&& similarity_of) {
        for (std::uint32_t edge = edges_.begin; edge < edges_.end; ++edge) {
            named_[edge] = {form_.tau * similarity_of(edges_.units[edge]) + form_.beta, 0};
            if (attracts(edge))
                attraction_ += edges_.weights[edge];
        }
    }

    row_outcome forward() const {
        exponential_sum const sum = sigmoid_form() ? exponential_sum() : sum_exponentials();
        row_outcome outcome{0, sum.empty() ? -std::numeric_limits<float>::infinity() : static_cast<float>(sum.log()),
                            0};
        switch (form_.form) {
        case uform_pair_loss_form_ranked_k:
            forward_ranked(sum, outcome);
            break;
        case uform_pair_loss_form_sigmoid_k:
            outcome.loss = forward_sigmoid();
            break;
        default:
            outcome.loss = forward_balanced(sum);
            break;
        }
        return outcome;
    }

    /** Replaces the dot products by `scale` times the loss's derivatives by them, and answers the row's own sums. The
     * sums of exponentials are built anew in float64: a logarithm of a hundred in float32 would cost the small forces
     * of a row that its positive dominates. */
    row_sums backward(double scale) {
        row_sums sums{};
        switch (form_.form) {
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
            double const score = form_.tau * dots_[unit] + form_.beta;
            double const force = ambient ? ambient_force(score) : 0;
            add_force(sums, force, score);
            dots_[unit] = static_cast<float>(force * form_.tau * scale);
        });
        for (std::uint32_t edge = edges_.begin; edge < edges_.end; ++edge) {
            add_force(sums, named_[edge].force, named_[edge].score);
            dots_[edges_.units[edge]] = static_cast<float>(named_[edge].force * form_.tau * scale);
        }
        return sums;
    }

private:
    bool sigmoid_form() const { return form_.form == uform_pair_loss_form_sigmoid_k; }
    bool attracts(std::uint32_t edge) const { return edges_.classes[edge] == uform_pair_class_attracted_k; }
    bool repels(std::uint32_t edge) const { return edges_.classes[edge] == uform_pair_class_repelled_k; }
    double weight(std::uint32_t edge) const { return edges_.weights[edge]; }
    double target(std::uint32_t edge) const { return weight(edge) / attraction_; }

    /** Calls `body(unit, ambient)` for every unit, ascending; a named one is never ambient. */
    template <typename body_at> void visit_units(body_at&& body) const {
        std::uint32_t edge = edges_.begin;
        for (std::uint32_t unit = 0; unit < form_.units; ++unit) {
            bool const named = edge < edges_.end && edges_.units[edge] == unit;
            edge += named;
            body(unit, !named && in_scope_(unit));
        }
    }

    /** Over repelled and ambient pairs; BALANCED adds the attracted ones. */
    exponential_sum sum_exponentials() const {
        exponential_sum sum;
        visit_units([&](std::uint32_t unit, bool ambient) {
            if (ambient)
                sum.add(form_.ambient_weight, form_.tau * dots_[unit] + form_.beta);
        });
        for (std::uint32_t edge = edges_.begin; edge < edges_.end; ++edge) {
            if (repels(edge))
                sum.add(weight(edge), named_[edge].score);
            else if (attracts(edge) && form_.form == uform_pair_loss_form_balanced_k)
                sum.add(1, named_[edge].score);
        }
        return sum;
    }

    double forward_balanced(exponential_sum const& sum) const {
        double loss = 0;
        for (std::uint32_t edge = edges_.begin; edge < edges_.end; ++edge)
            if (attracts(edge))
                loss += target(edge) * (sum.log() - named_[edge].score);
        return loss;
    }

    void forward_ranked(exponential_sum const& sum, row_outcome& outcome) const {
        if (sum.empty())
            return;
        double forces = 0;
        for (std::uint32_t edge = edges_.begin; edge < edges_.end; ++edge) {
            if (!attracts(edge))
                continue;
            double const gap = sum.log() - named_[edge].score;
            outcome.loss += target(edge) * softplus(gap);
            forces += target(edge) * sigmoid(gap);
        }
        outcome.forces = static_cast<float>(forces);
    }

    double forward_sigmoid() const {
        double loss = 0;
        visit_units([&](std::uint32_t unit, bool ambient) {
            if (ambient)
                loss += form_.ambient_weight * softplus(form_.tau * dots_[unit] + form_.beta);
        });
        for (std::uint32_t edge = edges_.begin; edge < edges_.end; ++edge) {
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
        for (std::uint32_t edge = edges_.begin; edge < edges_.end; ++edge) {
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
        for (std::uint32_t edge = edges_.begin; edge < edges_.end; ++edge) {
            if (!attracts(edge))
                continue;
            double const force = target(edge) * sigmoid(sum_.log() - named_[edge].score);
            named_[edge].force = -force;
            opposition_ += force;
        }
        for (std::uint32_t edge = edges_.begin; edge < edges_.end; ++edge)
            if (repels(edge))
                named_[edge].force = opposition_ * sum_.share(weight(edge), named_[edge].score);
    }

    void find_sigmoid_forces() {
        for (std::uint32_t edge = edges_.begin; edge < edges_.end; ++edge) {
            if (attracts(edge))
                named_[edge].force = -weight(edge) * sigmoid(-named_[edge].score);
            else if (repels(edge))
                named_[edge].force = weight(edge) * sigmoid(named_[edge].score);
        }
    }

    double ambient_force(double score) const {
        if (sigmoid_form())
            return form_.ambient_weight * sigmoid(score);
        return opposition_ * sum_.share(form_.ambient_weight, score);
    }

    void add_force(row_sums& sums, double force, double score) const {
        sums.log_inverse_temperature += force * (score - form_.beta);
        sums.bias += force;
    }

    row_form form_;
    row_edges edges_;
    scope_at in_scope_;
    float* dots_;
    named_pair* named_;     /* of all rows */
    double attraction_ = 0; /* the sum of the attracted weights */
    exponential_sum sum_;   /* backward's */
    double opposition_ = 0; /* by what the shares of the negatives are multiplied: 1, or RANKED's A */
};

} // namespace uform::ram
