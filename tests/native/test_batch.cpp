// The host's part of a step: what a caller writes into its buffers once they were checked changes nothing.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "check.h"
#include "core/batch.h"
#include "core/composition.h"
#include "core/settings.h"

namespace {

constexpr uint32_t rows_k = 4, row_columns_k = 64, items_k = 3;

uform::settings make_settings() {
    uform::settings made;
    made.depth = 1;
    made.hidden = 64;
    made.batch.max_columns_per_row = row_columns_k;
    made.batch.max_rows_per_device = rows_k;
    made.batch.max_segments_per_device = made.batch.max_bags_per_device = 8;
    made.modalities.push_back({"text", {}});
    return made;
}

/** One device's batch and its staging. */
struct host_step {
    std::unique_ptr<uform::composition> whole =
        uform::compose(make_settings(), nullptr, uform::ram_operations(), 1, false);
    uform::replica_layout layout = uform::lay_out(*whole);
    uform::thread_pool pool{1};
    uform::batch batch{
        *whole, pool, {1, rows_k, row_columns_k, whole->run.segments_capacity, whole->run.bags_capacity}};
    std::vector<uint8_t> staging = std::vector<uint8_t>(layout.staging_parts.bytes);
    std::vector<uform::staging_view> views{{staging.data(), layout.staging_parts}};

    /** What the chosen items are staged as: each one's codes without its marker. */
    std::vector<std::vector<uint16_t>> stage(uform_items_t const& items, std::vector<uint32_t> const& chosen) {
        batch.plan(items, chosen, nullptr, nullptr, nullptr);
        batch.fill(views);
        batch.finish();
        std::vector<std::vector<uint16_t>> codes;
        for (uform_item_t const& item : batch.items()) {
            uform_segment_t const& segment = views[0].segments[item.segment];
            uint16_t const* const first = views[0].codes + segment.first;
            codes.emplace_back(first + 1, first + segment.columns);
        }
        return codes;
    }
};

/** A call's texts as a tape, whose modalities are given too. */
struct tape_call {
    std::string tape = "abcdef";
    std::vector<uint64_t> offsets = {0, 1, 3, 6};
    std::vector<uint8_t> modalities = std::vector<uint8_t>(items_k, uint8_t(uform_modality_text_k));
    uform_items_t items{};

    tape_call() {
        items.count = items_k;
        items.tape = reinterpret_cast<uint8_t const*>(tape.data());
        items.tape_bytes = tape.size();
        items.tape_offsets = offsets.data();
        items.modalities = modalities.data();
    }

    void spoil() {
        std::fill(offsets.begin(), offsets.end(), ~uint64_t(0) / 2);
        std::fill(modalities.begin(), modalities.end(), uint8_t(200));
    }
};

void test_what_was_checked_is_kept() {
    std::vector<uint32_t> const all = {0, 1, 2};
    host_step expecting, step;
    tape_call const right;
    expecting.batch.measure_all(right.items, nullptr);
    auto const expected = expecting.stage(right.items, all);
    CHECK(expected.size() == items_k && expected[2].size() == 3);

    tape_call changed;
    auto const columns = step.batch.measure_all(changed.items, nullptr);
    CHECK(std::vector<uint32_t>(columns.begin(), columns.end()) == std::vector<uint32_t>{2, 3, 4});
    changed.spoil();
    CHECK(step.stage(changed.items, all) == expected);
}

void test_the_next_call_is_checked_anew() {
    host_step step;
    tape_call call;
    step.batch.measure_all(call.items, nullptr);
    call.spoil();
    std::string message;
    try {
        step.batch.measure_all(call.items, nullptr);
    } catch (uform::error const& failure) {
        message = failure.message;
    }
    CHECK(message.find("is past the tape's 6 bytes") != std::string::npos);
}

} // namespace

int main() {
    test_what_was_checked_is_kept();
    test_the_next_call_is_checked_anew();
    return native_test::report();
}
