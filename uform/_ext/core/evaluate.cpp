#include "core/evaluate.h"

#include <algorithm>
#include <vector>

#include "core/host.h"
#include "core/memory.h"
#include "core/planning.h"
#include "core/relations.h"

namespace uform {

namespace {

uform_run_t run_of(uform_contrastive_loss_t const& problem) {
    uint32_t const count = static_cast<uint32_t>(std::max<size_t>(problem.count, 1));
    uform_run_t run{};
    run.hidden = static_cast<uint32_t>(problem.width);
    run.devices = run.world_devices = 1;
    run.columns_capacity = run.segments_capacity = run.bags_capacity = count;
    run.row_columns = 1;
    run.training = 1;
    return run;
}

/** Everything that one evaluation needs on its device. */
class evaluation {
public:
    evaluation(executor& on, selection const& objective, uform_contrastive_loss_t const& problem)
        : operations_(on.operations()), stream_(on.stream(0)), problem_(problem), run_(run_of(problem)),
          objectives_(1) {
        start_objective(objectives_[0], objective, {}, run_, operations_, declared_);
        lay_out();
        block_ = std::make_unique<device_block>(operations_, stream_, plan_.bytes());
        staging_.resize(objectives_[0].staging_bytes);
    }

    void run() {
        plan();
        upload();
        forward_backward();
        download();
    }

private:
    void lay_out() {
        size_t const vectors = sizeof(float) * run_.bags_capacity * run_.hidden;
        parameters_ = plan_.add("parameters", sizeof(float) * declared_.parameters.flat());
        gradient_ = plan_.add("gradients", sizeof(float) * declared_.parameters.flat());
        staging_offset_ = plan_.add("staging", objectives_[0].staging_bytes);
        workspace_ = plan_.add("workspace", objectives_[0].workspace_bytes);
        vectors_ = plan_.add("embeddings", vectors);
        vectors_gradient_ = plan_.add("embeddings", vectors);
        row_losses_ = plan_.add("embeddings", sizeof(float) * run_.bags_capacity);
        terms_ = plan_.add("terms", sizeof(double) * UFORM_TERMS_CAPACITY);
    }

    void plan() {
        for (uint32_t index = 0; index != problem_.count; ++index) {
            uform_item_t item{};
            item.content = item.segment = item.bag = index;
            item.modality = problem_.modalities ? problem_.modalities[index] : 0;
            item.world_item = index;
            item.measure.axes = 1;
            items_.push_back(item);
            bags_.push_back({0, index, index, problem_.temperature_groups ? problem_.temperature_groups[index] : 0});
        }
        uint32_t const count = static_cast<uint32_t>(problem_.count);
        uform_device_view_t const view{nullptr, count, count, count, nullptr};
        uint8_t* const staging = staging_.data();
        planning_ = std::make_unique<planning>(run_, objectives_, nullptr, std::span<modality_instance const>{});
        planning_->run({0, items_, bags_, {&view, 1}, {&staging, 1}, problem_.sides, &problem_.relations});
    }

    void upload() {
        std::vector<float> plain(declared_.parameters.flat());
        for (parameter const& one : declared_.parameters.all())
            initialise(one, 0, plain.data() + one.offset);
        check(operations_.memory_upload(stream_, block_->at<void>(parameters_), plain.data(),
                                        sizeof(float) * plain.size()));
        check(operations_.memory_upload(stream_, block_->at<void>(staging_offset_), staging_.data(), staging_.size()));
        check(operations_.memory_upload(stream_, block_->at<void>(vectors_), problem_.embeddings,
                                        sizeof(float) * problem_.count * run_.hidden));
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
        pass.terms = terms.data();
        pass.world_bags = pass.bags = block_->at<float>(vectors_);
        pass.world_bags_gradient = pass.bags_gradient = block_->at<float>(vectors_gradient_);
        pass.row_losses = block_->at<float>(row_losses_);
        check(objective.plugin->forward_backward(objective.self, &pass));
    }

    void download() {
        auto const fetch = [&](void* to, void const* from, size_t bytes) {
            if (to)
                check(operations_.memory_download(stream_, to, from, bytes));
        };
        double term = 0;
        fetch(&term, block_->at<double>(terms_) + objectives_[0].terms.at(0), sizeof(term));
        fetch(problem_.gradient, block_->at<void>(vectors_gradient_), sizeof(float) * problem_.count * run_.hidden);
        float* const wanted[] = {problem_.log_inverse_temperature_gradient, problem_.bias_gradient};
        for (size_t handle = 0; handle != std::size(wanted) && handle != objectives_[0].parameters.size(); ++handle) {
            parameter const& one = declared_.parameters.at(objectives_[0].parameters[handle]);
            fetch(wanted[handle], block_->at<float>(gradient_) + one.offset, sizeof(float) * one.count());
        }
        std::span<uint32_t const> const rows = planning_->rows(0);
        fetch(problem_.row_losses, block_->at<void>(row_losses_), sizeof(float) * rows.size());
        check(operations_.stream_synchronize(stream_));
        std::copy(rows.begin(), rows.end(), problem_.rows);
        *problem_.rows_count = rows.size();
        *problem_.loss = term;
    }

    uform_operations_t const& operations_;
    uform_stream_t* stream_;
    uform_contrastive_loss_t const& problem_;
    uform_run_t run_;
    declarations declared_;
    std::vector<objective_instance> objectives_;
    memory_plan plan_;
    size_t parameters_ = 0, gradient_ = 0, staging_offset_ = 0, workspace_ = 0, vectors_ = 0, vectors_gradient_ = 0,
           row_losses_ = 0, terms_ = 0;
    std::unique_ptr<device_block> block_;
    std::vector<uint8_t> staging_;
    std::vector<uform_item_t> items_;
    std::vector<uform_bag_t> bags_;
    std::unique_ptr<planning> planning_;
};

} // namespace

void evaluate_pairs(executor& on, selection const& objective, uform_contrastive_loss_t const& problem) {
    if (problem.width == 0 || problem.width > UINT32_MAX / 2)
        fail(uform_status_invalid_argument_k, "embeddings: at least one column a vector, not ", problem.width);
    if (problem.count >= UINT32_MAX)
        fail(uform_status_invalid_argument_k, "embeddings: at most ", UINT32_MAX - 1, " vectors, not ", problem.count);
    check_relations(problem.relations, problem.count,
                    static_cast<uint64_t>(std::max(problem.contrastive.max_edges_per_device, 0)), 1);
    check_sides(problem.sides, problem.count);
    std::lock_guard order(on.order());
    evaluation(on, objective, problem).run();
}

} // namespace uform

extern "C" uform_status_t uform_masked_bytes_loss(uform_executor_t* executor, float const* logits,
                                                  uint8_t const* targets, size_t count, double* loss, float* gradient) {
    return uform::guard([&] {
        constexpr uint32_t bytes_k = 256;
        uform::executor& on = *executor->body;
        std::lock_guard order(on.order());
        uform_operations_t const& operations = on.operations();
        size_t const logits_bytes = sizeof(float) * bytes_k * count;
        uform::memory_plan plan;
        size_t const logits_at = plan.add("logits", logits_bytes), gradient_at = plan.add("logits", logits_bytes);
        size_t const targets_at = plan.add("targets", count), loss_at = plan.add("terms", sizeof(double));
        size_t const workspace_bytes = operations.cross_entropy_workspace_bytes(bytes_k, count);
        size_t const workspace_at = plan.add("workspace", workspace_bytes);
        uform::device_block block(operations, on.stream(0), plan.bytes());
        uform::check(operations.memory_upload(on.stream(0), block.at<void>(logits_at), logits, logits_bytes));
        uform::check(operations.memory_upload(on.stream(0), block.at<void>(targets_at), targets, count));
        uform_cross_entropy_t problem{};
        problem.classes = bytes_k;
        problem.count = count;
        problem.logits = block.at<float>(logits_at);
        problem.targets = block.at<uint8_t>(targets_at);
        problem.scale = count ? 1.0f / static_cast<float>(count) : 0.0f;
        problem.loss = block.at<double>(loss_at);
        problem.gradient = block.at<float>(gradient_at);
        problem.workspace = block.at<void>(workspace_at);
        problem.workspace_bytes = workspace_bytes;
        uform::check(operations.cross_entropy(on.stream(0), &problem));
        uform::check(operations.memory_download(on.stream(0), loss, problem.loss, sizeof(double)));
        if (gradient)
            uform::check(operations.memory_download(on.stream(0), gradient, problem.gradient, logits_bytes));
        uform::check(operations.stream_synchronize(on.stream(0)));
    });
}
