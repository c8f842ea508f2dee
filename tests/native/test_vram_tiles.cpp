// How products on a GPU are cut: every row once, memory that suffices for fewer rows, processors that are not left
// idle.
#include <iterator>
#include <utility>

#include "tests/native/check.h"
#include "vram/gemm_tiles.h"

using namespace uform::vram;

namespace {

constexpr std::uint32_t widths_k[] = {8, 64, 200, 512, 768, 1408, 2816, 5632};
constexpr std::uint32_t rows_k[] = {1, 2, 255, 256, 257, 1000, 4099, 32768, 65536, 65537};

void test_every_row_once() {
    for (std::uint32_t outs : widths_k)
        for (std::uint32_t ins : widths_k)
            for (std::uint32_t rows : rows_k) {
                gradient_slices const cut = weight_gradient_slices(rows, outs, ins, 132);
                CHECK(cut.slices >= 1 && cut.slice_rows >= 1);
                CHECK(std::uint64_t(cut.slices) * cut.slice_rows + cut.rest_rows == rows);
                CHECK(cut.rest_rows < cut.slices);
                CHECK(cut.slices <= most_slices(rows, outs, ins));
            }
}

void test_memory_suffices_for_fewer_rows() {
    for (std::uint32_t outs : widths_k)
        for (std::uint32_t ins : widths_k)
            for (std::size_t i = 1; i < std::size(rows_k); ++i)
                CHECK(most_slices(rows_k[i - 1], outs, ins) <= most_slices(rows_k[i], outs, ins));
}

/** At the encoder's real shapes the last wave of tiles leaves at most a sixth of an H200 idle. */
void test_processors_are_busy() {
    constexpr std::uint64_t processors = 132;
    struct shape {
        std::uint32_t columns, hidden, inner;
    };
    for (shape const& one : {shape{65536, 512, 1408}, shape{65536, 768, 2048}, shape{32768, 1024, 2816}})
        for (auto [outs, ins] : {std::pair(3 * one.hidden, one.hidden), std::pair(one.hidden, one.hidden),
                                 std::pair(2 * one.inner, one.hidden), std::pair(one.hidden, one.inner)}) {
            gradient_slices const cut = weight_gradient_slices(one.columns, outs, ins, processors);
            std::uint64_t const tiles = tiles_of(cut.tile, outs, ins) * cut.slices;
            std::uint64_t const waves = (tiles + processors - 1) / processors;
            CHECK(6 * tiles >= 5 * waves * processors);
        }
}

} // namespace

int main() {
    test_every_row_once();
    test_memory_suffices_for_fewer_rows();
    test_processors_are_busy();
    return native_test::report();
}
