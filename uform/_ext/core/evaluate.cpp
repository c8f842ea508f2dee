#include "core/evaluate.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "core/evaluation_lists.h"
#include "core/given.h"
#include "core/host.h"
#include "core/memory.h"
#include "core/planning.h"

namespace uform {

namespace {

/** Rows of the longest item. */
uint64_t longest_of(pair_loss_problem const& problem) {
    uint64_t longest = 1;
    for (size_t item = 0; problem.offsets && item != problem.items; ++item)
        longest = std::max(longest, problem.offsets[item + 1] - problem.offsets[item]);
    return longest;
}

uform_run_t run_of(pair_loss_problem const& problem) {
    uform_run_t run{};
    run.hidden = static_cast<uint32_t>(problem.width);
    run.devices = run.world_devices = 1;
    run.segments_capacity = run.bags_capacity = static_cast<uint32_t>(std::max<size_t>(problem.items, 1));
    run.columns_capacity = problem.offsets ? static_cast<uint32_t>(problem.rows) : run.bags_capacity;
    run.row_columns = static_cast<uint32_t>(longest_of(problem));
    run.training = 1;
    return run;
}

/** Rows of float32 as rows of another type, end to end, on the same device. */
void narrow(uform_operations_t const& operations, uform_stream_t* stream, float const* from, size_t rows,
            uint32_t width, int32_t scalar, void* to) {
    uform_narrow_t narrow{};
    narrow.width = width;
    narrow.count = static_cast<uint32_t>(rows);
    narrow.scalar = scalar;
    narrow.from = from;
    narrow.to = to;
    check(uform_scalar_row_bytes(scalar, width, &narrow.to_bytes));
    check(operations.rows_narrow(stream, &narrow));
}

given_matrix matrix_of(pair_loss_problem const& problem) {
    return {problem.field,  problem.data,    problem.rows,       problem.width,
            problem.scalar, problem.strided, problem.row_stride, problem.column_stride};
}

void refuse_loss(double loss) {
    if (!std::isfinite(loss))
        fail(uform_status_not_finite_k, "loss is ", loss, ": the values are finite, but too large for it");
}

/** Everything that one evaluation needs on its device. */
class evaluation {
public:
    evaluation(executor& on, selection const& objective, pair_loss_problem const& problem)
        : operations_(on.operations()), pool_(on.pool()), lists_(on.evaluation()), problem_(problem),
          given_(on, matrix_of(problem)), stream_(on.stream(given_.place())), run_(run_of(problem)), objectives_(1) {
        lists_.relations.take(*problem.relations, problem.items, static_cast<uint64_t>(std::max(problem.max_edges, 0)),
                              1);
        check_sides(problem.sides, problem.items);
        check_answers();
        start_objective(objectives_[0], objective, {}, run_, operations_, declared_);
        lay_out();
        block_ = std::make_unique<device_block>(operations_, stream_, plan_.bytes());
        lists_.staging.resize(objectives_[0].staging_bytes);
    }

    void run() {
        take();
        plan();
        upload();
        forward_backward();
        check_finite();
        download();
    }

private:
    void check_answers() const {
        given_.check_beside("gradient", problem_.gradient);
        given_.check_beside("log_inverse_temperature_gradient", problem_.log_inverse_temperature_gradient);
        given_.check_beside("bias_gradient", problem_.bias_gradient);
        given_.check_beside("row_losses", problem_.row_losses);
    }

    size_t vectors_bytes() const { return sizeof(float) * problem_.rows * run_.hidden; }

    /** Whether the gradient is written where it is asked for. */
    bool writes_gradient() const {
        bool const reachable = given_.in_device() || operations_.host_memory;
        return reachable && problem_.scalar == uform_scalar_float32_k && problem_.gradient;
    }

    void lay_out() {
        parameters_ = plan_.add("parameters", sizeof(float) * declared_.parameters.flat());
        gradient_ = plan_.add("gradients", sizeof(float) * declared_.parameters.flat());
        staging_offset_ = plan_.add("staging", objectives_[0].staging_bytes);
        workspace_ = plan_.add("workspace", objectives_[0].workspace_bytes);
        vectors_ = plan_.add("embeddings", given_.bytes());
        vectors_gradient_ = plan_.add("embeddings", writes_gradient() ? 0 : vectors_bytes());
        row_losses_ = plan_.add("embeddings", sizeof(float) * run_.bags_capacity);
        terms_ = plan_.add("terms", sizeof(double) * UFORM_TERMS_CAPACITY);
        not_finite_ = plan_.add("terms", sizeof(uint64_t));
    }

    /** The vectors as they are or a copy of them, and where their gradient is added up. */
    void take() {
        embeddings_ = given_.take(block_->at<void>(vectors_), block_->at<uint64_t>(not_finite_));
        if (!writes_gradient()) {
            embeddings_gradient_ = block_->at<float>(vectors_gradient_);
            return;
        }
        embeddings_gradient_ = static_cast<float*>(problem_.gradient);
        check(operations_.memory_zero(stream_, embeddings_gradient_, vectors_bytes()));
    }

    void plan() {
        list();
        uint32_t const items = static_cast<uint32_t>(problem_.items);
        uform_device_view_t const view{nullptr, static_cast<uint32_t>(problem_.rows), items, items,
                                       lists_.segments.data()};
        uint8_t* const staging = lists_.staging.data();
        planning_.emplace(run_, objectives_, nullptr, pool_, lists_.planning);
        planning_->run({0,
                        {lists_.items.data(), items},
                        {lists_.bags.data(), items},
                        {&view, 1},
                        {&staging, 1},
                        problem_.sides,
                        &lists_.relations.sets()});
    }

    void list() {
        constexpr size_t chunk_k = 2048;
        lists_.segments.resize(problem_.items), lists_.items.resize(problem_.items), lists_.bags.resize(problem_.items);
        pool_.parallel_chunks(problem_.items, chunk_k, [this](size_t begin, size_t end) {
            for (size_t item = begin; item != end; ++item)
                list_item(static_cast<uint32_t>(item));
        });
    }

    void list_item(uint32_t index) {
        uint64_t const first = problem_.offsets ? problem_.offsets[index] : index;
        uint64_t const end = problem_.offsets ? problem_.offsets[index + 1] : index + 1;
        uform_segment_t segment{};
        segment.first = static_cast<uint32_t>(first);
        segment.columns = segment.pooled = static_cast<uint32_t>(end - first);
        segment.bag = index;
        lists_.segments[index] = segment;
        uform_item_t item{};
        item.content = item.segment = item.bag = index;
        item.modality = problem_.modalities ? problem_.modalities[index] : 0;
        item.world_item = index;
        item.measure.axes = 1;
        lists_.items[index] = item;
        lists_.bags[index] = {0, index, index, problem_.temperature_groups ? problem_.temperature_groups[index] : 0};
    }

    void upload() {
        initial_.resize(declared_.parameters.flat());
        for (parameter const& one : declared_.parameters.all())
            initialise(one, 0, initial_.data() + one.offset);
        check(operations_.memory_upload(stream_, block_->at<void>(parameters_), initial_.data(),
                                        sizeof(float) * initial_.size()));
        check(operations_.memory_upload(stream_, block_->at<void>(staging_offset_), lists_.staging.data(),
                                        lists_.staging.size()));
    }

    void forward_backward() {
        objective_instance const& objective = objectives_[0];
        std::vector<void const*> weights;
        std::vector<float*> gradients;
        for (uint32_t index : objective.parameters) {
            uint64_t const offset = declared_.parameters.at(index).offset;
            weights.push_back(block_->at<float>(parameters_) + offset);
            gradients.push_back(block_->at<float>(gradient_) + offset);
        }
        std::vector<double*> terms;
        for (uint32_t index : objective.terms)
            terms.push_back(block_->at<double>(terms_) + index);
        uform_host_t host{.parts = &objectives_[0]};
        uform_pass_t pass{};
        pass.host = &host;
        pass.run = &run_;
        pass.operations = &operations_;
        pass.stream = stream_;
        pass.backward = 1;
        pass.staging = block_->at<uint8_t>(staging_offset_);
        pass.workspace = block_->at<uint8_t>(workspace_);
        pass.weights = weights.data();
        pass.gradients = gradients.data();
        pass.fail = fail_on_host;
        pass.terms = terms.data();
        if (problem_.offsets) {
            pass.world_vectors = embeddings_;
            pass.world_vectors_gradient = embeddings_gradient_;
        } else {
            pass.world_bags = pass.bags = embeddings_;
            pass.world_bags_gradient = pass.bags_gradient = embeddings_gradient_;
        }
        pass.row_losses = block_->at<float>(row_losses_);
        check(objective.plugin->forward_backward(objective.self, &pass));
    }

    void download() {
        auto const fetch = [&](void* to, void const* from, size_t bytes) {
            if (to)
                check(operations_.memory_copy(stream_, to, from, bytes));
        };
        double term = 0;
        fetch(&term, block_->at<double>(terms_) + objectives_[0].terms.at(0), sizeof(term));
        if (!writes_gradient() && problem_.gradient)
            narrow_gradient();
        float* const wanted[] = {problem_.log_inverse_temperature_gradient, problem_.bias_gradient};
        for (size_t handle = 0; handle != std::size(wanted) && handle != objectives_[0].parameters.size(); ++handle) {
            parameter const& one = declared_.parameters.at(objectives_[0].parameters[handle]);
            fetch(wanted[handle], block_->at<float>(gradient_) + one.offset, sizeof(float) * one.count());
        }
        std::span<uint32_t const> const rows = planning_->rows(0);
        fetch(problem_.row_losses, block_->at<void>(row_losses_), sizeof(float) * rows.size());
        check(operations_.stream_synchronize(stream_));
        std::copy(rows.begin(), rows.end(), problem_.counted_rows);
        *problem_.rows_count = rows.size();
        *problem_.loss = term;
    }

    /** Finite vectors may still be too large for what is computed of them. */
    void check_finite() const {
        double term = 0;
        check(operations_.memory_download(stream_, &term, block_->at<double>(terms_) + objectives_[0].terms.at(0),
                                          sizeof(term)));
        check(operations_.stream_synchronize(stream_));
        refuse_loss(term);
        refuse("gradient", embeddings_gradient_, problem_.rows, run_.hidden);
        char const* const names[] = {"log_inverse_temperature_gradient", "bias_gradient"};
        for (size_t handle = 0; handle != std::size(names) && handle != objectives_[0].parameters.size(); ++handle) {
            parameter const& one = declared_.parameters.at(objectives_[0].parameters[handle]);
            refuse(names[handle], block_->at<float>(gradient_) + one.offset, one.count(), 1);
        }
    }

    void refuse(char const* field, float const* values, size_t rows, size_t width) const {
        refuse_not_finite(operations_, stream_, field, values, rows, width, block_->at<uint64_t>(not_finite_));
    }

    void narrow_gradient() {
        if (problem_.scalar == uform_scalar_float32_k)
            return check(operations_.memory_copy(stream_, problem_.gradient, embeddings_gradient_, vectors_bytes()));
        narrow(operations_, stream_, embeddings_gradient_, problem_.rows, run_.hidden, problem_.scalar,
               problem_.gradient);
    }

    uform_operations_t const& operations_;
    thread_pool& pool_;
    evaluation_lists& lists_;
    pair_loss_problem const& problem_;
    given_rows given_;
    uform_stream_t* stream_;
    uform_run_t run_;
    declarations declared_;
    std::vector<objective_instance> objectives_;
    memory_plan plan_;
    size_t parameters_ = 0, gradient_ = 0, staging_offset_ = 0, workspace_ = 0, vectors_ = 0, vectors_gradient_ = 0,
           row_losses_ = 0, terms_ = 0, not_finite_ = 0;
    float const* embeddings_ = nullptr;
    float* embeddings_gradient_ = nullptr;
    std::vector<float> initial_; // the parameters': kept, for the device may read it late
    std::optional<planning> planning_;
    std::unique_ptr<device_block> block_; // goes first: then the device reads nothing of the others any more
};

/** Offsets that never fall, from 0 on; an item with a side has a vector, and no more than one run holds. */
void check_offsets(pair_loss_problem const& problem) {
    uint64_t const* const offsets = problem.offsets;
    if (offsets[0] != 0)
        fail(uform_status_invalid_argument_k, "offsets[0]: 0, not ", offsets[0]);
    for (size_t item = 0; item != problem.items; ++item) {
        if (offsets[item + 1] < offsets[item])
            fail(uform_status_invalid_argument_k, "offsets[", item + 1, "]: at least ", offsets[item],
                 ", the one before it, not ", offsets[item + 1]);
        uint64_t const count = offsets[item + 1] - offsets[item];
        if (problem.sides && problem.sides[item] && (count == 0 || count > UFORM_RUN_CAPACITY))
            fail(uform_status_invalid_argument_k, "offsets: item ", item, " has a side and ", count,
                 " token vectors; between 1 and ", UFORM_RUN_CAPACITY, " are expected");
    }
}

} // namespace

void evaluate_pairs(executor& on, selection const& objective, pair_loss_problem const& problem) {
    if (problem.width == 0 || problem.width > UINT32_MAX / 2)
        fail(uform_status_invalid_argument_k, problem.field, ": at least one column a vector, not ", problem.width);
    if (problem.rows >= UINT32_MAX)
        fail(uform_status_invalid_argument_k, problem.field, ": at most ", UINT32_MAX - 1, " vectors, not ",
             problem.rows);
    if (problem.items >= UINT32_MAX)
        fail(uform_status_invalid_argument_k, "sides: at most ", UINT32_MAX - 1, " items, not ", problem.items);
    if (problem.offsets)
        check_offsets(problem);
    std::lock_guard order(on.order());
    evaluation(on, objective, problem).run();
}

namespace {

constexpr uint32_t bytes_k = 256;

/** The mean cross-entropy of given logits: everything that it needs on its device. */
class bytes_evaluation {
public:
    bytes_evaluation(executor& on, uform_masked_bytes_loss_t const& problem)
        : operations_(on.operations()), problem_(problem),
          given_(on, {"logits", problem.logits, problem.count, bytes_k, problem.scalar, problem.strided,
                      problem.row_stride, problem.column_stride}),
          stream_(on.stream(given_.place())) {
        given_.check_beside("targets", problem.targets);
        given_.check_beside("gradient", problem.gradient);
        workspace_bytes_ = operations_.cross_entropy_workspace_bytes(bytes_k, problem.count);
        logits_ = plan_.add("logits", given_.bytes());
        targets_ = plan_.add("targets", reachable() ? 0 : problem.count);
        loss_ = plan_.add("terms", sizeof(double));
        not_finite_ = plan_.add("terms", sizeof(uint64_t));
        workspace_ = plan_.add("workspace", workspace_bytes_);
        block_ = std::make_unique<device_block>(operations_, stream_, plan_.bytes());
    }

    void run() {
        uform_cross_entropy_t entropy{};
        entropy.classes = bytes_k;
        entropy.count = problem_.count;
        entropy.logits = given_.take(own_logits(), block_->at<uint64_t>(not_finite_));
        entropy.targets = take_targets();
        entropy.scale = problem_.count ? 1.0f / static_cast<float>(problem_.count) : 0.0f;
        entropy.loss = block_->at<double>(loss_);
        if (problem_.gradient)
            entropy.gradient = writes_gradient() ? static_cast<float*>(problem_.gradient) : own_logits();
        entropy.workspace = block_->at<void>(workspace_);
        entropy.workspace_bytes = workspace_bytes_;
        check(operations_.cross_entropy(stream_, &entropy));
        if (problem_.gradient && !writes_gradient())
            return_gradient(entropy.gradient);
        double loss = 0;
        check(operations_.memory_download(stream_, &loss, entropy.loss, sizeof(loss)));
        check(operations_.stream_synchronize(stream_));
        refuse_loss(loss);
        if (entropy.gradient)
            refuse_not_finite(operations_, stream_, "gradient", entropy.gradient, problem_.count, bytes_k,
                              block_->at<uint64_t>(not_finite_));
        *problem_.loss = loss;
    }

private:
    bool reachable() const { return given_.in_device() || operations_.host_memory; }

    /** A copy of the logits, which the gradient may lie over: there is one wherever it is not written directly. */
    float* own_logits() const { return block_->at<float>(logits_); }

    /** Whether the gradient is written where it is asked for. */
    bool writes_gradient() const {
        return reachable() && problem_.scalar == uform_scalar_float32_k && problem_.gradient;
    }

    uint8_t const* take_targets() const {
        if (reachable())
            return problem_.targets;
        uint8_t* const copy = block_->at<uint8_t>(targets_);
        check(operations_.memory_upload(stream_, copy, problem_.targets, problem_.count));
        return copy;
    }

    void return_gradient(float const* from) const {
        if (problem_.scalar != uform_scalar_float32_k)
            return narrow(operations_, stream_, from, problem_.count, bytes_k, problem_.scalar, problem_.gradient);
        check(operations_.memory_copy(stream_, problem_.gradient, from, sizeof(float) * bytes_k * problem_.count));
    }

    uform_operations_t const& operations_;
    uform_masked_bytes_loss_t const& problem_;
    given_rows given_;
    uform_stream_t* stream_;
    memory_plan plan_;
    size_t logits_ = 0, targets_ = 0, loss_ = 0, not_finite_ = 0, workspace_ = 0, workspace_bytes_ = 0;
    std::unique_ptr<device_block> block_;
};

} // namespace

} // namespace uform

extern "C" uform_status_t uform_masked_bytes_loss(uform_executor_t* executor,
                                                  uform_masked_bytes_loss_t const* problem) {
    return uform::guard([&] {
        std::lock_guard order(executor->body->order());
        uform::bytes_evaluation(*executor->body, *problem).run();
    });
}
