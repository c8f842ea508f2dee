/** Rows of values that a caller owns, as operations read them: float32 end to end on one device. */
#pragma once

#include <cstdint>

#include "core/executor.h"

namespace uform {

/** Where the values lie: in memory of the host or of one of the executor's GPUs; its address tells which. */
struct given_matrix {
    char const* field; /* what refusals name */
    void const* data;
    size_t rows;
    size_t width;
    int32_t scalar;     /* float32, or on a GPU bfloat16 */
    int32_t strided;    /* 0: end to end */
    int64_t row_stride; /* in values */
    int64_t column_stride;
};

class given_rows {
public:
    /** Refuses another element type, and memory of a device that is none of the executor's. */
    given_rows(executor& on, given_matrix const& given);

    /** The executor's device to work on, by its place: where the values lie, or the first. */
    uint32_t place() const { return place_; }

    /** Whether they lie in a GPU's memory. */
    bool in_device() const { return device_ != host_k; }

    /** Refuses memory, unless it is null, that does not lie where the values do. */
    void check_beside(char const* field, void const* memory) const;

    /** Whether operations can read them as they are. */
    bool is_plain() const { return reachable_ && matrix_.scalar == uform_scalar_float32_k && is_dense(); }

    /** Bytes of device memory that `take` needs. */
    size_t bytes() const { return is_plain() ? 0 : sizeof(float) * matrix_.rows * matrix_.width; }

    /**
     *  Answers them as operations read them, after refusing a value that is not finite by its row and column.
     *  @param memory Device-side, of `bytes`.
     *  @param not_finite Device-side, one number.
     */
    float const* take(void* memory, uint64_t* not_finite) const;

private:
    static constexpr int32_t host_k = -1;

    bool is_dense() const;
    [[noreturn]] void refuse(uint64_t index, void const* from) const;

    uform_operations_t const& operations_;
    given_matrix matrix_;
    int32_t device_ = host_k;
    uint32_t place_ = 0;
    uform_stream_t* stream_ = nullptr;
    uform_stream_t* upload_stream_ = nullptr; /* their owner makes it wait for what still writes them */
    bool reachable_ = false;                  /* by the device */
};

/** Refuses computed rows of float32, end to end, that are not finite: `uform_status_not_finite_k`, by row and column.
 *  @param not_finite Device-side, one number. */
void refuse_not_finite(uform_operations_t const& operations, uform_stream_t* stream, char const* field,
                       float const* values, size_t rows, size_t width, uint64_t* not_finite);

} // namespace uform
