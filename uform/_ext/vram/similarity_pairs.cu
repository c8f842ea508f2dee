/** Pairwise losses over given similarities: a block of threads a row, everything in double precision, for a row's own
 *  positive may leave next to nothing of a sum. */
#include <math_constants.h>

#include "vram/elementwise.cuh"
#include "vram/launch.cuh"
#include "vram/operations.h"

namespace uform::vram {

namespace {

constexpr unsigned threads_k = 256;

/** What one row adds to the loss and to the gradients, not yet scaled. */
struct row_sums {
    double loss, log_inverse_temperature, bias;
};

__device__ __forceinline__ double softplus(double x) { return fmax(x, 0.) + log1p(exp(-fabs(x))); }
__device__ __forceinline__ double sigmoid(double x) {
    double const small = exp(-fabs(x));
    return (x >= 0 ? 1. : small) / (1 + small);
}

/** The largest value of a block, in every thread. @param scratch [warps] as `sum_block` has it. */
__device__ __forceinline__ double largest_of_block(double value, double* scratch) {
#pragma unroll
    for (unsigned step = warp_k / 2; step != 0; step /= 2)
        value = fmax(value, __shfl_xor_sync(whole_warp_k, value, step));
    if (threadIdx.x % warp_k == 0)
        scratch[threadIdx.x / warp_k] = value;
    __syncthreads();
    for (unsigned warp = 0; warp != threads_k / warp_k; ++warp)
        value = fmax(value, scratch[warp]);
    __syncthreads();
    return value;
}

/** One row, shared by a block of threads. */
class similarity_row {
public:
    __device__ similarity_row(uform_similarity_pairs_t const& pairs, std::uint32_t row, double* scratch)
        : pairs_(pairs), similarities_(pairs.similarities + std::size_t(row) * pairs.candidates_capacity),
          begin_(pairs.edge_offsets[row]), end_(pairs.edge_offsets[row + 1]), look_(pairs.looks[row]),
          own_(pairs.own[row]), tau_(exp(double(*pairs.log_inverse_temperature))),
          beta_(sigmoid_form() ? double(*pairs.bias) : 0), scratch_(scratch) {}

    /** The loss in every thread; what backward needs is found as well. */
    __device__ double forward() {
        attraction_ = sum(edges([&](std::uint32_t edge) { return attracts(edge) ? weight(edge) : 0; }));
        if (sigmoid_form())
            return sum(ambient([&](double score) { return pairs_.ambient_weight * softplus(score); }) +
                       edges([&](std::uint32_t edge) {
                           return attracts(edge) ? weight(edge) * softplus(-score_of(edge))
                                  : repels(edge) ? weight(edge) * softplus(score_of(edge))
                                                 : 0;
                       }));
        find_sum();
        if (sum_ == 0)
            return 0;
        double const log_sum = maximum_ + log(sum_);
        if (pairs_.form == uform_pair_loss_form_ranked_k) {
            opposition_ = sum(edges([&](std::uint32_t edge) {
                return attracts(edge) ? target(edge) * sigmoid(log_sum - score_of(edge)) : 0;
            }));
            return sum(edges([&](std::uint32_t edge) {
                return attracts(edge) ? target(edge) * softplus(log_sum - score_of(edge)) : 0;
            }));
        }
        opposition_ = 1;
        return sum(
            edges([&](std::uint32_t edge) { return attracts(edge) ? target(edge) * (log_sum - score_of(edge)) : 0; }));
    }

    /** Writes the row's coefficients; answers its sums but the loss. */
    __device__ row_sums backward(float* coefficients, double scale) {
        row_sums own{};
        auto const take = [&](std::uint32_t candidate, double force, double score) {
            own.log_inverse_temperature += force * (score - beta_);
            own.bias += force;
            coefficients[candidate] = static_cast<float>(force * tau_ * scale);
        };
        for (std::uint32_t candidate = threadIdx.x; candidate < pairs_.counts[1]; candidate += threads_k) {
            if (is_ambient(candidate)) {
                double const score = tau_ * similarities_[candidate] + beta_;
                take(candidate, oppose(pairs_.ambient_weight, score), score);
            } else if (!is_named(candidate)) {
                coefficients[candidate] = 0;
            }
        }
        for (std::uint32_t edge = begin_ + threadIdx.x; edge < end_; edge += threads_k) {
            double const score = score_of(edge);
            double const force = attracts(edge) ? attract(edge, score) : repels(edge) ? oppose(weight(edge), score) : 0;
            take(pairs_.edge_candidates[edge], force, score);
        }
        own.log_inverse_temperature = sum(own.log_inverse_temperature);
        own.bias = sum(own.bias);
        return own;
    }

private:
    __device__ bool sigmoid_form() const { return pairs_.form == uform_pair_loss_form_sigmoid_k; }
    __device__ bool attracts(std::uint32_t edge) const {
        return pairs_.edge_classes[edge] == uform_pair_class_attracted_k;
    }
    __device__ bool repels(std::uint32_t edge) const {
        return pairs_.edge_classes[edge] == uform_pair_class_repelled_k;
    }
    __device__ double weight(std::uint32_t edge) const { return pairs_.edge_weights[edge]; }
    __device__ double target(std::uint32_t edge) const { return weight(edge) / attraction_; }
    __device__ double score_of(std::uint32_t edge) const {
        return tau_ * similarities_[pairs_.edge_candidates[edge]] + beta_;
    }

    __device__ bool is_named(std::uint32_t candidate) const {
        std::uint32_t begin = begin_, end = end_;
        while (begin < end) {
            std::uint32_t const middle = begin + (end - begin) / 2;
            if (pairs_.edge_candidates[middle] < candidate)
                begin = middle + 1;
            else
                end = middle;
        }
        return begin < end_ && pairs_.edge_candidates[begin] == candidate;
    }
    __device__ bool is_ambient(std::uint32_t candidate) const {
        return candidate != own_ && !(look_ & pairs_.faces[candidate]) && !is_named(candidate);
    }

    /** The sum over the block, in every thread; the order is fixed. */
    __device__ double sum(double value) {
        double const all = sum_block(value, scratch_);
        __syncthreads();
        return all;
    }
    /** This thread's sum over its ambient candidates' scores, and over its edges. */
    template <typename body_at> __device__ double ambient(body_at&& body) const {
        double all = 0;
        for (std::uint32_t candidate = threadIdx.x; candidate < pairs_.counts[1]; candidate += threads_k)
            if (is_ambient(candidate))
                all += body(tau_ * similarities_[candidate] + beta_);
        return all;
    }
    template <typename body_at> __device__ double edges(body_at&& body) const {
        double all = 0;
        for (std::uint32_t edge = begin_ + threadIdx.x; edge < end_; edge += threads_k)
            all += body(edge);
        return all;
    }

    /** What an edge counts in the row's sum of exponentials. */
    __device__ double kappa(std::uint32_t edge) const {
        if (repels(edge))
            return weight(edge);
        return attracts(edge) && pairs_.form == uform_pair_loss_form_balanced_k ? 1 : 0;
    }

    __device__ void find_sum() {
        double largest = -CUDART_INF;
        ambient([&](double score) { return largest = fmax(largest, score); });
        edges([&](std::uint32_t edge) {
            if (kappa(edge) > 0)
                largest = fmax(largest, score_of(edge));
            return 0.;
        });
        // Without anything to sum up all is zero; where that is NaN alone, so is the sum.
        maximum_ = largest_of_block(largest, scratch_);
        sum_ = sum(ambient([&](double score) { return pairs_.ambient_weight * exp(score - maximum_); }) +
                   edges([&](std::uint32_t edge) {
                       double const own = kappa(edge);
                       return own > 0 ? own * exp(score_of(edge) - maximum_) : 0;
                   }));
    }

    __device__ double share(double of, double score) const { return sum_ == 0 ? 0 : of * exp(score - maximum_) / sum_; }
    __device__ double oppose(double of, double score) const {
        return sigmoid_form() ? of * sigmoid(score) : opposition_ * share(of, score);
    }
    __device__ double attract(std::uint32_t edge, double score) const {
        if (sigmoid_form())
            return -weight(edge) * sigmoid(-score);
        if (pairs_.form == uform_pair_loss_form_ranked_k)
            return sum_ == 0 ? 0 : -target(edge) * sigmoid(maximum_ + log(sum_) - score);
        return share(1, score) - target(edge);
    }

    uform_similarity_pairs_t const& pairs_;
    float const* similarities_;
    std::uint32_t begin_, end_; // of its edges
    std::uint32_t look_, own_;
    double tau_, beta_;
    double* scratch_;
    double attraction_ = 0;
    double maximum_ = 0, sum_ = 0; // of exponentials
    double opposition_ = 0;        // by what the shares of the negatives are multiplied
};

__global__ void __launch_bounds__(threads_k) score_rows(uform_similarity_pairs_t pairs) {
    __shared__ double scratch[threads_k / warp_k];
    std::uint32_t const row = blockIdx.x;
    if (row >= pairs.counts[0])
        return;
    similarity_row scored(pairs, row, scratch);
    double const loss = scored.forward();
    row_sums sums{};
    if (pairs.coefficients)
        sums = scored.backward(pairs.coefficients + std::size_t(row) * pairs.candidates_capacity, *pairs.scale);
    sums.loss = loss;
    if (threadIdx.x != 0)
        return;
    static_cast<row_sums*>(pairs.workspace)[row] = sums;
    if (pairs.row_losses)
        pairs.row_losses[row] += static_cast<float>(loss);
}

/** One block, in the order of rows. */
__global__ void __launch_bounds__(threads_k) add_rows(uform_similarity_pairs_t pairs) {
    __shared__ double scratch[3][threads_k / warp_k];
    row_sums const* const rows = static_cast<row_sums const*>(pairs.workspace);
    row_sums all{};
    for (std::uint32_t row = threadIdx.x; row < pairs.counts[0]; row += threads_k) {
        all.loss += rows[row].loss;
        all.log_inverse_temperature += rows[row].log_inverse_temperature;
        all.bias += rows[row].bias;
    }
    double const scale = *pairs.scale;
    all.loss = scale * sum_block(all.loss, scratch[0]);
    all.log_inverse_temperature = scale * sum_block(all.log_inverse_temperature, scratch[1]);
    all.bias = scale * sum_block(all.bias, scratch[2]);
    if (threadIdx.x != 0)
        return;
    *pairs.loss += all.loss;
    if (!pairs.coefficients)
        return;
    *pairs.log_inverse_temperature_gradient += static_cast<float>(all.log_inverse_temperature);
    if (pairs.form == uform_pair_loss_form_sigmoid_k)
        *pairs.bias_gradient += static_cast<float>(all.bias);
}

} // namespace

std::size_t similarity_pairs_workspace_bytes(std::uint32_t rows, std::uint32_t) { return part_bytes<row_sums>(rows); }

uform_status_t similarity_pairs(uform_stream_t* opaque, uform_similarity_pairs_t const* pairs) {
    return operate("similarity_pairs", opaque, [&](stream const& stream) {
        check_bytes("workspace_bytes", pairs->workspace_bytes,
                    similarity_pairs_workspace_bytes(pairs->rows_capacity, pairs->edges_capacity));
        launch(stream, score_rows, pairs->rows_capacity, threads_k, 0, *pairs);
        launch(stream, add_rows, 1, threads_k, 0, *pairs);
    });
}

} // namespace uform::vram
