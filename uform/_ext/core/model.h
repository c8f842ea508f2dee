/** Inference over a checkpoint: the encoder, its pooling, and what objectives answer. */
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/answer.h"
#include "core/batch.h"
#include "core/checkpoint.h"
#include "core/planning.h"
#include "core/replica.h"

namespace uform {

class model {
public:
    model(std::shared_ptr<executor> on, std::string path);

    /** Who is told between two passes, and may cancel there. */
    struct listener {
        uform_progress_t call;
        void* state;
    };

    /** Any number of items, in as many passes as they take; answers how many were truncated. */
    uint64_t embed(uform_items_t const& items, uform_output_t const& output, listener told);
    /** The probabilities of all choices of all texts, end to end. */
    uint64_t text_choose(uform_items_t const& items, uform_choice_texts_t const& choices, float* probabilities,
                         size_t count, listener told);
    std::string describe();

    /** Where the token vectors of each item begin among those that `embed_tokens` answers; answers their width.
     *  @param sides By item, or null: a query's are those of its first columns alone. */
    uint32_t measure_tokens(uform_items_t const& items, uint8_t const* sides, std::span<uint64_t> offsets);
    uint64_t embed_tokens(uform_items_t const& items, uint8_t const* sides, uform_output_t const& output,
                          listener told);

private:
    /** Replicas for passes of so many rows a device. */
    struct engine {
        std::unique_ptr<composition> whole;
        replica_layout layout;
        std::vector<std::unique_ptr<replica>> replicas;
        std::unique_ptr<batch> planner;
        std::vector<staging_view> staging;
        std::unique_ptr<answer> answers;
        planning_lists plan_lists;
        std::unique_ptr<planning> plans;
        std::vector<uform_device_view_t> views;
        std::vector<uint8_t*> bases;      /* of each device's staging */
        std::vector<float const*> pooled; /* each device's bags */
    };

    void build(uint32_t rows);
    void load(engine& made);
    /** Makes room for the largest bag; a bag over what the run trained with is refused. */
    void reserve(uform_items_t const& items, uform_choice_texts_t const* choices);
    [[noreturn]] void refuse_bag(uform_items_t const& items, size_t bag, uint64_t most) const;
    void group_by_bag(uform_items_t const& items, uform_choice_texts_t const* choices);
    size_t choose_bags(size_t first_bag);
    void run_pass(uform_items_t const& items, uform_choice_texts_t const* choices);
    template <typename rows_of_at>
    uform_answer_t infer(size_t objective, uint32_t device, uint32_t width, rows_of_at&& rows_of);
    size_t tokens_objective() const;
    uint32_t place_tokens(uform_items_t const& items, uint8_t const* sides, std::span<uint64_t> offsets);
    void fetch_answers(size_t objective, std::span<uint64_t const> offsets, std::span<float> to);

    std::shared_ptr<executor> executor_;
    std::mutex mutex_;
    checkpoint file_;
    std::unique_ptr<composition> saved_; /* as it trained */
    std::vector<float> parameters_;      /* plain, so that a larger engine needs no second read */
    std::unique_ptr<engine> engine_;

    bag_numbering numbering_;
    std::vector<uint32_t> offsets_, members_; /* items by bag */
    std::vector<uint64_t> bag_columns_;
    std::vector<uint32_t> chosen_, words_;
    std::vector<float> fetched_; /* a device's answer on the host */
};

} // namespace uform
