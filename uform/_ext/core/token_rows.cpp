#include "core/token_rows.h"

#include "core/error.h"
#include "core/pack.h"

namespace uform {

token_rows::token_rows(executor& on, uform_output_t const& output, uint32_t width, uint64_t rows)
    : executor_(on), operations_(on.operations()), output_(output), width_(width) {
    size_t row_bytes = 0;
    check(uform_scalar_row_bytes(output.scalar, width, &row_bytes));
    if (output.rows != rows || output.row_bytes < row_bytes)
        fail(uform_status_invalid_argument_k, "output: ", rows, " rows of ", row_bytes,
             " bytes are answered, room is for ", output.rows, " rows of ", output.row_bytes);
    if (rows && !output.data)
        fail(uform_status_invalid_argument_k, "output: its data is missing");
    if (output.data)
        check(operations_.memory_device(on.stream(0), output.data, &device_));
    if (device_ != host_k)
        on.place_of(device_, "output");
}

void token_rows::write(uint32_t device, uform_answer_t const& answer, std::span<uform_item_t const> items,
                       std::span<uint64_t const> offsets) const {
    std::vector<stretch> const stretches = stretches_of(device, answer, items, offsets);
    if (device_ == host_k)
        write_on_host(device, answer, stretches);
    else
        write_on_device(device, answer, stretches);
}

/** Items that follow each other in both are one. */
std::vector<token_rows::stretch> token_rows::stretches_of(uint32_t device, uform_answer_t const& answer,
                                                          std::span<uform_item_t const> items,
                                                          std::span<uint64_t const> offsets) const {
    std::vector<stretch> found;
    for (uform_item_t const& item : items) {
        if (item.device != device)
            continue;
        stretch const own{answer.offsets[item.segment], offsets[item.content],
                          offsets[item.content + 1] - offsets[item.content]};
        if (!found.empty() && found.back().from + found.back().count == own.from &&
            found.back().to + found.back().count == own.to)
            found.back().count += own.count;
        else
            found.push_back(own);
    }
    return found;
}

void token_rows::write_on_host(uint32_t device, uform_answer_t const& answer,
                               std::span<stretch const> stretches) const {
    uform_stream_t* const stream = executor_.stream(device);
    std::vector<float> fetched;
    for (stretch const& one : stretches) {
        float const* from = answer.values + one.from * width_;
        if (!operations_.host_memory) {
            fetched.resize(one.count * width_);
            check(operations_.memory_download(stream, fetched.data(), from, sizeof(float) * fetched.size()));
            check(operations_.stream_synchronize(stream));
            from = fetched.data();
        }
        for (uint64_t at = 0; at != one.count; ++at)
            check(uform_scalar_convert(from + at * width_, 1, width_, output_.scalar, row(one.to + at)));
    }
}

void token_rows::write_on_device(uint32_t device, uform_answer_t const& answer,
                                 std::span<stretch const> stretches) const {
    uform_stream_t* const stream = executor_.stream(executor_.place_of(device_, "output"));
    for (stretch const& one : stretches) {
        uform_narrow_t narrow{};
        narrow.width = width_;
        narrow.count = static_cast<uint32_t>(one.count);
        narrow.scalar = output_.scalar;
        narrow.source = executor_.stream(device);
        narrow.from = answer.values + one.from * width_;
        narrow.to = row(one.to);
        narrow.to_bytes = output_.row_bytes;
        check(operations_.rows_narrow(stream, &narrow));
    }
    check(operations_.stream_synchronize(stream));
}

} // namespace uform
