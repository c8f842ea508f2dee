#include "vram/tensor_map.h"

#include <cuda_runtime_api.h>

namespace uform::vram {

namespace {

constexpr unsigned box_k = 64;

using encode_t = decltype(&cuTensorMapEncodeTiled);

/** The driver's function, by way of the runtime: nothing links the driver. */
encode_t find_encode(stream const& stream) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    constexpr unsigned since = 12000;
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, since, cudaEnableDefault, &result),
               stream);
    if (result != cudaDriverEntryPointSuccess || found == nullptr)
        fail(uform_status_device_k, stream.operation, ": the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<encode_t>(found);
}

} // namespace

CUtensorMap tensor_map_of(stream const& stream, __nv_bfloat16 const* values, std::size_t rows, std::size_t columns,
                          std::size_t stride) {
    static encode_t const encode = find_encode(stream); // one driver a process
    CUtensorMap map{};
    cuuint64_t const extents[] = {columns, rows}, strides[] = {stride * sizeof *values};
    cuuint32_t const box[] = {box_k, box_k}, steps[] = {1, 1};
    CUresult const result =
        encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<__nv_bfloat16*>(values), extents, strides, box,
               steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        fail(uform_status_device_k, stream.operation, ": no tensor map of ", rows, " x ", columns, " values, ", stride,
             " apart, at ", static_cast<void const*>(values), ": error ", static_cast<int>(result));
    return map;
}

} // namespace uform::vram
