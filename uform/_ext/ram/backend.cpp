#include "ram/backend.h"

namespace uform::ram {

backend::backend(uform_backend_options_t const& options) : parallel_(options.parallel), gemm_(options.blas_path) {
    if (parallel_.run == nullptr)
        fail(uform_status_invalid_argument_k, "parallel.run: the backend needs worker threads, not a null function");
}

} // namespace uform::ram
