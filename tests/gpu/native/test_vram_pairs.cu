// Prefixes and pairwise losses: all forms, scopes, kinds of negatives, groups and prefixes, and the extremes.
#include <numeric>

#include "tests/gpu/native/gpu_check.h"

using namespace gpu_test;
using namespace uform;

namespace {

struct named_pair {
    std::uint32_t unit;
    std::uint8_t kind;
    float weight;
};

/** What is compared, and how. */
struct setting {
    std::string name;
    std::uint32_t units = 0, stride = 0, width = 0, groups = 1;
    std::vector<std::uint32_t> rows, row_groups, modalities;
    std::vector<std::uint8_t> sides, targets;
    std::vector<std::vector<named_pair>> edges; // by row, ascending
    std::vector<float> source;                  // [units, stride]
    std::vector<float> log_inverse_temperature, bias;
    std::int32_t form = uform_pair_loss_form_balanced_k;
    std::int32_t negatives = uform_negatives_ambient_k;
    std::int32_t scope = uform_ambient_scope_every_k;
    float ambient_weight = 1;
    std::uint32_t room = 9; // for units past those that there are
    bool rounded = true;    // vectors are what bfloat16 can hold, so that only the operation's own rounding is measured

    std::uint32_t edges_count() const {
        std::size_t count = 0;
        for (auto const& one : edges)
            count += one.size();
        return static_cast<std::uint32_t>(count);
    }
    float scale() const { return rows.empty() ? 0.f : 1.f / static_cast<float>(rows.size()); }
    /** The source as the operations get it. Shorter vectors are rounded behind the prefix. */
    std::vector<float> given_source() const { return rounded && width == stride ? gpu_test::rounded(source) : source; }
};

/** What the operations answer; gradients without what was there before. */
struct answers {
    double loss = 0;
    std::vector<float> row_losses, gradient, temperature, bias;
    std::vector<float> row_logs;        // of RAM alone
    std::vector<float> source_gradient; // of the prefix
    bool guarded = true;
};

constexpr float before_k = 0.25f; // in everything that is added to

/** How the operations come by the vectors: a prefix gathers them, or their indices lead there. */
enum class access { gathered, in_place };

/** In gradients' rows that are no unit's: anything that is added shows, and so does a zero. */
constexpr float untouched_k = 1e-30f;

/** What the gradient of a unit's vector starts as. In place every second is added to nothing: those can be compared bit
 *  for bit with the gathered ones. */
float gradient_before(access by, std::uint32_t unit) { return by == access::in_place && unit % 2 == 0 ? 0 : before_k; }

/** Distinct rows, in no order, among twice as many as there may be units. */
std::vector<std::uint32_t> make_slots(std::uint32_t units, std::uint32_t capacity) {
    std::vector<std::uint32_t> slots(std::size_t(2) * capacity);
    random_values random(units);
    for (std::uint32_t i = 0; i != slots.size(); ++i) {
        auto const other = static_cast<std::uint32_t>(random.below(i + 1));
        slots[i] = slots[other], slots[other] = i;
    }
    slots.resize(units);
    return slots;
}

/** Rows at the slots, and `between` wherever there is none. */
std::vector<float> spread(std::vector<float> const& values, std::vector<std::uint32_t> const& slots, std::size_t rows,
                          std::size_t stride, float between) {
    std::vector<float> spread(rows * stride, between);
    for (std::size_t i = 0; i != slots.size(); ++i)
        std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(i * stride), stride,
                    spread.begin() + static_cast<std::ptrdiff_t>(slots[i] * stride));
    return spread;
}

/** The rows at the slots, less what they started as; false where another has changed. */
bool collect(std::vector<float> const& values, std::vector<std::uint32_t> const& slots, std::size_t stride, access by,
             std::vector<float>& rows) {
    std::vector<bool> taken(values.size() / stride, false);
    for (std::uint32_t unit = 0; unit != slots.size(); ++unit) {
        taken[slots[unit]] = true;
        for (std::size_t column = 0; column != stride; ++column)
            rows.push_back(values[slots[unit] * stride + column] - gradient_before(by, unit));
    }
    for (std::size_t i = 0; i != values.size(); ++i)
        if (!taken[i / stride] && values[i] != untouched_k)
            return false;
    return true;
}

std::vector<float> gradients_before(setting const& of, access by) {
    std::vector<float> before(of.source.size());
    for (std::size_t i = 0; i != before.size(); ++i)
        before[i] = gradient_before(by, static_cast<std::uint32_t>(i / of.stride));
    return before;
}

/** Both operations' arguments. */
struct arguments_of {
    uform_prefix_t prefix{};
    uform_pairs_t pairs{};
};

struct flat_edges {
    std::vector<std::uint32_t> offsets{0}, units;
    std::vector<std::uint8_t> classes;
    std::vector<float> weights;

    explicit flat_edges(setting const& of) {
        for (auto const& row : of.edges) {
            for (named_pair const& edge : row) {
                units.push_back(edge.unit);
                classes.push_back(edge.kind);
                weights.push_back(edge.weight);
            }
            offsets.push_back(static_cast<std::uint32_t>(units.size()));
        }
    }
};

/** Extents, with room past the counts, and the numbers that are no pointers. */
arguments_of describe(setting const& of) {
    arguments_of to;
    auto const rows = static_cast<std::uint32_t>(of.rows.size());
    to.prefix.stride = of.stride, to.prefix.width = of.width, to.prefix.normalize = of.width != of.stride;
    to.prefix.capacity = of.units + of.room, to.prefix.active = of.units + 5;
    to.pairs.width = of.width;
    to.pairs.units_capacity = of.units + of.room, to.pairs.units_active = of.units + 5;
    to.pairs.rows_capacity = rows + 7, to.pairs.rows_active = rows + 3;
    to.pairs.edges_capacity = of.edges_count() + 11;
    to.pairs.groups = of.groups;
    to.pairs.form = of.form, to.pairs.negatives = of.negatives, to.pairs.scope = of.scope;
    to.pairs.ambient_weight = of.ambient_weight;
    to.pairs.row_losses_scale = 0.5f;
    return to;
}

answers run_ram(setting const& of, ram_device const& device, access by = access::gathered) {
    arguments_of to = describe(of);
    flat_edges edges(of);
    constexpr float nothing = std::numeric_limits<float>::quiet_NaN();
    std::uint32_t counts[3] = {of.units, static_cast<std::uint32_t>(of.rows.size()), of.edges_count()};
    std::size_t const values = std::size_t(to.prefix.capacity) * of.width;
    std::vector<std::uint32_t> const slots = make_slots(of.units, to.prefix.capacity);
    std::size_t const source_rows = std::size_t(2) * to.prefix.capacity;
    std::vector<float> const source = spread(of.given_source(), slots, source_rows, of.stride, nothing);
    std::vector<float> source_gradient = spread(gradients_before(of, by), slots, source_rows, of.stride, untouched_k);
    std::vector<float> vectors(values), lengths(to.prefix.capacity), gradient(values), logs(to.pairs.rows_capacity),
        forces(to.pairs.rows_capacity);
    answers got;
    got.row_losses.assign(of.rows.size(), 0);
    got.temperature.assign(of.groups, 0), got.bias.assign(of.groups, 0);
    float const scale = of.scale();
    uform_operations_t const& operations = ram_device::operations();
    std::size_t const bytes = operations.pairs_workspace_bytes(to.pairs.units_capacity, to.pairs.rows_capacity,
                                                               to.pairs.edges_capacity, of.width, of.groups);
    native_test::poisoned_memory workspace(bytes);
    to.prefix.count = counts, to.prefix.indices = slots.data(), to.prefix.source = source.data();
    to.prefix.vectors = vectors.data(), to.prefix.lengths = lengths.data();
    to.prefix.vectors_gradient = gradient.data(), to.prefix.source_gradient = source_gradient.data();
    to.pairs.counts = counts, to.pairs.vectors = vectors.data(), to.pairs.rows = of.rows.data();
    to.pairs.row_groups = of.row_groups.data(), to.pairs.modalities = of.modalities.data();
    to.pairs.sides = of.sides.data(), to.pairs.targets = of.targets.data();
    to.pairs.edge_offsets = edges.offsets.data(), to.pairs.edge_units = edges.units.data();
    to.pairs.edge_classes = edges.classes.data(), to.pairs.edge_weights = edges.weights.data();
    to.pairs.log_inverse_temperature = of.log_inverse_temperature.data(), to.pairs.bias = of.bias.data();
    to.pairs.scale = &scale, to.pairs.loss = &got.loss, to.pairs.row_losses = got.row_losses.data();
    to.pairs.row_logs = logs.data(), to.pairs.row_forces = forces.data(), to.pairs.gradient = gradient.data();
    to.pairs.log_inverse_temperature_gradient = got.temperature.data(), to.pairs.bias_gradient = got.bias.data();
    to.pairs.workspace = workspace.data(), to.pairs.workspace_bytes = bytes;
    if (by == access::in_place) {
        to.pairs.indices = slots.data();
        to.pairs.vectors = source.data(), to.pairs.gradient = source_gradient.data();
    } else {
        device.run(operations.prefix_forward, to.prefix);
        if (of.rounded)
            for (float& value : vectors)
                value = __bfloat162float(__float2bfloat16(value));
    }
    device.run(operations.pairs_forward, to.pairs);
    device.run(operations.pairs_backward, to.pairs);
    if (by == access::gathered)
        device.run(operations.prefix_backward, to.prefix);
    got.guarded = collect(source_gradient, slots, of.stride, by, got.source_gradient);
    got.gradient.assign(gradient.begin(),
                        gradient.begin() + static_cast<std::ptrdiff_t>(std::size_t(of.units) * of.width));
    got.row_logs.assign(logs.begin(), logs.begin() + static_cast<std::ptrdiff_t>(of.rows.size()));
    return got;
}

template <typename value_at> std::vector<value_at> filled(std::size_t count, value_at value) {
    return std::vector<value_at>(count, value);
}

answers run_vram(setting const& of, how mode, std::vector<float>* bits = nullptr, access by = access::gathered) {
    arguments_of to = describe(of);
    flat_edges edges(of);
    auto const rows = static_cast<std::uint32_t>(of.rows.size());
    std::uint32_t const units_capacity = to.pairs.units_capacity, rows_capacity = to.pairs.rows_capacity;
    std::uint32_t const edges_capacity = to.pairs.edges_capacity;
    constexpr float nothing = std::numeric_limits<float>::quiet_NaN();
    std::vector<std::uint32_t> const slots = make_slots(of.units, units_capacity);
    std::size_t const source_rows = std::size_t(2) * units_capacity;
    device_array<std::uint32_t> const counts(std::vector{of.units, rows, of.edges_count()});
    device_array<std::uint32_t> const indices(slots, units_capacity), row_units(of.rows, rows_capacity);
    device_array<std::uint32_t> const row_groups(of.row_groups, rows_capacity),
        modalities(of.modalities, units_capacity);
    device_array<std::uint8_t> const sides(of.sides, units_capacity), targets(of.targets, units_capacity);
    device_array<std::uint32_t> const offsets(edges.offsets, rows_capacity + 1),
        edge_units(edges.units, edges_capacity);
    device_array<std::uint8_t> const classes(edges.classes, edges_capacity);
    device_array<float> const weights(edges.weights, edges_capacity);
    device_array<float> const temperature(of.log_inverse_temperature), bias(of.bias), scale(std::vector{of.scale()});
    device_array<float> const source(spread(of.given_source(), slots, source_rows, of.stride, nothing)),
        source_gradient(spread(gradients_before(of, by), slots, source_rows, of.stride, untouched_k));
    device_array<float> vectors(std::size_t(units_capacity) * of.width);
    device_array<float> const lengths(units_capacity), gradient(vectors.size());
    device_array<float> const logs(rows_capacity), forces(rows_capacity);
    device_array<double> const loss(std::vector<double>{before_k});
    device_array<float> const row_losses(filled(rows, before_k), rows_capacity);
    device_array<float> const temperature_gradient(filled(of.groups, before_k)),
        bias_gradient(filled(of.groups, before_k));
    std::size_t const bytes =
        vram::pairs_workspace_bytes(units_capacity, rows_capacity, edges_capacity, of.width, of.groups);
    device_array<std::uint8_t> workspace(bytes);

    to.prefix.count = counts.data(), to.prefix.indices = indices.data(), to.prefix.source = source.data();
    to.prefix.vectors = vectors.data(), to.prefix.lengths = lengths.data();
    to.prefix.vectors_gradient = gradient.data(), to.prefix.source_gradient = source_gradient.data();
    to.pairs.counts = counts.data(), to.pairs.vectors = vectors.data(), to.pairs.rows = row_units.data();
    to.pairs.row_groups = row_groups.data(), to.pairs.modalities = modalities.data();
    to.pairs.sides = sides.data(), to.pairs.targets = targets.data();
    to.pairs.edge_offsets = offsets.data(), to.pairs.edge_units = edge_units.data();
    to.pairs.edge_classes = classes.data(), to.pairs.edge_weights = weights.data();
    to.pairs.log_inverse_temperature = temperature.data(), to.pairs.bias = bias.data();
    to.pairs.scale = scale.data(), to.pairs.loss = loss.data(), to.pairs.row_losses = row_losses.data();
    to.pairs.row_logs = logs.data(), to.pairs.row_forces = forces.data(), to.pairs.gradient = gradient.data();
    to.pairs.log_inverse_temperature_gradient = temperature_gradient.data();
    to.pairs.bias_gradient = bias_gradient.data();
    to.pairs.workspace = workspace.data(), to.pairs.workspace_bytes = bytes;
    std::vector<float> exact; // what the prefix writes
    if (by == access::in_place) {
        to.pairs.indices = indices.data();
        to.pairs.vectors = source.data(), to.pairs.gradient = source_gradient.data();
    } else {
        run("prefix_forward", vram::prefix_forward, to.prefix);
        exact = vectors.download();
        if (of.rounded)
            vectors.upload(rounded(exact));
    }
    once(mode, "pairs_forward", [&] { require(vram::pairs_forward(stream(), &to.pairs), "pairs_forward"); });
    workspace.poison(); // nothing of it outlives an operation
    once(mode, "pairs_backward", [&] { require(vram::pairs_backward(stream(), &to.pairs), "pairs_backward"); });
    if (by == access::gathered)
        run("prefix_backward", vram::prefix_backward, to.prefix);

    answers got;
    got.loss = loss.download()[0] - before_k;
    auto const less = [](std::vector<float> values, std::size_t count) {
        values.resize(count);
        for (float& value : values)
            value -= before_k;
        return values;
    };
    got.row_losses = less(row_losses.download(), rows);
    got.temperature = less(temperature_gradient.download(), of.groups);
    got.bias = less(bias_gradient.download(), of.groups);
    got.guarded = collect(source_gradient.download(), slots, of.stride, by, got.source_gradient);
    std::vector<float> const all = gradient.download();
    got.gradient.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::size_t(of.units) * of.width));
    for (std::size_t i = got.gradient.size(); i != all.size(); ++i)
        got.guarded = got.guarded && std::isnan(all[i]);
    for (std::size_t i = got.gradient.size(); i < exact.size(); ++i)
        got.guarded = got.guarded && std::isnan(exact[i]);
    got.guarded = got.guarded && source_gradient.guarded() && vectors.guarded() && lengths.guarded() &&
                  gradient.guarded() && logs.guarded() && forces.guarded() && loss.guarded() && row_losses.guarded() &&
                  temperature_gradient.guarded() && bias_gradient.guarded() && workspace.guarded();
    if (bits) {
        *bits = got.gradient;
        bits->insert(bits->end(), got.row_losses.begin(), got.row_losses.end());
        bits->insert(bits->end(), got.temperature.begin(), got.temperature.end());
        bits->insert(bits->end(), got.bias.begin(), got.bias.end());
        bits->push_back(static_cast<float>(got.loss));
    }
    return got;
}

/** The same by the formulas, in double; `naive` holds what coefficients rounded to bfloat16 make of the gradient. */
struct reference {
    answers exact;
    std::vector<double> gradient;
    std::vector<float> naive;
    std::vector<double> temperature, bias, row_losses;

    explicit reference(setting const& of) {
        std::size_t const units = of.units, width = of.width;
        std::vector<float> vectors(units * width);
        for (std::size_t unit = 0; unit != units; ++unit) {
            float const* const from = of.source.data() + unit * of.stride;
            double square = 0;
            for (std::size_t column = 0; column != width; ++column)
                square += double(from[column]) * from[column];
            double const divisor = width != of.stride ? std::max(std::sqrt(square), 1e-12) : 1;
            for (std::size_t column = 0; column != width; ++column)
                vectors[unit * width + column] = static_cast<float>(from[column] / divisor);
        }
        if (of.rounded)
            vectors = rounded(vectors);
        gradient.assign(units * width, 0);
        std::vector<double> rough(units * width, 0);
        temperature.assign(of.groups, 0), bias.assign(of.groups, 0);
        for (std::size_t row = 0; row != of.rows.size(); ++row)
            add_row(of, vectors, row, rough);
        naive.assign(rough.begin(), rough.end());
    }

private:
    static double softplus(double x) { return std::max(x, 0.) + std::log1p(std::exp(-std::fabs(x))); }
    static double sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }

    static bool in_scope(setting const& of, std::uint32_t row, std::uint32_t unit) {
        if (of.negatives != uform_negatives_ambient_k || !(of.ambient_weight > 0) || row == unit)
            return false;
        auto const seen = [&](int from, int to) { return (of.sides[row] & from) && (of.sides[unit] & to); };
        switch (of.scope) {
        case uform_ambient_scope_cross_modal_k:
            return !(of.modalities[row] & of.modalities[unit]);
        case uform_ambient_scope_targets_k:
            return of.targets[unit];
        case uform_ambient_scope_cross_side_k:
            return seen(1, 2) || seen(2, 1);
        default:
            return true;
        }
    }

    void add_row(setting const& of, std::vector<float> const& vectors, std::size_t row, std::vector<double>& rough) {
        std::size_t const units = of.units, width = of.width, own = of.rows[row];
        double const tau = std::exp(double(of.log_inverse_temperature[of.row_groups[row]]));
        bool const sigmoid_form = of.form == uform_pair_loss_form_sigmoid_k;
        double const beta = sigmoid_form ? double(of.bias[of.row_groups[row]]) : 0;
        std::vector<double> dots(units, 0), kappa(units, 0), target(units, 0), force(units, 0), score(units, 0);
        double attraction = 0;
        for (std::size_t unit = 0; unit != units; ++unit) {
            for (std::size_t column = 0; column != width; ++column)
                dots[unit] += double(vectors[own * width + column]) * vectors[unit * width + column];
            score[unit] = tau * dots[unit] + beta;
            kappa[unit] = in_scope(of, static_cast<std::uint32_t>(own), static_cast<std::uint32_t>(unit))
                              ? double(of.ambient_weight)
                              : 0;
        }
        for (named_pair const& edge : of.edges[row]) {
            kappa[edge.unit] = edge.kind == uform_pair_class_repelled_k ? double(edge.weight) : 0;
            target[edge.unit] = edge.kind == uform_pair_class_attracted_k ? double(edge.weight) : 0;
            attraction += target[edge.unit];
        }
        double loss = 0;
        if (sigmoid_form) {
            for (std::size_t unit = 0; unit != units; ++unit) {
                loss += kappa[unit] * softplus(score[unit]) + target[unit] * softplus(-score[unit]);
                force[unit] = kappa[unit] * sigmoid(score[unit]) - target[unit] * sigmoid(-score[unit]);
            }
        } else {
            double high = -std::numeric_limits<double>::infinity();
            bool const balanced = of.form == uform_pair_loss_form_balanced_k;
            for (std::size_t unit = 0; unit != units; ++unit)
                if (kappa[unit] > 0 || (balanced && target[unit] > 0))
                    high = std::max(high, score[unit]);
            double sum = 0;
            for (std::size_t unit = 0; unit != units; ++unit)
                sum += (balanced && target[unit] > 0 ? 1 : kappa[unit]) * std::exp(score[unit] - high);
            double const log = high + std::log(sum);
            double pull = balanced ? 1 : 0;
            for (std::size_t unit = 0; unit != units && sum > 0; ++unit) {
                if (!(target[unit] > 0))
                    continue;
                double const share = target[unit] / attraction, gap = log - score[unit];
                loss += share * (balanced ? gap : softplus(gap));
                if (balanced) {
                    // Without the cancellation of 1 - 1 where the positive dominates.
                    double others = 0;
                    for (std::size_t other = 0; other != units; ++other)
                        if (other != unit)
                            others += (target[other] > 0 ? 1 : kappa[other]) * std::exp(score[other] - log);
                    force[unit] = share == 1 ? -others : std::exp(-gap) - share;
                } else {
                    force[unit] = -share * sigmoid(gap);
                    pull += share * sigmoid(gap);
                }
            }
            for (std::size_t unit = 0; unit != units && sum > 0; ++unit)
                if (kappa[unit] > 0)
                    force[unit] = pull * kappa[unit] * std::exp(score[unit] - log);
        }
        exact.loss += of.scale() * loss;
        row_losses.push_back(0.5 * loss);
        for (std::size_t unit = 0; unit != units; ++unit) {
            if (force[unit] == 0)
                continue;
            double const coefficient = force[unit] * tau * of.scale();
            double const coarse = double(__bfloat162float(__float2bfloat16(static_cast<float>(coefficient))));
            temperature[of.row_groups[row]] += coefficient * dots[unit];
            bias[of.row_groups[row]] += force[unit] * of.scale();
            for (std::size_t column = 0; column != width; ++column) {
                gradient[own * width + column] += coefficient * vectors[unit * width + column];
                gradient[unit * width + column] += coefficient * vectors[own * width + column];
                rough[own * width + column] += coarse * vectors[unit * width + column];
                rough[unit * width + column] += coarse * vectors[own * width + column];
            }
        }
    }
};

double norm_of(std::vector<double> const& values) {
    double square = 0;
    for (double value : values)
        square += value * value;
    return std::sqrt(square);
}

/** Every second vector's values. */
std::vector<float> even_units(std::vector<float> const& values, std::uint32_t width) {
    std::vector<float> even;
    for (std::size_t i = 0; i != values.size(); ++i)
        if (i / width % 2 == 0)
            even.push_back(values[i]);
    return even;
}

/** Vectors of the full width answer the same where they lie. */
void check_in_place(std::string const& name, setting const& of, answers const& gathered, answers const& in_place) {
    check(name + " in place",
          same_bits(even_units(in_place.source_gradient, of.width), even_units(gathered.gradient, of.width)) &&
              same_bits(in_place.row_losses, gathered.row_losses) && in_place.loss == gathered.loss &&
              same_bits(in_place.temperature, gathered.temperature) && same_bits(in_place.bias, gathered.bias));
    check(name + " in place guarded", in_place.guarded);
    std::vector<double> differences(gathered.source_gradient.size());
    for (std::size_t i = 0; i != differences.size(); ++i)
        differences[i] = double(in_place.source_gradient[i]) - gathered.source_gradient[i];
    check(name + " in place added", norm_of(differences),
          1e-6 * norm_of(to_double(gathered.source_gradient)) + 1e-7 * std::sqrt(double(differences.size())));
}

void check_setting(setting const& of, ram_device const& device, bool gpu) {
    reference const expected(of);
    answers const ram = run_ram(of, device);
    std::string const& name = of.name;
    check(name + " ram guarded", ram.guarded);
    if (of.width == of.stride)
        check_in_place(name + " ram", of, ram, run_ram(of, device, access::in_place));
    // The reference itself: both were written from the same formulas, by themselves.
    bool const extreme = norm_of(expected.gradient) < 1e-12;
    check(name + " ram gradient", extreme ? 0 : relative_error(ram.gradient, expected.gradient), 1e-4);
    check(name + " ram loss", std::fabs(ram.loss - expected.exact.loss), 1e-5 * std::fabs(expected.exact.loss) + 1e-9);
    if (!gpu)
        return;
    std::vector<float> first_bits, second_bits;
    answers const got = run_vram(of, how::direct, &first_bits);
    run_vram(of, how::captured, &second_bits);
    check(name + " twice", same_bits(first_bits, second_bits));
    if (of.width == of.stride)
        check_in_place(name, of, got, run_vram(of, how::direct, nullptr, access::in_place));
    check(name + " guarded", got.guarded);
    // Answers lie on top of 0.25 in float32, whose rounding comes on top.
    double const loss_slack = 1e-7;
    setting coarse = of; // a naive implementation rounds vectors, too
    coarse.rounded = true;
    reference const rough = of.rounded ? expected : reference(coarse);
    double const rows_norm = norm_of(expected.row_losses);
    std::vector<double> const rows = expected.row_losses;
    double rows_error = 0, rough_rows_error = 0;
    for (std::size_t i = 0; i != rows.size(); ++i) {
        rows_error += (got.row_losses[i] - rows[i]) * (got.row_losses[i] - rows[i]);
        rough_rows_error += (rough.row_losses[i] - rows[i]) * (rough.row_losses[i] - rows[i]);
    }
    // The rounding of a vector moves all scores of its row; what of it cancels in the mean is chance.
    double const rough_row = 2 * std::sqrt(rough_rows_error / double(std::max<std::size_t>(rows.size(), 1)));
    check(name + " loss", std::fabs(got.loss - expected.exact.loss),
          1e-3 * std::fabs(expected.exact.loss) + rough_row + loss_slack);
    check(name + " row losses", std::sqrt(rows_error),
          1e-3 * rows_norm + 2 * std::sqrt(rough_rows_error) + 1e-6 * std::sqrt(double(rows.size() + 1)),
          std::sqrt(rough_rows_error));
    double const gradient_norm = norm_of(expected.gradient);
    double gradient_error = 0;
    for (std::size_t i = 0; i != expected.gradient.size(); ++i)
        gradient_error += (got.gradient[i] - expected.gradient[i]) * (got.gradient[i] - expected.gradient[i]);
    // Beside the policy: what underflows in float32.
    double const naive = gradient_norm > 0 ? relative_error(rough.naive, expected.gradient) : 0;
    check(name + " gradient", std::sqrt(gradient_error), (2 * naive + 1e-3) * gradient_norm + 1e-12,
          naive * gradient_norm);
    for (std::uint32_t group = 0; group != of.groups; ++group) {
        // The sum of a group's forces times scores cancels: its parts bound the error.
        check(name + " temperature", std::fabs(got.temperature[group] - expected.temperature[group]),
              1e-3 * norm_of(expected.temperature) + 2e-6);
        if (of.form == uform_pair_loss_form_sigmoid_k)
            check(name + " bias", std::fabs(got.bias[group] - expected.bias[group]),
                  1e-3 * norm_of(expected.bias) + 2e-6);
        else
            check(name + " no bias", got.bias[group] == 0);
    }
    double source_norm = 0, source_error = 0;
    for (std::size_t i = 0; i != ram.source_gradient.size(); ++i) {
        source_norm += double(ram.source_gradient[i]) * ram.source_gradient[i];
        source_error += std::pow(double(got.source_gradient[i]) - ram.source_gradient[i], 2);
    }
    // The prefix's backward takes a part of the gradient away: its error is that of the whole.
    check(name + " source", std::sqrt(source_error),
          (2 * naive + 1e-3) * std::max(std::sqrt(source_norm), of.width == of.stride ? 0 : gradient_norm) +
              3e-8 * std::sqrt(double(ram.source_gradient.size())) + 1e-12);
}

/** Some rows without pairs, some with many; vectors in clusters, so that positives stand out. */
setting make_setting(std::uint32_t units, std::uint32_t stride, std::uint32_t width, std::uint32_t groups,
                     unsigned seed) {
    random_values random(seed);
    setting of;
    of.units = units, of.stride = stride, of.width = width, of.groups = groups;
    of.source = random.normal(std::size_t(units) * stride);
    constexpr std::uint32_t sets[] = {1, 2, 3, 4};
    for (std::uint32_t unit = 0; unit != units; ++unit) {
        float* const vector = of.source.data() + std::size_t(unit) * stride;
        if (unit % 5 == 1)
            for (std::uint32_t column = 0; column != stride; ++column)
                vector[column] = 0.3f * vector[column] + of.source[std::size_t(unit - 1) * stride + column];
        double square = 0;
        for (std::uint32_t column = 0; column != stride; ++column)
            square += double(vector[column]) * vector[column];
        for (std::uint32_t column = 0; column != stride; ++column)
            vector[column] = static_cast<float>(vector[column] / std::sqrt(square));
        of.modalities.push_back(sets[random.below(4)]);
        of.sides.push_back(static_cast<std::uint8_t>(random.below(4)));
        of.targets.push_back(0);
    }
    for (std::uint32_t unit = 0; unit != units; ++unit) {
        if (unit % 3 == 2 && unit != 5)
            continue;
        std::vector<named_pair> edges;
        std::size_t const wanted = unit == 0 ? 40 : unit % 7 == 3 ? 5 : 1 + random.below(2);
        std::vector<bool> taken(units, false);
        taken[unit] = true;
        for (std::size_t i = 0; i != wanted && i + 1 < units; ++i) {
            auto other = static_cast<std::uint32_t>(random.below(units));
            if (i == 0 && (unit % 5 == 0 || other == unit)) // a row that counts is attracted to something
                other = (unit + 1) % units;
            if (taken[other])
                continue;
            taken[other] = true;
            auto const kind = static_cast<std::uint8_t>(i == 0 ? 1 : random.below(3));
            edges.push_back({other, kind, 0.2f + 0.1f * static_cast<float>(random.below(25))});
            of.targets[other] |= kind != 0;
        }
        if (edges.empty())
            continue;
        std::sort(edges.begin(), edges.end(), [](auto& one, auto& two) { return one.unit < two.unit; });
        of.rows.push_back(unit);
        of.row_groups.push_back(static_cast<std::uint32_t>(random.below(groups)));
        of.edges.push_back(edges);
    }
    for (std::uint32_t group = 0; group != groups; ++group) {
        of.log_inverse_temperature.push_back(std::log(2.f + 9.f * static_cast<float>(group + 1)));
        of.bias.push_back(-3.f + static_cast<float>(group));
    }
    return of;
}

/** A NaN shows in the loss and in the gradient of its row, whichever pair it comes in by. */
void check_no_numbers(ram_device const& device, bool gpu) {
    for (std::int32_t form : {1, 2, 3})
        for (std::uint8_t kind : {uform_pair_class_attracted_k, uform_pair_class_repelled_k}) {
            setting of = make_setting(3, 2, 2, 1, 36);
            of.rows = {0}, of.row_groups = {0};
            of.edges = {{{1, uform_pair_class_attracted_k, 1.f}, {2, kind, 1.f}}};
            of.form = form, of.negatives = uform_negatives_named_k;
            of.source[4] = std::numeric_limits<float>::quiet_NaN();
            std::string const name = "no number " + std::to_string(form) + " " + std::to_string(kind);
            auto const shows = [](answers const& got) { return std::isnan(got.loss) && std::isnan(got.gradient[0]); };
            // Without a negative there is no RANKED loss to show it in.
            bool const has_loss = form != uform_pair_loss_form_ranked_k || kind == uform_pair_class_repelled_k;
            if (!has_loss)
                continue;
            check(name + " ram", shows(run_ram(of, device)));
            if (gpu)
                check(name, shows(run_vram(of, how::direct)));
        }
}

/** Prefixes of unit length, whatever the length before: squares overflow long before values do. */
void check_prefixes(ram_device const& device) {
    constexpr std::uint32_t stride = 70, width = 50;
    constexpr float factors[] = {1, 1e25f, 1e-25f, 0, 1e19f, 3e-6f, 1, 1};
    constexpr auto rows = static_cast<std::uint32_t>(std::size(factors));
    std::vector<float> source = random_values(37).normal(std::size_t(rows) * stride);
    for (std::size_t i = 0; i != source.size(); ++i)
        source[i] *= factors[i / stride];
    source[6 * stride + 3] = std::numeric_limits<float>::quiet_NaN();
    source[7 * stride + 3] = std::numeric_limits<float>::infinity();
    std::vector<std::uint32_t> const counts{rows}, indices{0, 1, 2, 3, 4, 5, 6, 7};
    std::vector<float> expected(std::size_t(rows) * width), lengths(rows);
    uform_prefix_t view{};
    view.stride = stride, view.width = width, view.normalize = 1, view.capacity = view.active = rows;
    view.count = counts.data(), view.indices = indices.data(), view.source = source.data();
    view.vectors = expected.data(), view.lengths = lengths.data();
    device.run(ram_device::operations().prefix_forward, view);

    device_array<std::uint32_t> const device_counts(counts), device_indices(indices);
    device_array<float> const device_source(source), vectors(expected.size()), device_lengths(rows);
    view.count = device_counts.data(), view.indices = device_indices.data(), view.source = device_source.data();
    view.vectors = vectors.data(), view.lengths = device_lengths.data();
    run("prefix_forward", vram::prefix_forward, view);
    std::vector<float> const got = vectors.download();
    for (std::uint32_t row = 0; row != rows; ++row) {
        std::string const name = "prefix " + std::to_string(row);
        auto const of_row = [&](std::vector<float> const& values) {
            return std::vector<float>(values.begin() + row * width, values.begin() + (row + 1) * width);
        };
        std::vector<float> const own = of_row(got), ram = of_row(expected);
        if (std::isnan(ram[3]))
            check(name, std::isnan(own[3]) && std::isnan(own[0]) == std::isnan(ram[0]));
        else
            check(name, ram == std::vector<float>(width) ? own != ram : relative_error(own, to_double(ram)), 1e-6);
    }
    check("prefixes guarded", vectors.guarded() && device_lengths.guarded());
}

constexpr char const* forms[] = {"", "balanced", "ranked", "sigmoid"};
constexpr char const* scopes[] = {"every", "cross-modal", "targets", "cross-side"};

void check_all(ram_device const& device, bool gpu) {
    struct shape {
        std::uint32_t units, stride, width, groups;
    };
    // The last ones are wider than what of a tile's rows stays in shared memory.
    std::vector<shape> const shapes = {{23, 33, 33, 1},    {131, 64, 64, 3},   {300, 96, 65, 1},
                                       {517, 128, 128, 1}, {300, 768, 768, 1}, {150, 640, 530, 2}};
    for (shape const& one : shapes)
        for (std::int32_t form : {1, 2, 3})
            for (std::int32_t scope : {0, 1, 2, 3}) {
                setting of = make_setting(one.units, one.stride, one.width, one.groups, 7 + one.units);
                of.form = form, of.scope = scope, of.ambient_weight = scope % 2 ? 0.3f : 1.f;
                of.name = std::to_string(one.units) + "x" + std::to_string(one.width) + " " + forms[form] + " " +
                          scopes[scope];
                check_setting(of, device, gpu);
            }
    for (std::int32_t form : {1, 2, 3}) {
        setting named = make_setting(257, 70, 70, 2, 31);
        named.form = form, named.negatives = uform_negatives_named_k, named.name = std::string(forms[form]) + " named";
        check_setting(named, device, gpu);
        setting weightless = make_setting(140, 16, 16, 1, 32);
        weightless.form = form, weightless.ambient_weight = 0,
        weightless.name = std::string(forms[form]) + " weightless";
        check_setting(weightless, device, gpu);
        setting prefix = make_setting(200, 128, 1, 1, 33);
        prefix.form = form, prefix.name = std::string(forms[form]) + " prefix of one";
        check_setting(prefix, device, gpu);
        setting roomy = make_setting(700, 40, 40, 1, 38); // of a panel's side there is more than is used
        roomy.form = form, roomy.room = 30000, roomy.name = std::string(forms[form]) + " roomy";
        check_setting(roomy, device, gpu);
        setting none = make_setting(9, 8, 8, 1, 34);
        none.rows.clear(), none.row_groups.clear(), none.edges.clear();
        none.form = form, none.name = std::string(forms[form]) + " no rows";
        check_setting(none, device, gpu);
        setting plain = make_setting(400, 40, 40, 1, 35); // as trained: vectors are not what bfloat16 holds
        plain.form = form, plain.rounded = false, plain.name = std::string(forms[form]) + " unrounded";
        check_setting(plain, device, gpu);
    }
}

/** Both directions of pairs of two modalities, alternating, as a batch of images and their names has them.
 *  @param common How much of one vector is in all of them, beside a deviation of 1. */
setting make_twins(std::uint32_t pairs, std::uint32_t width, float inverse_temperature, float noise, unsigned seed,
                   float common = 0) {
    random_values random(seed);
    setting of;
    of.units = 2 * pairs, of.stride = of.width = width;
    std::vector<float> const normal = random.normal(std::size_t(2) * pairs * width), middle = random.normal(width);
    of.source = normal;
    for (std::uint32_t unit = 0; unit != of.units; ++unit) {
        float* const vector = of.source.data() + std::size_t(unit) * width;
        double square = 0;
        for (std::uint32_t column = 0; column != width; ++column) {
            if (unit % 2)
                vector[column] = noise * vector[column] + normal[std::size_t(unit - 1) * width + column];
            vector[column] += common * middle[column];
            square += double(vector[column]) * vector[column];
        }
        for (std::uint32_t column = 0; column != width; ++column)
            vector[column] = static_cast<float>(vector[column] / std::sqrt(square));
        of.rows.push_back(unit);
        of.row_groups.push_back(0);
        of.modalities.push_back(unit % 2 ? 2 : 1);
        of.sides.push_back(static_cast<std::uint8_t>(unit % 2 ? 2 : 1));
        of.targets.push_back(1);
        of.edges.push_back({{unit ^ 1, uform_pair_class_attracted_k, 1.f}});
    }
    of.log_inverse_temperature = {std::log(inverse_temperature)};
    of.bias = {-10.f};
    of.scope = uform_ambient_scope_cross_modal_k;
    return of;
}

void check_extremes(ram_device const& device, bool gpu) {
    for (std::int32_t form : {1, 2, 3}) {
        setting sharp = make_twins(300, 256, 100, 0.35f, 41);
        sharp.form = form, sharp.name = std::string("NUM-03 ") + forms[form];
        check_setting(sharp, device, gpu);
        // A trained batch: nearly everything is told apart, so that losses and forces are tiny.
        setting trained = make_twins(200, 512, 100, 0.05f, 42);
        trained.form = form, trained.name = std::string("NUM-04 ") + forms[form];
        check_setting(trained, device, gpu);
        for (float inverse_temperature : {1.f, 100.f}) {
            for (bool turned : {false, true}) {
                setting poles;
                poles.units = 3, poles.stride = poles.width = 2;
                poles.source = turned ? std::vector<float>{1, 0, 1, 0, -1, 0} : std::vector<float>{1, 0, -1, 0, 1, 0};
                poles.rows = {0}, poles.row_groups = {0}, poles.modalities = {1, 1, 1};
                poles.sides = {0, 0, 0}, poles.targets = {0, 1, 0};
                poles.edges = {{{1, uform_pair_class_attracted_k, 1.f}}};
                poles.log_inverse_temperature = {std::log(inverse_temperature)}, poles.bias = {0.f};
                poles.form = form;
                poles.name = std::string("NUM-05 ") + forms[form] + (turned ? " right" : " wrong") +
                             (inverse_temperature > 1 ? " sharp" : "");
                check_setting(poles, device, gpu);
            }
        }
        // A young batch: cosines of 0.9 and more, so that a pair's coefficients nearly cancel; as trained, not rounded.
        for (float inverse_temperature : {14.f, 100.f}) {
            setting near = make_twins(384, 192, inverse_temperature, 1, 45, 4);
            near.form = form, near.rounded = false;
            near.name = std::string("near ") + forms[form] + (inverse_temperature > 14 ? " sharp" : "");
            check_setting(near, device, gpu);
        }
        setting lone = make_twins(1, 32, 10, 0.5f, 43);
        lone.form = form, lone.name = std::string("CON-09 ") + forms[form];
        check_setting(lone, device, gpu);
    }
}

/**
 *  The gradient of one unit of `make_twins` under BALANCED, from the rows' own logarithms: exactly, and with the
 *  coefficients rounded to bfloat16.
 */
struct twin_gradient {
    std::vector<double> exact;
    std::vector<float> naive;

    twin_gradient(setting const& of, std::vector<float> const& vectors, std::vector<float> const& row_logs,
                  std::uint32_t unit)
        : exact(of.width, 0) {
        std::vector<double> rough(of.width, 0);
        double const tau = std::exp(double(of.log_inverse_temperature[0]));
        float const* const own = &vectors[std::size_t(unit) * of.width];
        for (std::uint32_t other = unit % 2 ? 0 : 1; other < of.units; other += 2) {
            float const* const vector = &vectors[std::size_t(other) * of.width];
            double cosine = 0;
            for (std::uint32_t column = 0; column != of.width; ++column)
                cosine += double(own[column]) * vector[column];
            for (std::uint32_t row : {unit, other}) { // either names the other
                double const share = std::exp(tau * cosine - double(row_logs[row])) - (other == (unit ^ 1) ? 1 : 0);
                double const coefficient = share * tau * of.scale();
                double const coarse = double(__bfloat162float(__float2bfloat16(static_cast<float>(coefficient))));
                for (std::uint32_t column = 0; column != of.width; ++column) {
                    exact[column] += coefficient * vector[column];
                    rough[column] += coarse * vector[column];
                }
            }
        }
        naive.assign(rough.begin(), rough.end());
    }
};

/** More units than a span of forward and than a block of backward: several launches, rows on one device of two. */
void check_large(bool gpu) {
    constexpr std::uint32_t pairs = 10240, every = 331; // too many for the reference: some units
    setting of = make_twins(pairs, 64, 20, 0.7f, 44);
    of.name = "large";
    ram_device const device(8);
    answers const ram = run_ram(of, device);
    std::vector<float> const vectors = rounded(of.source);
    std::vector<float> ram_sample, naive;
    std::vector<double> exact;
    for (std::uint32_t unit = 0; unit < of.units; unit += every) {
        twin_gradient const one(of, vectors, ram.row_logs, unit);
        exact.insert(exact.end(), one.exact.begin(), one.exact.end());
        naive.insert(naive.end(), one.naive.begin(), one.naive.end());
        auto const begin = ram.gradient.begin() + static_cast<std::ptrdiff_t>(std::size_t(unit) * of.width);
        ram_sample.insert(ram_sample.end(), begin, begin + of.width);
    }
    check("large ram gradient", relative_error(ram_sample, exact), 1e-4);
    if (!gpu)
        return;
    std::vector<float> first, second;
    answers const got = run_vram(of, how::direct, &first);
    run_vram(of, how::direct, &second);
    check("large twice", same_bits(first, second));
    check_in_place("large", of, got, run_vram(of, how::direct, nullptr, access::in_place));
    check("large guarded", got.guarded);
    check("large loss", std::fabs(got.loss - ram.loss), 1e-3 * ram.loss);
    double const of_naive = relative_error(naive, exact);
    check("large gradient", relative_error(got.gradient, to_double(ram.gradient)), 2 * of_naive + 1e-3, of_naive);
    check("large temperature", std::fabs(got.temperature[0] - ram.temperature[0]),
          1e-3 * std::fabs(ram.temperature[0]) + 2e-6);
}

/** Units that are rows, every one of them, attracted to one other each, on the device. */
struct device_batch {
    std::uint32_t units;
    device_array<std::uint32_t> counts, rows, groups, modalities, offsets, others;
    device_array<std::uint8_t> sides, targets, classes, workspace;
    device_array<float> weights, vectors, gradient, temperature, bias, scale, logs, forces, row_losses;
    device_array<float> temperature_gradient, bias_gradient;
    device_array<double> loss;
    uform_pairs_t view{};

    device_batch(std::uint32_t width, std::int32_t form, std::vector<float> const& source,
                 std::vector<std::uint32_t> const& attracted, std::vector<std::uint32_t> const& sets, double tau,
                 double beta)
        : units(static_cast<std::uint32_t>(attracted.size())), counts(std::vector{units, units, units}),
          rows(numbers(units)), groups(filled(units, 0u)), modalities(sets), offsets(numbers(units + 1)),
          others(attracted), sides(filled(units, std::uint8_t(0))), targets(filled(units, std::uint8_t(1))),
          classes(filled(units, std::uint8_t(uform_pair_class_attracted_k))),
          workspace(vram::pairs_workspace_bytes(units, units, units, width, 1)), weights(filled(units, 1.f)),
          vectors(source), gradient(source.size()), temperature(std::vector{static_cast<float>(std::log(tau))}),
          bias(std::vector{static_cast<float>(beta)}), scale(std::vector{1.f / static_cast<float>(units)}), logs(units),
          forces(units), row_losses(filled(units, 0.f)), temperature_gradient(std::vector{0.f}),
          bias_gradient(std::vector{0.f}), loss(std::vector{0.}) {
        view.width = width, view.groups = 1;
        view.units_capacity = view.units_active = view.rows_capacity = view.rows_active = view.edges_capacity = units;
        view.counts = counts.data(), view.vectors = vectors.data(), view.rows = rows.data();
        view.row_groups = groups.data(), view.modalities = modalities.data(), view.sides = sides.data();
        view.targets = targets.data(), view.edge_offsets = offsets.data(), view.edge_units = others.data();
        view.edge_classes = classes.data(), view.edge_weights = weights.data();
        view.form = form, view.negatives = uform_negatives_ambient_k, view.ambient_weight = 1;
        view.log_inverse_temperature = temperature.data(), view.bias = bias.data(), view.scale = scale.data();
        view.loss = loss.data(), view.row_losses = row_losses.data(), view.row_losses_scale = 1;
        view.row_logs = logs.data(), view.row_forces = forces.data(), view.gradient = gradient.data();
        view.log_inverse_temperature_gradient = temperature_gradient.data();
        view.bias_gradient = bias_gradient.data();
        view.workspace = workspace.data(), view.workspace_bytes = workspace.bytes();
    }

    bool guarded() const { return gradient.guarded() && row_losses.guarded() && workspace.guarded(); }

private:
    static std::vector<std::uint32_t> numbers(std::uint32_t count) {
        std::vector<std::uint32_t> numbers(count);
        std::iota(numbers.begin(), numbers.end(), 0u);
        return numbers;
    }
};

/**
 *  As many units as any batch has. Their vectors are those of a basis, again and again, so that all rows are alike and
 *  what they answer is known: a pair that is left out, or counted twice, shows.
 */
void check_basis(std::uint32_t units, std::uint32_t width, double tau, std::int32_t form) {
    std::string const name = "basis " + std::to_string(units) + "x" + std::to_string(width) + " " + forms[form];
    double const beta = -3, scale = 1. / units;
    std::vector<float> source(std::size_t(units) * width, 0.f);
    std::vector<std::uint32_t> others(units);
    for (std::uint32_t unit = 0; unit != units; ++unit)
        source[std::size_t(unit) * width + unit % width] = 1, others[unit] = unit ^ 1;
    device_batch const batch(width, form, source, others, filled(units, 1u), tau, beta);
    run("pairs_forward", vram::pairs_forward, batch.view);
    run("pairs_backward", vram::pairs_backward, batch.view);

    auto const softplus = [](double x) { return std::max(x, 0.) + std::log1p(std::exp(-std::fabs(x))); };
    auto const sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
    // Of those that lie elsewhere one is the positive.
    double const alike = double(units) / width - 1, elsewhere = double(units) - double(units) / width;
    double expected, of_alike, of_elsewhere, of_positive; // the loss of a row, and its forces
    if (form == uform_pair_loss_form_sigmoid_k) {
        expected = alike * softplus(tau + beta) + (elsewhere - 1) * softplus(beta) + softplus(-beta);
        of_alike = sigmoid(tau + beta), of_elsewhere = sigmoid(beta), of_positive = -sigmoid(-beta);
    } else {
        double const sum = alike * std::exp(tau) + elsewhere;
        expected = std::log(sum);
        of_alike = std::exp(tau) / sum, of_elsewhere = 1 / sum, of_positive = 1 / sum - 1;
    }
    double rows_error = 0;
    for (float one : batch.row_losses.download())
        rows_error = std::max(rows_error, std::fabs(one - expected) / expected);
    check(name + " row losses", rows_error, 1e-4);
    check(name + " loss", std::fabs(batch.loss.download()[0] / expected - 1), 1e-4);
    double const factor = 2 * tau * scale, other = factor * (alike + 1) * of_elsewhere; // either way a pair pulls
    double const own = factor * alike * of_alike, positive = factor * (alike * of_elsewhere + of_positive);
    std::vector<float> const slopes = batch.gradient.download();
    double error = 0;
    for (std::uint32_t unit = 0; unit != units; ++unit)
        for (std::uint32_t i = 0; i != width; ++i) {
            double const wanted = i == unit % width ? own : i == (unit ^ 1) % width ? positive : other;
            error = std::max(error, std::fabs(slopes[std::size_t(unit) * width + i] - wanted));
        }
    // Of one rounding of coefficients to bfloat16, half of 2^-8, where all are alike.
    check(name + " gradient", error, 4e-3 * std::sqrt(own * own + positive * positive + (width - 2) * other * other));
    check(name + " guarded", batch.guarded());
}

/** What a sanitizer that looks at every access has time for: each of the kernels, tiles that end early among them. */
void check_few(ram_device const& device) {
    for (std::int32_t form : {1, 3}) {
        for (std::int32_t scope : {0, 1}) {
            setting mixed = make_setting(300, 131, 131, 1, 51);
            mixed.form = form, mixed.scope = scope;
            mixed.name = std::string("few ") + forms[form] + " " + scopes[scope];
            check_setting(mixed, device, true);
        }
        setting twins = make_twins(280, 192, 20, 0.7f, 52); // whole tiles of ambient pairs
        twins.form = form, twins.name = std::string("few twins ") + forms[form];
        check_setting(twins, device, true);
    }
}

void bench(std::uint32_t pairs, std::uint32_t width, std::int32_t form, std::int32_t scope, bool alternating,
           access by = access::gathered) {
    std::uint32_t const units = 2 * pairs;
    random_values random(3);
    std::vector<float> source(std::size_t(units) * width);
    std::vector<float> const block = random.normal(std::size_t(1) << 20);
    for (std::uint32_t unit = 0; unit != units; ++unit) {
        double square = 0;
        float* const vector = source.data() + std::size_t(unit) * width;
        for (std::uint32_t column = 0; column != width; ++column) {
            vector[column] = block[(unit * std::size_t(7919) + column * std::size_t(104729)) % block.size()];
            square += double(vector[column]) * vector[column];
        }
        for (std::uint32_t column = 0; column != width; ++column)
            vector[column] = static_cast<float>(vector[column] / std::sqrt(square));
    }
    std::vector<std::uint32_t> modalities(units), others(units);
    for (std::uint32_t unit = 0; unit != units; ++unit) {
        modalities[unit] = (alternating ? unit % 2 : unit >= pairs) ? 2 : 1;
        others[unit] = alternating ? unit ^ 1 : (unit + pairs) % units;
    }
    device_batch batch(width, form, source, others, modalities, 20, -10);
    uform_pairs_t& to = batch.view;
    to.scope = scope, to.row_losses = nullptr;
    if (by == access::in_place)
        to.indices = batch.rows.data();
    std::string const name = std::string(forms[form]) + " " + scopes[scope] + " N=" + std::to_string(pairs) +
                             " D=" + std::to_string(width) + (alternating ? " alternating" : "") +
                             (by == access::in_place ? " in place" : "");
    stopwatch watch;
    double const square = double(pairs) * pairs * width, bytes = double(to.workspace_bytes);
    double const share = scope == uform_ambient_scope_cross_modal_k ? 1 : 2;
    std::printf("bench pairs %s workspace %.3f GiB, with vectors and gradient %.3f GiB\n", name.c_str(),
                bytes / (1 << 30), (bytes + 2. * double(batch.vectors.bytes())) / (1 << 30));
    auto const forward = [&] { require(vram::pairs_forward(stream(), &to), "pairs_forward"); };
    auto const backward = [&] { require(vram::pairs_backward(stream(), &to), "pairs_backward"); };
    watch.operations("pairs forward " + name, share * 2 * square, forward);
    watch.operations("pairs backward " + name, share * 6 * square, backward);
    watch.operations("pairs both " + name, share * 8 * square, [&] { forward(), backward(); });
}

} // namespace

int main(int count, char** arguments) {
    bool const gpu =
        !asked(count, arguments, "--reference"); // without a GPU the reference can still be held against RAM
    ram_device const device(2);
    if (asked(count, arguments, "--few")) {
        check_few(device);
    } else if (wants_checks(count, arguments)) {
        check_all(device, gpu);
        check_extremes(device, gpu);
        check_no_numbers(device, gpu);
        if (gpu)
            check_prefixes(device);
        bool const small = asked(count, arguments, "--small"); // a sanitizer has enough with the rest
        if (!small)
            check_large(gpu);
        if (gpu && !small) {
            check_basis(262400, 64, 10, uform_pair_loss_form_balanced_k);
            check_basis(262144, 64, 10, uform_pair_loss_form_sigmoid_k);
            check_basis(66560, 1024, 20, uform_pair_loss_form_balanced_k);
        }
    }
    if (gpu && wants_bench(count, arguments)) {
        bench(65536, 512, uform_pair_loss_form_balanced_k, uform_ambient_scope_cross_modal_k, false);
        bench(65536, 512, uform_pair_loss_form_balanced_k, uform_ambient_scope_cross_modal_k, false, access::in_place);
        bench(65536, 512, uform_pair_loss_form_balanced_k, uform_ambient_scope_cross_modal_k, true);
        bench(16384, 512, uform_pair_loss_form_balanced_k, uform_ambient_scope_cross_modal_k, true);
        bench(16384, 512, uform_pair_loss_form_ranked_k, uform_ambient_scope_cross_modal_k, true);
        bench(16384, 512, uform_pair_loss_form_sigmoid_k, uform_ambient_scope_cross_modal_k, true);
        bench(16384, 768, uform_pair_loss_form_balanced_k, uform_ambient_scope_every_k, true);
        bench(2048, 512, uform_pair_loss_form_balanced_k, uform_ambient_scope_cross_modal_k, true);
    }
    return native_test::report();
}
