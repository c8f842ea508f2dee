#include "core/given.h"

#include <bit>

#include "core/error.h"
#include "core/event.h"

namespace uform {

namespace {

/** Answers row times width plus column of the first value that is not finite, `UINT64_MAX` where there is none. */
uint64_t widen_rows(uform_operations_t const& operations, uform_stream_t* stream, uform_widen_t const& widen) {
    uint64_t found = 0;
    check(operations.rows_widen(stream, &widen));
    check(operations.memory_download(stream, &found, widen.not_finite, sizeof(found)));
    check(operations.stream_synchronize(stream));
    return found;
}

} // namespace

given_rows::given_rows(executor& on, given_matrix const& given) : operations_(on.operations()), matrix_(given) {
    if (matrix_.rows > UINT32_MAX - 1 || matrix_.width > UINT32_MAX / 2)
        fail(uform_status_invalid_argument_k, matrix_.field, ": at most ", UINT32_MAX - 1, " rows of ", UINT32_MAX / 2,
             " values, not ", matrix_.rows, " of ", matrix_.width);
    // The stride of an axis of one place means nothing.
    if (!matrix_.strided || matrix_.rows < 2)
        matrix_.row_stride = static_cast<int64_t>(matrix_.width);
    if (!matrix_.strided || matrix_.width < 2)
        matrix_.column_stride = 1;
    if (matrix_.data)
        check(operations_.memory_device(on.stream(0), matrix_.data, &device_));
    if (in_device())
        place_ = on.place_of(device_, matrix_.field);
    stream_ = on.stream(place_);
    upload_stream_ = on.upload_stream(place_);
    reachable_ = in_device() || operations_.host_memory;
    bool const takes_bfloat16 = in_device() || (matrix_.rows == 0 && !operations_.host_memory);
    if (matrix_.scalar != uform_scalar_float32_k && !(takes_bfloat16 && matrix_.scalar == uform_scalar_bfloat16_k))
        fail(uform_status_invalid_type_k, matrix_.field,
             ": expected FLOAT32, or in a GPU's memory BFLOAT16, not scalar ", matrix_.scalar);
    if (matrix_.rows && !reachable_ && !is_dense())
        fail(uform_status_invalid_argument_k, matrix_.field, ": rows in host memory must lie end to end for a GPU");
}

void given_rows::check_beside(char const* field, void const* memory) const {
    int32_t device = host_k;
    if (!memory || !matrix_.data)
        return;
    check(operations_.memory_device(stream_, memory, &device));
    if (device != device_)
        fail(uform_status_invalid_argument_k, field, ": it lies on device ", device, ", and ", matrix_.field,
             " on device ", device_, " (", host_k, ": the host)");
}

bool given_rows::is_dense() const {
    return matrix_.column_stride == 1 && matrix_.row_stride == static_cast<int64_t>(matrix_.width);
}

float const* given_rows::take(void* memory, uint64_t* not_finite) const {
    void const* from = matrix_.data;
    if (in_device()) {
        device_event written(operations_, upload_stream_);
        written.record(upload_stream_);
        written.hold(stream_);
    }
    if (!reachable_) {
        check(operations_.memory_upload(stream_, memory, from, bytes()));
        from = memory;
    }
    uform_widen_t widen{};
    widen.rows = static_cast<uint32_t>(matrix_.rows);
    widen.width = static_cast<uint32_t>(matrix_.width);
    widen.scalar = matrix_.scalar;
    widen.row_stride = matrix_.row_stride;
    widen.column_stride = matrix_.column_stride;
    widen.from = from;
    widen.to = is_plain() || !reachable_ ? nullptr : static_cast<float*>(memory);
    widen.not_finite = not_finite;
    uint64_t const found = widen_rows(operations_, stream_, widen);
    if (found != UINT64_MAX)
        refuse(found, from);
    return widen.to ? widen.to : static_cast<float const*>(from);
}

void given_rows::refuse(uint64_t index, void const* from) const {
    uint64_t const row = index / matrix_.width, column = index % matrix_.width;
    bool const wide = matrix_.scalar == uform_scalar_float32_k;
    size_t const value_bytes = wide ? sizeof(float) : sizeof(uint16_t);
    int64_t const at =
        static_cast<int64_t>(row) * matrix_.row_stride + static_cast<int64_t>(column) * matrix_.column_stride;
    uint32_t bits = 0;
    check(operations_.memory_download(
        stream_, &bits, static_cast<uint8_t const*>(from) + at * static_cast<int64_t>(value_bytes), value_bytes));
    check(operations_.stream_synchronize(stream_));
    fail(uform_status_invalid_argument_k, matrix_.field, "[", row, "] is not finite: it has ",
         std::bit_cast<float>(wide ? bits : bits << 16), " in column ", column);
}

void refuse_not_finite(uform_operations_t const& operations, uform_stream_t* stream, char const* field,
                       float const* values, size_t rows, size_t width, uint64_t* not_finite) {
    if (rows == 0 || width == 0)
        return;
    uform_widen_t widen{};
    widen.rows = static_cast<uint32_t>(rows);
    widen.width = static_cast<uint32_t>(width);
    widen.scalar = uform_scalar_float32_k;
    widen.row_stride = static_cast<int64_t>(width);
    widen.column_stride = 1;
    widen.from = values;
    widen.not_finite = not_finite;
    uint64_t const found = widen_rows(operations, stream, widen);
    if (found == UINT64_MAX)
        return;
    float value = 0;
    check(operations.memory_download(stream, &value, values + found, sizeof(value)));
    check(operations.stream_synchronize(stream));
    fail(uform_status_not_finite_k, field, "[", found / width, "] is not finite: it has ", value, " in column ",
         found % width, ", of finite values that are too large for it");
}

} // namespace uform
