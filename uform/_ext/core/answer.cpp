#include "core/answer.h"

#include <cstring>

#include "core/error.h"

namespace uform {

namespace {

uint8_t* row_of(uform_output_t const& output, size_t row) {
    return static_cast<uint8_t*>(output.data) + row * output.row_bytes;
}

} // namespace

answer::answer(executor& on, uint32_t hidden, uint32_t bags_capacity)
    : executor_(on), operations_(on.operations()), hidden_(hidden), bags_capacity_(bags_capacity),
      places_(on.devices()), rows_(on.devices()) {
    for (uint32_t device = 0; device != on.devices(); ++device)
        written_.emplace_back(operations_, on.stream(device));
    if (operations_.host_memory)
        return;
    copies_.resize(on.devices());
    for (std::vector<uint32_t>& one : places_)
        one.resize(bags_capacity);
}

void answer::check(uform_output_t const& output, size_t rows) const {
    size_t row_bytes = 0;
    uform::check(uform_scalar_row_bytes(output.scalar, hidden_, &row_bytes));
    if (output.rows != rows || output.row_bytes < row_bytes)
        fail(uform_status_invalid_argument_k, "output: ", rows, " rows of ", row_bytes,
             " bytes are answered, room is for ", output.rows, " rows of ", output.row_bytes);
    int32_t const device = device_of(output);
    if (device != host_k)
        executor_.place_of(device, "output");
}

void answer::reserve(uform_output_t const& output) {
    if (device_of(output) != host_k)
        return;
    for (uint32_t device = 0; device != copies_.size(); ++device)
        if (!copies_[device])
            copies_[device] = std::make_unique<staging_block>(operations_, executor_.stream(device),
                                                              sizeof(float) * hidden_ * bags_capacity_);
}

void answer::begin(batch const& planned, std::span<float const* const> pooled, uform_output_t const& output,
                   size_t first) {
    int32_t const device = device_of(output);
    output_ = output;
    first_ = first;
    to_host_ = device == host_k;
    if (!to_host_)
        return begin_on_device(executor_.place_of(device, "output"), planned, pooled);
    bags_.assign(planned.bags().begin(), planned.bags().end());
    rows_.assign(pooled.begin(), pooled.end());
    for (size_t place = 0; place != copies_.size(); ++place) {
        uform::check(operations_.memory_download(executor_.stream(place), copies_[place]->data(), pooled[place],
                                                 sizeof(float) * hidden_ * planned.devices()[place].bags));
        rows_[place] = reinterpret_cast<float const*>(copies_[place]->data());
    }
}

void answer::finish() {
    if (!to_host_)
        return;
    for (size_t bag = 0; bag != bags_.size(); ++bag) {
        auto const& [device, place, slot, group] = bags_[bag];
        uint8_t* const to = row_of(output_, first_ + bag);
        if (device == dropped_k)
            std::memset(to, 0, output_.row_bytes);
        else
            uform::check(uform_scalar_convert(rows_[device] + size_t(place) * hidden_, 1, hidden_, output_.scalar, to));
    }
}

void answer::write(batch const& planned, std::span<float const* const> pooled, uform_output_t const& output,
                   size_t first) {
    reserve(output);
    begin(planned, pooled, output, first);
    for (uint32_t device = 0; device != executor_.devices(); ++device)
        uform::check(operations_.stream_synchronize(executor_.stream(device)));
    finish();
}

/** The index of the GPU whose memory the output is, or `host_k`. */
int32_t answer::device_of(uform_output_t const& output) const {
    int32_t device = host_k;
    if (output.data)
        uform::check(operations_.memory_device(executor_.stream(0), output.data, &device));
    return device;
}

void answer::begin_on_device(uint32_t target, batch const& planned, std::span<float const* const> pooled) {
    uform_stream_t* const stream = executor_.stream(target);
    for (size_t bag = 0; bag != planned.bags().size(); ++bag) {
        auto const& [device, place, slot, group] = planned.bags()[bag];
        if (device == dropped_k)
            uform::check(operations_.memory_zero(stream, row_of(output_, first_ + bag), output_.row_bytes));
        else
            places_[device][place] = static_cast<uint32_t>(first_ + bag);
    }
    for (size_t device = 0; device != places_.size(); ++device) {
        uform_narrow_t narrow{};
        narrow.width = hidden_;
        narrow.count = planned.devices()[device].bags;
        narrow.scalar = output_.scalar;
        narrow.source = executor_.stream(device);
        narrow.from = pooled[device];
        narrow.places = places_[device].data();
        narrow.to = output_.data;
        narrow.to_bytes = output_.row_bytes;
        uform::check(operations_.rows_narrow(stream, &narrow));
    }
    // Nothing that overwrites what is read comes before the rows lie there, whatever stream it is on.
    written_[target].record(stream);
    for (uint32_t device = 0; device != executor_.devices(); ++device)
        if (device != target)
            written_[target].hold(executor_.stream(device));
}

} // namespace uform
