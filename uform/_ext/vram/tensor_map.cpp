#include "vram/tensor_map.h"

#include <algorithm>
#include <iterator>

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

/** @param strides Of all extents but the first, in bytes. */
template <unsigned rank_ak>
CUtensorMap encode_map(stream const& stream, __nv_bfloat16 const* values, cuuint64_t const (&extents)[rank_ak],
                       cuuint64_t const (&strides)[rank_ak - 1], cuuint32_t const (&box)[rank_ak]) {
    static encode_t const encode = find_encode(stream); // one driver a process
    CUtensorMap map{};
    cuuint32_t steps[rank_ak];
    std::fill(std::begin(steps), std::end(steps), 1u);
    CUresult const result =
        encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank_ak, const_cast<__nv_bfloat16*>(values), extents, strides,
               box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        fail(uform_status_device_k, stream.operation, ": no tensor map of ", extents[rank_ak - 1], " x ", extents[0],
             " values, ", strides[rank_ak - 2], " bytes apart, at ", static_cast<void const*>(values), ": error ",
             static_cast<int>(result));
    return map;
}

} // namespace

CUtensorMap tensor_map_of(stream const& stream, __nv_bfloat16 const* values, std::size_t rows, std::size_t columns,
                          std::size_t stride) {
    return encode_map<2>(stream, values, {columns, rows}, {stride * sizeof *values}, {box_k, box_k});
}

CUtensorMap dealt_map_of(stream const& stream, __nv_bfloat16 const* values, std::size_t rows, std::size_t columns,
                         std::size_t stride) {
    constexpr std::size_t dealt_k = 32, pair_k = 2, each_k = 8, threads_k = dealt_k / each_k, pairs_k = each_k / pair_k;
    std::size_t const row = stride * sizeof *values;
    return encode_map<5>(stream, values, {columns, pair_k, threads_k, pairs_k, rows / dealt_k},
                         {row, each_k * row, pair_k * row, dealt_k * row},
                         {box_k, pair_k, threads_k, pairs_k, box_k / dealt_k});
}

} // namespace uform::vram
