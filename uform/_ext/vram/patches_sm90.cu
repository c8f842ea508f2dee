#include "vram/patches_sm90.h"

#include <algorithm>

#include "vram/moves.cuh"
#include "vram/tile_store.cuh"
#include "vram/values.cuh"
#include "vram/wgmma_tile.cuh"

namespace uform::vram::sm90 {

namespace {

using tile = wgmma_tile<128, 256, 2, 0>;

/** How a block's threads share out the copy of one step of an operand, 64 lines of so many values: vectors of eight. */
template <unsigned values_ak> struct line_copy {
    static constexpr unsigned chunks_k = values_ak / lanes_k, lines_at_once_k = tile::threads_k / chunks_k;
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
    using line_copy = sm90::line_copy<tile::rows_k>;

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

/** Raw values: each thread copies the vectors that it scales, and so waits for no others. */
template <typename element_at> class value_lines {
    using line_copy = sm90::line_copy<tile::columns_k>;
    static constexpr unsigned vector_bytes_k = lanes_k * sizeof(element_at);

public:
    /** Of one step. */
    static constexpr unsigned bytes_k = tile::depth_k * tile::columns_k * sizeof(element_at);

    __device__ value_lines(uform_patches_t const& patches, std::size_t end)
        : values_(static_cast<element_at const*>(patches.values)), width_(patches.width),
          first_(blockIdx.x * tile::columns_k + line_copy::chunk() * lanes_k),
          scale_{patches.multiplier, patches.offset}, end_(end) {}

    /** Begins the copy of the step at `patch`. What is not there becomes zero: no gradient meets it. */
    __device__ __forceinline__ void load(std::uint32_t to, std::size_t patch) const {
        element_at const* const row = values_ + (patch + line_copy::line(0)) * width_ + first_;
#pragma unroll
        for (unsigned pass = 0; pass != line_copy::passes_k; ++pass) {
            bool const present = patch + line_copy::line(pass) < end_ && first_ < width_;
            element_at const* const from = present ? row + pass * line_copy::lines_at_once_k * width_ : values_;
            if constexpr (vector_bytes_k == 16)
                copy_begin(place(to, pass), from, present);
            else
                asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(place(to, pass)),
                             "l"(__cvta_generic_to_global(from)), "r"(present ? 8 : 0)
                             : "memory");
        }
    }

    /** From a step that has arrived to an operand's boxes. */
    __device__ __forceinline__ void scale(std::uint32_t from, std::uint32_t boxes) const {
        std::uint32_t raw[line_copy::passes_k][words_k];
#pragma unroll
        for (unsigned pass = 0; pass != line_copy::passes_k; ++pass)
            load_shared(raw[pass], place(from, pass));
#pragma unroll
        for (unsigned pass = 0; pass != line_copy::passes_k; ++pass) {
            bf16x8 const packed = narrow(scale_words<element_at>(raw[pass], scale_));
            uint4 const words = *reinterpret_cast<uint4 const*>(&packed);
            asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(line_copy::place(boxes, pass)), "r"(words.x),
                         "r"(words.y), "r"(words.z), "r"(words.w)
                         : "memory");
        }
    }

private:
    static constexpr unsigned words_k = vector_bytes_k / 4;

    static __device__ __forceinline__ std::uint32_t place(std::uint32_t step, unsigned pass) {
        return step + (pass * tile::threads_k + threadIdx.x) * vector_bytes_k;
    }
    static __device__ __forceinline__ void load_shared(std::uint32_t (&words)[words_k], std::uint32_t at) {
        if constexpr (words_k == 4)
            asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                         : "r"(at)
                         : "memory");
        else
            asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(at) : "memory");
    }

    element_at const* values_;
    std::uint32_t width_;
    unsigned first_;
    value_scale scale_;
    std::size_t end_;
};

/** A block's shared memory: a ring of steps on their way, and two steps of scaled values that take turns. */
template <typename element_at> struct steps_memory {
    static constexpr unsigned stage_bytes_k = tile::left_bytes_k + value_lines<element_at>::bytes_k;
    static constexpr unsigned scaled_bytes_k = tile::depth_k * tile::columns_k * sizeof(__nv_bfloat16);
    static constexpr unsigned most_bytes_k = 224 * 1024;
    static constexpr unsigned stages_k = (most_bytes_k - 2 * scaled_bytes_k) / stage_bytes_k;
    static constexpr unsigned bytes_k = stages_k * stage_bytes_k + 2 * scaled_bytes_k + tile::box_alignment_k;

    std::uint32_t base;

    __device__ explicit steps_memory(void const* shared)
        : base((shared_place(shared) + tile::box_alignment_k - 1) / tile::box_alignment_k * tile::box_alignment_k) {}

    __device__ std::uint32_t scaled(unsigned step) const { return base + step % 2 * scaled_bytes_k; }
    __device__ std::uint32_t gradients(unsigned stage) const {
        return base + 2 * scaled_bytes_k + stage * stage_bytes_k;
    }
    __device__ std::uint32_t values(unsigned stage) const { return gradients(stage) + tile::left_bytes_k; }
};

/** A tile of the gradient over one share of the patches. While a step's products go on, the next one's values are
 *  scaled, and later ones are on their way. */
template <typename element_at>
__global__ void __launch_bounds__(tile::threads_k, 1)
    multiply(uform_patches_t patches, row_shares shares, std::uint32_t const* places, float* parts) {
    using namespace hopper;
    follow_earlier_kernels();
    extern __shared__ __align__(16) std::byte shared[];
    auto const [begin, end] = shares.of(blockIdx.z);
    if (begin >= end)
        return;
    using memory_t = steps_memory<element_at>;
    constexpr unsigned stages = memory_t::stages_k, ahead = stages - 1;
    memory_t const memory(shared);
    gradient_lines gradients(patches, places, begin, end);
    value_lines<element_at> const values(patches, end);
    unsigned const steps = static_cast<unsigned>(ceil_divide<std::size_t>(end - begin, tile::depth_k));
    std::size_t patch = begin;
    auto const load = [&](unsigned stage) {
        gradients.load(memory.gradients(stage), patch);
        values.load(memory.values(stage), patch);
        patch += tile::depth_k;
    };
#pragma unroll
    for (unsigned stage = 0; stage != ahead; ++stage) {
        if (stage < steps)
            load(stage);
        copies_commit();
    }
    copies_wait<ahead - 1>();
    values.scale(memory.values(0), memory.scaled(0));
    tile::sums_t sums = {};
    unsigned stage = 0, loaded = ahead;
    for (unsigned step = 0; step != steps; ++step) {
        show_to_products();
        __syncthreads(); // the step is there for all, and the one before it is done with
        std::uint32_t const left = memory.gradients(stage) + threadIdx.x / group_k * box_bytes_k;
        std::uint32_t const right = memory.scaled(step);
        fence_sums(sums[0]);
        products_begin();
#pragma unroll
        for (unsigned depth = 0; depth != box_k / hopper::depth_k; ++depth)
            multiply_add<Major::MN, Major::MN>(sums[0], by_rows(left + depth * depth_step_k<Major::MN>),
                                               by_rows(right + depth * depth_step_k<Major::MN>), true);
        products_commit();
        fence_sums(sums[0]);
        if (step + ahead < steps)
            load(loaded);
        copies_commit();
        stage = stage + 1 == stages ? 0 : stage + 1;
        loaded = loaded + 1 == stages ? 0 : loaded + 1;
        copies_wait<ahead - 1>();
        if (step + 1 != steps)
            values.scale(memory.values(stage), memory.scaled(step + 1));
        products_wait<0>();
    }
    fence_sums(sums[0]);
    copies_wait<0>();
    store<tile>(sums, parts + std::size_t(blockIdx.z) * patches.hidden * patches.width, patches.width,
                blockIdx.y * tile::rows_k, patches.hidden, blockIdx.x * tile::columns_k, patches.width);
}

dim3 tiles_of(uform_patches_t const& patches) {
    return {ceil_divide(patches.width, tile::columns_k), ceil_divide(patches.hidden, tile::rows_k), 1};
}

} // namespace

unsigned value_splits(stream const& stream, uform_patches_t const& patches, unsigned most) noexcept {
    dim3 const tiles = tiles_of(patches);
    return std::clamp(static_cast<unsigned>(stream.multiprocessors) / (tiles.x * tiles.y), 1u, most);
}

void multiply_values(stream const& stream, uform_patches_t const& patches, row_shares const& shares,
                     std::uint32_t const* places, float* parts) {
    dim3 grid = tiles_of(patches);
    grid.z = shares.splits;
    auto const start = [&](auto element) {
        using element_t = decltype(element);
        launch_early(stream, multiply<element_t>, grid, tile::threads_k, steps_memory<element_t>::bytes_k, patches,
                     shares, places, parts);
    };
    if (patches.element == uform_element_uint8_k)
        start(std::uint8_t{});
    else
        start(std::int16_t{});
}

} // namespace uform::vram::sm90
