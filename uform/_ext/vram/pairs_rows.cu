#include <algorithm>

#include "vram/elementwise.cuh"
#include "vram/launch.cuh"
#include "vram/pairs.h"

namespace uform::vram::pairs {

namespace {

constexpr unsigned threads_k = 128;
/** Threads of a row, for most have few named pairs. */
constexpr unsigned row_lanes_k = 4;
constexpr unsigned block_rows_k = threads_k / row_lanes_k;
constexpr unsigned sum_threads_k = 1024;

constexpr double log2_e_k = 1.4426950408889634074;
constexpr double ln_2_k = 0.69314718055994530942;

/** log(1 + e^x) and 1 / (1 + e^-x) without overflow. */
__device__ double softplus(double x) { return fmax(x, 0.) + log1p(exp(-fabs(x))); }
__device__ double sigmoid(double x) { return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x)); }

/** A sum of kappa e^score, kept by its largest score. */
struct exponential_sum {
    double maximum = -INFINITY;
    double sum = 0;

    __device__ void add(exponential_sum const& other) {
        // Not by fmax, which passes over a NaN.
        double const most = other.maximum <= maximum ? maximum : other.maximum;
        if (most == -INFINITY) {
            sum += other.sum;
            return;
        }
        sum = sum * exp(maximum - most) + other.sum * exp(other.maximum - most);
        maximum = most;
    }
    __device__ void add(double kappa, double score) {
        exponential_sum one;
        one.maximum = score, one.sum = kappa;
        add(one);
    }

    __device__ bool empty() const { return sum == 0; }
    __device__ double log() const { return empty() ? -INFINITY : maximum + ::log(sum); }
    /** kappa e^score as a part of the sum. */
    __device__ double share(double kappa, double score) const { return kappa * exp(score - maximum) / sum; }
};

__device__ unsigned row_lane() { return threadIdx.x % row_lanes_k; }
__device__ unsigned row_mask() { return ((1u << row_lanes_k) - 1) << (threadIdx.x % warp_k - row_lane()); }

/** The sum over a row's lanes, in each of them. */
__device__ double add_lanes(double sum) {
#pragma unroll
    for (unsigned step = row_lanes_k / 2; step != 0; step /= 2)
        sum += __shfl_xor_sync(row_mask(), sum, static_cast<int>(step));
    return sum;
}

__device__ exponential_sum add_lanes(exponential_sum sum) {
#pragma unroll
    for (unsigned step = row_lanes_k / 2; step != 0; step /= 2) {
        exponential_sum other;
        other.maximum = __shfl_xor_sync(row_mask(), sum.maximum, static_cast<int>(step));
        other.sum = __shfl_xor_sync(row_mask(), sum.sum, static_cast<int>(step));
        sum.add(other);
    }
    return sum;
}

/** One row and its named pairs, which its lanes share. */
struct row_view {
    problem const& p;
    std::uint32_t row, place, begin, end;
    double tau, beta;
    double attraction; // the sum of the attracted weights

    __device__ row_view(problem const& p_, std::uint32_t row_)
        : p(p_), row(row_), place(p_.row_places[row_]), begin(p_.edge_offsets[row_]), end(p_.edge_offsets[row_ + 1]) {
        std::uint32_t const group = p.row_groups[row];
        tau = exp(double(p.log_inverse_temperature[group]));
        beta = p.form == uform_pair_loss_form_sigmoid_k ? double(p.bias[group]) : 0;
        attraction = sum_attracted([](double weight, double) { return weight; });
    }

    __device__ bool attracts(std::uint32_t i) const {
        return p.edge_classes[p.named_edges[i]] == uform_pair_class_attracted_k;
    }
    __device__ bool repels(std::uint32_t i) const {
        return p.edge_classes[p.named_edges[i]] == uform_pair_class_repelled_k;
    }
    __device__ double weight(std::uint32_t i) const { return p.edge_weights[p.named_edges[i]]; }
    __device__ double score(std::uint32_t i) const { return tau * p.named_dots[i] + beta; }

    /** Calls `body(i)` for this lane's named pairs. */
    template <typename body_at> __device__ void each(body_at&& body) const {
        for (std::uint32_t i = begin + row_lane(); i < end; i += row_lanes_k)
            body(i);
    }

    /** The row's sum of `value(weight, score)` over what it is attracted to. */
    template <typename value_at> __device__ double sum_attracted(value_at&& value) const {
        double sum = 0;
        each([&](std::uint32_t i) { sum += attracts(i) ? value(weight(i), score(i)) : 0; });
        return add_lanes(sum);
    }

    /** Over what it is attracted to, and the sum given once. */
    __device__ exponential_sum add_attracted(exponential_sum const& others) const {
        exponential_sum sum;
        each([&](std::uint32_t i) {
            if (attracts(i))
                sum.add(1, score(i));
        });
        sum = add_lanes(sum);
        sum.add(others);
        return sum;
    }

    /** Over repelled and ambient pairs, from forward's sums. */
    __device__ exponential_sum sum_negatives() const {
        exponential_sum sum;
        each([&](std::uint32_t i) {
            if (repels(i))
                sum.add(weight(i), score(i));
        });
        sum = add_lanes(sum);
        partial_sum const ambient = p.sums[place];
        if (p.ambient && !(ambient.sum == 0)) {
            exponential_sum wide;
            wide.maximum = ambient.maximum * ln_2_k, wide.sum = double(p.ambient_weight) * ambient.sum;
            sum.add(wide);
        }
        return sum;
    }
};

/** Calls `body(row_view)` for every row. */
template <typename body_at> __device__ void each_row(problem const& p, body_at&& body) {
    std::uint32_t const rows = p.counts[1];
    for (std::uint32_t row = blockIdx.x * block_rows_k + threadIdx.x / row_lanes_k; row < rows;
         row += gridDim.x * block_rows_k)
        body(row_view(p, row));
}

__global__ void __launch_bounds__(threads_k) put_temperatures(problem p) {
    std::uint32_t const row = blockIdx.x * threads_k + threadIdx.x;
    if (row >= p.counts[1])
        return;
    std::uint32_t const group = p.row_groups[row];
    double const slope = exp(double(p.log_inverse_temperature[group])) * log2_e_k;
    double const offset = p.form == uform_pair_loss_form_sigmoid_k ? p.bias[group] * log2_e_k : 0;
    p.terms[p.row_places[row]] = {static_cast<float>(slope), static_cast<float>(offset), 0, 0};
}

/** What forward leaves of a row: `force` is RANKED's A, or BALANCED's log of the sum without the attracted pairs, from
 *  which backward finds small forces of a row that its positive dominates: one float32 logarithm of all can not tell.
 */
struct row_answer {
    double loss, log, force;
};

__device__ row_answer score_balanced(row_view const& row) {
    exponential_sum const negatives = row.sum_negatives(), all = row.add_attracted(negatives);
    double const log = all.log();
    double const loss =
        row.sum_attracted([&](double weight, double score) { return weight / row.attraction * (log - score); });
    return {loss, log, negatives.log()};
}

__device__ row_answer score_ranked(row_view const& row) {
    exponential_sum const negatives = row.sum_negatives();
    if (negatives.empty())
        return {0, -INFINITY, 0};
    double const log = negatives.log();
    double const loss =
        row.sum_attracted([&](double weight, double score) { return weight / row.attraction * softplus(log - score); });
    double const force =
        row.sum_attracted([&](double weight, double score) { return weight / row.attraction * sigmoid(log - score); });
    return {loss, log, force};
}

__device__ row_answer score_sigmoid(row_view const& row) {
    double loss = 0;
    row.each([&](std::uint32_t i) {
        if (row.attracts(i))
            loss += row.weight(i) * softplus(-row.score(i));
        else if (row.repels(i))
            loss += row.weight(i) * softplus(row.score(i));
    });
    loss = add_lanes(loss);
    if (row.p.ambient)
        loss += double(row.p.ambient_weight) * row.p.sums[row.place].sum;
    return {loss, -INFINITY, 0};
}

__global__ void __launch_bounds__(threads_k) score_rows(problem p) {
    each_row(p, [&](row_view const& row) {
        row_answer const answer = p.form == uform_pair_loss_form_ranked_k    ? score_ranked(row)
                                  : p.form == uform_pair_loss_form_sigmoid_k ? score_sigmoid(row)
                                                                             : score_balanced(row);
        if (row_lane() != 0)
            return;
        p.row_logs[row.row] = static_cast<float>(answer.log);
        p.row_forces[row.row] = static_cast<float>(answer.force);
        p.row_values[row.row] = answer.loss;
        if (p.row_losses)
            p.row_losses[row.row] += static_cast<float>(p.row_losses_scale * answer.loss);
    });
}

/** Calls `add(load(row))` for this thread's rows, in order. One block has all rows, and reads wait long: several are on
 *  their way at a time. */
template <typename load_at, typename add_at>
__device__ __forceinline__ void each_loaded(std::uint32_t rows, load_at&& load, add_at&& add) {
    constexpr unsigned ahead_k = 8;
    for (std::uint32_t first = threadIdx.x; first < rows; first += ahead_k * sum_threads_k) {
        decltype(load(0u)) loaded[ahead_k];
#pragma unroll
        for (unsigned i = 0; i != ahead_k; ++i)
            loaded[i] = load(min(first + i * sum_threads_k, rows - 1));
#pragma unroll
        for (unsigned i = 0; i != ahead_k; ++i)
            if (first + i * sum_threads_k < rows)
                add(loaded[i]);
    }
}

__global__ void __launch_bounds__(sum_threads_k) add_losses(problem p) {
    __shared__ double scratch[sum_threads_k / warp_k];
    double sum = 0;
    each_loaded(p.counts[1], [&](std::uint32_t row) { return p.row_values[row]; }, [&](double value) { sum += value; });
    sum = sum_block(sum, scratch);
    if (threadIdx.x == 0)
        *p.loss += double(*p.scale) * sum;
}

/** The forces of a row's named pairs, as `force(i)` has them, times `factor`: into the panel's reach, and summed. */
template <typename force_at>
__device__ void put_forces(row_view const& row, double factor, float center, force_at&& force) {
    double by_dot = 0, plain = 0;
    row.each([&](std::uint32_t i) {
        double const coefficient = factor * force(i);
        row.p.named_coefficients[i] = static_cast<float>(coefficient);
        by_dot += coefficient * (double(row.p.named_dots[i]) - center);
        plain += coefficient;
    });
    by_dot = add_lanes(by_dot), plain = add_lanes(plain);
    if (row_lane() == 0)
        row.p.gradients[row.row] = {by_dot, plain / row.tau};
}

/** Softmax forms: an ambient pair's coefficient is 2^(slope dot + offset). Their forces sum to zero, so that sums with
 *  the dot products may be taken about any center: about the logarithm, those of a row that one pair dominates stay
 *  small. */
template <typename force_at>
__device__ void put_softmax(row_view const& row, double log, double opposition, force_at&& force) {
    problem const& p = row.p;
    double const factor = row.tau * *p.scale;
    bool const none = !(opposition > 0) || log == -INFINITY;
    float const center = none ? 0.f : static_cast<float>(log / row.tau);
    double const offset = none ? -INFINITY : log2(p.ambient_weight * opposition * factor) - log * log2_e_k;
    if (row_lane() == 0)
        p.terms[row.place] = {static_cast<float>(row.tau * log2_e_k), static_cast<float>(offset), 0, center};
    put_forces(row, factor, center, force);
}

__device__ void force_balanced(row_view const& row) {
    exponential_sum negatives;
    float const kept = row.p.row_forces[row.row];
    if (kept != -INFINITY)
        negatives.add(1, kept);
    exponential_sum const all = row.add_attracted(negatives);
    put_softmax(row, all.log(), 1, [&](std::uint32_t i) -> double {
        if (row.attracts(i))
            return all.share(1, row.score(i)) - row.weight(i) / row.attraction;
        return row.repels(i) ? all.share(row.weight(i), row.score(i)) : 0;
    });
}

__device__ void force_ranked(row_view const& row) {
    double const log = row.p.row_logs[row.row];
    if (log == -INFINITY)
        return put_softmax(row, log, 0, [](std::uint32_t) { return 0.; });
    double const opposition =
        row.sum_attracted([&](double weight, double score) { return weight / row.attraction * sigmoid(log - score); });
    put_softmax(row, log, opposition, [&](std::uint32_t i) -> double {
        if (row.attracts(i))
            return -row.weight(i) / row.attraction * sigmoid(log - row.score(i));
        return row.repels(i) ? opposition * row.weight(i) * exp(row.score(i) - log) : 0;
    });
}

__device__ void force_sigmoid(row_view const& row) {
    problem const& p = row.p;
    double const factor = row.tau * *p.scale;
    if (row_lane() == 0)
        p.terms[row.place] = {static_cast<float>(row.tau * log2_e_k), static_cast<float>(row.beta * log2_e_k),
                              static_cast<float>(p.ambient_weight * factor), 0};
    put_forces(row, factor, 0, [&](std::uint32_t i) -> double {
        if (row.attracts(i))
            return -row.weight(i) * sigmoid(-row.score(i));
        return row.repels(i) ? row.weight(i) * sigmoid(row.score(i)) : 0;
    });
}

__global__ void __launch_bounds__(threads_k) force_rows(problem p) {
    each_row(p, [&](row_view const& row) {
        if (p.form == uform_pair_loss_form_ranked_k)
            force_ranked(row);
        else if (p.form == uform_pair_loss_form_sigmoid_k)
            force_sigmoid(row);
        else
            force_balanced(row);
    });
}

/** A block a tile. */
__global__ void __launch_bounds__(threads_k) bound_offsets(problem p) {
    __shared__ offset_range ranges[threads_k / warp_k];
    static_assert(threads_k == tile_k);
    float const offset = p.terms[blockIdx.x * tile_k + threadIdx.x].offset;
    offset_range range{offset, offset};
    auto const widen = [&](offset_range const& other) {
        range = {fminf(range.least, other.least), fmaxf(range.largest, other.largest)};
    };
#pragma unroll
    for (int step = warp_k / 2; step != 0; step /= 2)
        widen({__shfl_xor_sync(whole_warp_k, range.least, step), __shfl_xor_sync(whole_warp_k, range.largest, step)});
    if (threadIdx.x % warp_k == 0)
        ranges[threadIdx.x / warp_k] = range;
    __syncthreads();
    for (offset_range const& other : ranges)
        widen(other);
    if (threadIdx.x == 0)
        p.tile_offsets[blockIdx.x] = range;
}

/** A block a group. */
__global__ void __launch_bounds__(sum_threads_k) add_groups(problem p) {
    __shared__ double scratch[2][sum_threads_k / warp_k];
    std::uint32_t const group = blockIdx.x;
    double const tau = exp(double(p.log_inverse_temperature[group]));
    double temperature = 0, bias = 0;
    struct row_sums {
        std::uint32_t group;
        row_gradients named;
        coefficient_sums ambient;
    };
    each_loaded(
        p.counts[1],
        [&](std::uint32_t row) {
            return row_sums{p.row_groups[row], p.gradients[row], p.coefficients[p.row_places[row]]};
        },
        [&](row_sums const& row) {
            if (row.group != group)
                return;
            temperature += row.named.log_inverse_temperature + double(row.ambient.by_dot);
            bias += row.named.bias + double(row.ambient.plain) / tau;
        });
    temperature = sum_block(temperature, scratch[0]);
    bias = sum_block(bias, scratch[1]);
    if (threadIdx.x != 0)
        return;
    p.log_inverse_temperature_gradient[group] += static_cast<float>(temperature);
    if (p.form == uform_pair_loss_form_sigmoid_k)
        p.bias_gradient[group] += static_cast<float>(bias);
}

unsigned row_blocks(stream const& stream, extents const& extents) {
    return std::min(blocks_for(extents.rows, block_rows_k), static_cast<unsigned>(stream.multiprocessors) * 32);
}

} // namespace

void set_temperatures(stream const& stream, problem const& p, extents const& extents) {
    launch(stream, put_temperatures, blocks_for(extents.rows, threads_k), threads_k, 0, p);
}

void finish_losses(stream const& stream, problem const& p, extents const& extents) {
    launch(stream, score_rows, row_blocks(stream, extents), threads_k, 0, p);
    launch(stream, add_losses, 1, sum_threads_k, 0, p);
}

void find_forces(stream const& stream, problem const& p, extents const& extents) {
    launch(stream, force_rows, row_blocks(stream, extents), threads_k, 0, p);
    launch(stream, bound_offsets, p.tiles, threads_k, 0, p);
}

void finish_groups(stream const& stream, problem const& p, extents const&) {
    launch(stream, add_groups, p.groups, sum_threads_k, 0, p);
}

} // namespace uform::vram::pairs
