// How Stream-K shares the sums of a weight's gradient: every step once, in memory that is there, where it is faster.
#include <algorithm>
#include <vector>

#include "tests/native/check.h"
#include "vram/gemm_stream_k.h"

using namespace uform::vram;

namespace {

constexpr std::uint32_t widths_k[] = {8, 64, 200, 512, 768, 1408, 2816, 5632};
constexpr std::uint32_t rows_k[] = {1, 2, 255, 256, 257, 1000, 4099, 32768, 65536, 65537};

/** Every step of every tile's sum is in one unit; a tile's parts are counted in the order of its steps. */
void check_units(stream_k_plan const& plan) {
    struct part {
        std::uint32_t begin, end, parts;
    };
    std::uint32_t const tiles = plan.tiles_down * plan.tiles_across;
    std::vector<std::vector<part>> of_tile(tiles);
    std::uint32_t const pairs = plan.levels[0].pairs, steps = plan.levels[0].depth;
    for (std::uint32_t pair = 0; pair != pairs; ++pair)
        for (std::uint32_t turn = 0;; ++turn) {
            stream_k_unit const unit = stream_k_unit_of(plan, pair, turn);
            if (!unit.exists())
                break;
            CHECK(unit.tile < tiles && unit.part < unit.parts && unit.end <= steps);
            CHECK(unit.parts == 1 || (unit.tile >= plan.levels[0].rounds * pairs && unit.parts <= plan.most_parts()));
            std::vector<part>& parts = of_tile[unit.tile];
            parts.resize(std::max<std::size_t>(parts.size(), unit.part + 1));
            CHECK(parts[unit.part].parts == 0);
            parts[unit.part] = {unit.begin, unit.end, unit.parts};
        }
    for (std::vector<part> const& parts : of_tile) {
        std::uint32_t done = 0;
        for (part const& one : parts) {
            CHECK(one.begin == done && one.parts == parts.size());
            done = one.end;
        }
        CHECK(done == steps);
    }
}

void test_every_step_once() {
    constexpr int processors[] = {1, 2, 78, 114, 131, 132, 144};
    for (std::uint32_t outs : widths_k)
        for (std::uint32_t ins : widths_k)
            for (std::uint32_t rows : rows_k)
                for (int own : processors)
                    check_units(stream_k_of(rows, outs, ins, own));
}

/** At the encoder's shapes no pair has much more to do than its share of all steps. */
void test_pairs_are_busy() {
    struct shape {
        std::uint32_t rows, outs, ins;
    };
    for (shape const& one : {shape{65536, 2304, 768}, shape{65536, 4096, 768}, shape{65536, 768, 2048},
                             shape{32768, 3072, 1024}, shape{32768, 5632, 1024}, shape{32768, 1024, 2816}}) {
        stream_k_plan const plan = stream_k_of(one.rows, one.outs, one.ins, 132);
        std::uint32_t const pairs = plan.levels[0].pairs, tiles = plan.tiles_down * plan.tiles_across;
        for (std::uint32_t pair = 0; pair != pairs; ++pair) {
            std::uint64_t steps = 0;
            for (std::uint32_t turn = 0; stream_k_unit_of(plan, pair, turn).exists(); ++turn) {
                stream_k_unit const unit = stream_k_unit_of(plan, pair, turn);
                steps += unit.end - unit.begin;
            }
            CHECK(50 * steps * pairs <= 51 * std::uint64_t(tiles) * plan.levels[0].depth);
        }
    }
}

/** The longest sums are not behind each other on few processors, and the memory is that of slices. */
void test_stream_k_is_chosen() {
    auto const chosen = [](std::uint32_t rows, std::uint32_t outs, std::uint32_t ins) {
        stream_k_plan const plan = stream_k_of(rows, outs, ins, 132);
        bool const faster = is_stream_k_faster(plan, rows, outs, ins, 132);
        CHECK(!faster || stream_k_bytes(plan) <= std::uint64_t(most_slices(rows, outs, ins)) * outs * ins * 4);
        return faster;
    };
    for (std::uint32_t outs : widths_k)
        for (std::uint32_t ins : widths_k)
            for (std::uint32_t rows : rows_k)
                chosen(rows, outs, ins);
    CHECK(chosen(65536, 2304, 768) && chosen(65536, 4096, 768) && chosen(65536, 768, 2048));
    CHECK(chosen(32768, 3072, 1024) && chosen(32768, 5632, 1024) && chosen(32768, 1024, 2816));
    CHECK(!chosen(65536, 1536, 512) && !chosen(65536, 512, 512) && !chosen(65536, 768, 768));
}

} // namespace

int main() {
    test_every_step_once();
    test_pairs_are_busy();
    test_stream_k_is_chosen();
    return native_test::report();
}
