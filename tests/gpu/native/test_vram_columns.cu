// Expansion of segments to columns: bit for bit what RAM answers.
#include "tests/gpu/native/gpu_check.h"

using namespace gpu_test;
using namespace uform;

namespace {

std::vector<columns_fixture::shape> mixed_shapes() {
    return {{1, 1, {0, 0, 0}, 1, 0, uform_modality_text_k},
            {14, 1, {9, 0, 0}, 10, 1, uform_modality_text_k},
            {13, 2, {3, 4, 0}, 13, 2, uform_modality_image_k},
            {25, 3, {2, 3, 4}, 25, 1, uform_modality_image_k},
            {1000, 1, {999, 0, 0}, 40, 3, uform_modality_text_k}};
}

void test_expand(char const* name, std::vector<columns_fixture::shape> const& shapes, how mode) {
    columns_fixture host(shapes);
    ram_device const ram(2);
    device_columns columns(host);
    ram.run(ram.operations().columns_expand, host.view);
    once(mode, name, [&] { require(vram::columns_expand(stream(), &columns.view), name); });
    std::vector<std::uint32_t> segment_of = columns.segment_of();
    std::vector<std::uint16_t> positions = columns.positions();
    bool untouched = true;
    for (std::size_t c = host.used(); c != host.view.capacity; ++c)
        untouched = untouched && segment_of[c] == UINT32_MAX && positions[c * UFORM_AXES] == 0xFFFF;
    segment_of.resize(host.used()), host.segment_of.resize(host.used());
    positions.resize(host.used() * UFORM_AXES), host.positions.resize(host.used() * UFORM_AXES);
    check(std::string(name) + " segments", same_bits(segment_of, host.segment_of));
    check(std::string(name) + " positions", same_bits(positions, host.positions));
    check(std::string(name) + " slack", untouched && columns.guarded());
}

void bench() {
    stopwatch watch;
    for (std::uint32_t length : {32u, 256u, 1024u}) {
        columns_fixture const host(equal_segments(65536 / length, length));
        device_columns columns(host);
        watch.bytes("columns_expand segments of " + std::to_string(length), 65536 * 10.0,
                    [&] { require(vram::columns_expand(stream(), &columns.view), "columns_expand"); });
    }
}

void check_all() {
    test_expand("expand mixed", mixed_shapes(), how::direct);
    test_expand("expand odd", odd_segments(), how::captured);
    test_expand("expand many", odd_segments(3000), how::direct);
    test_expand("expand none", {}, how::direct);
}

} // namespace

int main(int count, char** arguments) {
    if (wants_checks(count, arguments))
        check_all();
    if (wants_bench(count, arguments))
        bench();
    return native_test::report();
}
