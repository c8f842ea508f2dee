/** Where token vectors go: rows of one output, in memory of the host or of a device. */
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/executor.h"

namespace uform {

class token_rows {
public:
    /** Refuses another count of rows, narrower ones, and memory that is neither the host's nor of the executor's GPUs.
     */
    token_rows(executor& on, uform_output_t const& output, uint32_t width, uint64_t rows);

    /**
     *  Writes what an objective answers for a device's items; all is done when it returns.
     *  @param offsets The output's first row of each content of the call, and its end.
     */
    void write(uint32_t device, uform_answer_t const& answer, std::span<uform_item_t const> items,
               std::span<uint64_t const> offsets) const;

private:
    /** Rows of an answer that become rows of the output. */
    struct stretch {
        uint64_t from, to, count;
    };

    std::vector<stretch> stretches_of(uint32_t device, uform_answer_t const& answer,
                                      std::span<uform_item_t const> items, std::span<uint64_t const> offsets) const;
    void write_on_host(uint32_t device, uform_answer_t const& answer, std::span<stretch const> stretches) const;
    void write_on_device(uint32_t device, uform_answer_t const& answer, std::span<stretch const> stretches) const;
    uint8_t* row(uint64_t at) const { return static_cast<uint8_t*>(output_.data) + at * output_.row_bytes; }

    static constexpr int32_t host_k = -1;

    executor& executor_;
    uform_operations_t const& operations_;
    uform_output_t output_;
    uint32_t width_;
    int32_t device_ = host_k;
};

} // namespace uform
