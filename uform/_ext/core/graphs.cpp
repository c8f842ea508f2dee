#include "core/graphs.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace uform {

namespace {
uint32_t bucket_step(uint32_t capacity) { return (capacity + step_size::buckets_k - 1) / step_size::buckets_k; }
} // namespace

step_size::step_size(uint32_t columns, uint32_t capacity, uint32_t most, uint32_t row_columns)
    : bucket((columns + bucket_step(capacity) - 1) / bucket_step(capacity)) {
    while (length + 1 != lengths_k && most <= row_columns >> (length + 1))
        ++length;
}

uint32_t step_size::active(uint32_t capacity) const { return std::min(capacity, bucket * bucket_step(capacity)); }

bool graphs_wanted() {
    char const* const set = std::getenv("UFORM_GRAPHS");
    std::string_view const wish = set ? set : "";
    if (wish != "" && wish != "0" && wish != "1")
        fail(uform_status_invalid_argument_k, "UFORM_GRAPHS: 0 or 1, not ", wish);
    return wish != "0";
}

step_graphs::~step_graphs() {
    for (auto const& sizes : graphs_)
        for (graph const& one : sizes)
            if (one.captured)
                operations_.graph_destroy(one.captured);
}

void step_graphs::begin() { check(operations_.capture_begin(stream_)); }

void step_graphs::forget() noexcept { operations_.capture_end(stream_, nullptr); }

bool step_graphs::end(graph& one) {
    if (operations_.capture_end(stream_, &one.captured) != uform_status_success_k)
        return false;
    ++counters_.graphs;
    return true;
}

void step_graphs::launch(graph const& one) {
    check(operations_.graph_launch(stream_, one.captured));
    ++counters_.launches;
}

} // namespace uform
