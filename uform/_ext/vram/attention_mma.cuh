/** The instructions of attention's kernels: sm_80 and later have them all. */
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace uform::vram {

/** Where something in shared memory lies, as instructions name it. */
__device__ __forceinline__ std::uint32_t shared_place(void const* memory) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
}

/** Begins a copy of 16 bytes into shared memory; where they are not present, zeros are written and nothing is read. */
__device__ __forceinline__ void copy_begin(std::uint32_t to, void const* from, bool present) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(present ? 16 : 0)
                 : "memory");
}

/** Closes the group of copies begun since the last one. */
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/** Waits until this thread's groups of copies but the last `pending_ak` have arrived. */
template <unsigned pending_ak> __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending_ak) : "memory");
}

/** Four 8x8 matrices of bfloat16; lane l gives the place of row l % 8 of matrix l / 8. */
__device__ __forceinline__ void load_matrices(std::uint32_t (&matrices)[4], std::uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(row));
}

/** The same, each matrix transposed. */
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&matrices)[4], std::uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(row));
}

/** sums [16, 8] += a [16, 16] b [16, 8]; b's halves are its upper and its lower 8 rows. */
__device__ __forceinline__ void multiply_add(float (&sums)[4], std::uint32_t const (&a)[4], std::uint32_t b_upper,
                                             std::uint32_t b_lower) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_upper), "r"(b_lower));
}

__device__ __forceinline__ void store_shared(std::uint32_t place, std::uint32_t value) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(place), "r"(value) : "memory");
}

/** 2^x to float32's last bits; 0 for -infinity. */
__device__ __forceinline__ float power_of_2(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

/** Two values rounded to bfloat16, the first in the lower half. */
__device__ __forceinline__ std::uint32_t pack(float first, float second) {
    __nv_bfloat162 const pair = __floats2bfloat162_rn(first, second);
    return *reinterpret_cast<std::uint32_t const*>(&pair);
}

} // namespace uform::vram
