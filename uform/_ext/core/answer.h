/** Where embeddings go: every device's pooled rows become rows of one output, in memory of the host or of a device. */
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/batch.h"
#include "core/event.h"
#include "core/executor.h"
#include "core/memory.h"

namespace uform {

class answer {
public:
    /** @param bags_capacity The most bags of one device. */
    answer(executor& on, uint32_t hidden, uint32_t bags_capacity);

    /** Refuses another count of rows, narrower ones, and memory that is neither the host's nor of the executor's GPUs.
     */
    void check(uform_output_t const& output, size_t rows) const;

    /** Takes the memory that an output needs on its way, and keeps it. */
    void reserve(uform_output_t const& output);

    /**
     *  Puts a batch's rows on their way to those from `first` on; a bag that was dropped whole is zero. What comes
     * later on any stream leaves them alone.
     *  @param pooled By device: its bags in the order of their places.
     */
    void begin(batch const& planned, std::span<float const* const> pooled, uform_output_t const& output, size_t first);

    /** Once all streams have done what they had by then: the rows are there when it returns. */
    void finish();

    /** All of it, with a wait between. */
    void write(batch const& planned, std::span<float const* const> pooled, uform_output_t const& output, size_t first);

private:
    static constexpr int32_t host_k = -1;

    int32_t device_of(uform_output_t const& output) const;
    void begin_on_device(uint32_t target, batch const& planned, std::span<float const* const> pooled);

    executor& executor_;
    uform_operations_t const& operations_;
    uint32_t hidden_, bags_capacity_;
    std::vector<std::unique_ptr<staging_block>> copies_; /* by device: its rows on the host, where its memory is not */
    std::vector<std::vector<uint32_t>> places_;          /* by device: the output's row of each of its rows */
    std::vector<device_event> written_;                  /* by device: an output of it */

    /* what is on its way */
    uform_output_t output_{};
    size_t first_ = 0;
    bool to_host_ = false;
    std::vector<float const*> rows_; /* by device: what the host reads */
    std::vector<uform_bag_t> bags_;
};

} // namespace uform
