#include "vram/patches_sm90.h"

#include <algorithm>

#include "vram/moves.cuh"
#include "vram/tile_store.cuh"
#include "vram/values.cuh"
#include "vram/wgmma_tile.cuh"

namespace uform::vram::sm90 {

namespace {

using tile = wgmma_tile<128, 128, 3, 0>;

/** How a block's threads share out the copy of one step of an operand, 64 lines of 128 values: vectors of eight. */
struct line_copy {
    static constexpr unsigned chunks_k = 128 / lanes_k, lines_at_once_k = tile::threads_k / chunks_k;
    static constexpr unsigned passes_k = tile::depth_k / lines_at_once_k;

    static __device__ __forceinline__ unsigned chunk() { return threadIdx.x % chunks_k; }
    static __device__ __forceinline__ unsigned line(unsigned pass) {
        return threadIdx.x / chunks_k + pass * lines_at_once_k;
    }
    /** Where this thread's vector lies in the operand's boxes. */
    static __device__ __forceinline__ std::uint32_t place(std::uint32_t boxes, unsigned pass) {
        return boxes + chunk() / 8 * hopper::box_bytes_k + line(pass) * 128 + ((chunk() % 8 ^ line(pass) % 8) << 4);
    }
};

/** The gradients of patches, by the columns that show them; of others zeros. */
class gradient_lines {
public:
    __device__ gradient_lines(uform_patches_t const& patches, std::uint32_t const* places, std::size_t begin,
                              std::size_t end)
        : values_(static_cast<__nv_bfloat16 const*>(patches.gradient)), places_(places), stride_(patches.hidden),
          first_(blockIdx.y * tile::rows_k + line_copy::chunk() * lanes_k), end_(end) {
        look_up(begin);
    }

    /** Begins the copy of the step at `patch`, and looks up the next one's columns meanwhile. */
    __device__ __forceinline__ void load(std::uint32_t to, std::size_t patch) {
#pragma unroll
        for (unsigned pass = 0; pass != line_copy::passes_k; ++pass) {
            bool const present = columns_[pass] != left_alone_k && first_ < stride_;
            copy_begin(line_copy::place(to, pass),
                       values_ + (present ? std::size_t(columns_[pass]) * stride_ + first_ : 0), present);
        }
        look_up(patch + tile::depth_k);
    }

private:
    __device__ __forceinline__ void look_up(std::size_t patch) {
#pragma unroll
        for (unsigned pass = 0; pass != line_copy::passes_k; ++pass) {
            std::size_t const at = patch + line_copy::line(pass);
            columns_[pass] = at < end_ ? places_[at] : left_alone_k;
        }
    }

    __nv_bfloat16 const* values_;
    std::uint32_t const* places_;
    std::uint32_t stride_;
    unsigned first_;
    std::size_t end_;
    std::uint32_t columns_[line_copy::passes_k];
};

/** Raw values, which are on their way in registers for one step, and scaled when they are stored. */
template <typename element_at> class value_lines {
public:
    __device__ value_lines(uform_patches_t const& patches, std::size_t begin, std::size_t end)
        : values_(static_cast<element_at const*>(patches.values)), width_(patches.width),
          first_(blockIdx.x * tile::columns_k + line_copy::chunk() * lanes_k),
          scale_{patches.multiplier, patches.offset}, end_(end) {
        fetch(begin);
    }

    /** Stores the step at `patch`, and begins to load the next one. */
    __device__ __forceinline__ void load(std::uint32_t to, std::size_t patch) {
#pragma unroll
        for (unsigned pass = 0; pass != line_copy::passes_k; ++pass) {
            floatx8 scaled;
#pragma unroll
            for (unsigned i = 0; i != lanes_k; ++i)
                scaled[i] = fmaf(static_cast<float>(vectors_[pass].elements[i]), scale_.multiplier, scale_.offset);
            bf16x8 const packed = is_there(patch, pass) ? narrow(scaled) : bf16x8{};
            uint4 const words = *reinterpret_cast<uint4 const*>(&packed);
            asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(line_copy::place(to, pass)), "r"(words.x),
                         "r"(words.y), "r"(words.z), "r"(words.w)
                         : "memory");
        }
        fetch(patch + tile::depth_k);
    }

private:
    struct alignas(sizeof(element_at) * lanes_k) vector {
        element_at elements[lanes_k];
    };

    __device__ __forceinline__ bool is_there(std::size_t patch, unsigned pass) const {
        return patch + line_copy::line(pass) < end_ && first_ < width_;
    }
    __device__ __forceinline__ void fetch(std::size_t patch) {
#pragma unroll
        for (unsigned pass = 0; pass != line_copy::passes_k; ++pass)
            if (is_there(patch, pass))
                vectors_[pass] =
                    *reinterpret_cast<vector const*>(values_ + (patch + line_copy::line(pass)) * width_ + first_);
    }

    element_at const* values_;
    std::uint32_t width_;
    unsigned first_;
    value_scale scale_;
    std::size_t end_;
    vector vectors_[line_copy::passes_k] = {};
};

/** A tile of the gradient over one share of the patches. */
template <typename element_at>
__global__ void __launch_bounds__(tile::threads_k, 2)
    multiply(uform_patches_t patches, row_shares shares, std::uint32_t const* places, float* parts) {
    follow_earlier_kernels();
    extern __shared__ __align__(1024) std::byte shared[];
    auto const [begin, end] = shares.of(blockIdx.z);
    if (begin >= end)
        return;
    gradient_lines gradients(patches, places, begin, end);
    value_lines<element_at> values(patches, begin, end);
    tile::sums_t sums = {};
    std::size_t patch = begin;
    tile::multiply<contiguous::rows, contiguous::rows>(
        sums, shared_place(shared), static_cast<unsigned>(ceil_divide<std::size_t>(end - begin, tile::depth_k)),
        [&](std::uint32_t to_left, std::uint32_t to_right) {
            gradients.load(to_left, patch);
            values.load(to_right, patch);
            patch += tile::depth_k;
        });
    store<tile>(sums, parts + std::size_t(blockIdx.z) * patches.hidden * patches.width, patches.width,
                blockIdx.y * tile::rows_k, patches.hidden, blockIdx.x * tile::columns_k, patches.width);
}

dim3 tiles_of(uform_patches_t const& patches) {
    return {ceil_divide(patches.width, tile::columns_k), ceil_divide(patches.hidden, tile::rows_k), 1};
}

} // namespace

unsigned value_splits(stream const& stream, uform_patches_t const& patches, unsigned most) noexcept {
    dim3 const tiles = tiles_of(patches);
    return std::clamp(2 * static_cast<unsigned>(stream.multiprocessors) / (tiles.x * tiles.y), 1u, most);
}

void multiply_values(stream const& stream, uform_patches_t const& patches, row_shares const& shares,
                     std::uint32_t const* places, float* parts) {
    dim3 grid = tiles_of(patches);
    grid.z = shares.splits;
    auto const kernel = patches.element == uform_element_uint8_k ? multiply<std::uint8_t> : multiply<std::int16_t>;
    launch_early(stream, kernel, grid, tile::threads_k, tile::shared_bytes_k, patches, shares, places, parts);
}

} // namespace uform::vram::sm90
