// How fast one core turns a tape of texts into packed, staged columns, in gigabytes of text a second: the whole host
// work of a step on texts, through the run's own code (bags, measure, pack, fill).
//
// Built and run by tools/benchmark_pack.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "core/batch.h"
#include "core/composition.h"
#include "core/settings.h"

namespace {

constexpr std::uint32_t row_columns_k = 1024;

struct texts_t {
    std::vector<std::uint8_t> tape;
    std::vector<std::uint64_t> offsets;
    std::vector<std::uint32_t> bags;

    std::size_t count() const { return offsets.size() - 1; }
};

texts_t make_texts(std::size_t items, std::size_t bytes, bool even, std::size_t items_per_bag) {
    std::mt19937 random(42);
    texts_t texts;
    texts.offsets.push_back(0);
    for (std::size_t item = 0; item != items; ++item) {
        std::size_t const length = even ? bytes : bytes / 2 + random() % bytes;
        texts.offsets.push_back(texts.offsets.back() + length);
        texts.bags.push_back(static_cast<std::uint32_t>(random() % (items / items_per_bag)) * 2654435761u);
    }
    texts.tape.resize(texts.offsets.back());
    std::generate(texts.tape.begin(), texts.tape.end(), [&] { return static_cast<std::uint8_t>(random()); });
    return texts;
}

uform::settings settings_for(std::size_t items, std::uint32_t rows) {
    uform::settings made;
    made.depth = 1;
    made.hidden = 64;
    made.batch.max_columns_per_row = row_columns_k;
    made.batch.max_rows_per_device = static_cast<std::int32_t>(rows);
    made.batch.max_segments_per_device = made.batch.max_bags_per_device = static_cast<std::int32_t>(items);
    made.modalities.push_back({"text", {}});
    return made;
}

/** The host's part of a step for texts, on one thread. */
class text_step {
public:
    text_step(std::size_t items, std::uint32_t devices, std::uint32_t rows)
        : whole_(uform::compose(settings_for(items, rows), nullptr, uform::ram_operations(), devices, false)),
          layout_(uform::lay_out(*whole_)), pool_(1),
          batch_(*whole_, pool_,
                 {devices, rows, row_columns_k, whole_->run.segments_capacity, whole_->run.bags_capacity}) {
        for (std::uint32_t device = 0; device != devices; ++device) {
            staging_.emplace_back(layout_.staging_parts.bytes);
            views_.emplace_back(staging_.back().data(), layout_.staging_parts);
        }
    }

    void run(texts_t const& texts, bool with_bags) {
        uform_items_t items{};
        items.count = texts.count();
        items.tape = texts.tape.data();
        items.tape_offsets = texts.offsets.data();
        items.tape_bytes = texts.tape.size();
        batch_.plan(items, {}, with_bags ? texts.bags.data() : nullptr, nullptr, nullptr);
        batch_.fill(views_);
        batch_.finish();
    }

    std::uint64_t dropped() const { return batch_.dropped(); }

private:
    std::unique_ptr<uform::composition> whole_;
    uform::replica_layout layout_;
    uform::thread_pool pool_;
    uform::batch batch_;
    std::vector<std::vector<std::uint8_t>> staging_;
    std::vector<uform::staging_view> views_;
};

void measure(char const* name, std::size_t items, std::size_t bytes, std::uint32_t devices, bool even,
             std::size_t items_per_bag) {
    using clock = std::chrono::steady_clock;
    texts_t const texts = make_texts(items, bytes, even, std::max<std::size_t>(items_per_bag, 1));
    auto const rows = static_cast<std::uint32_t>(texts.tape.size() * 3 / 2 / row_columns_k / devices + 1);
    text_step step(items, devices, rows);
    step.run(texts, items_per_bag);
    std::vector<double> seconds(31);
    for (double& spent : seconds) {
        auto const start = clock::now();
        step.run(texts, items_per_bag);
        spent = std::chrono::duration<double>(clock::now() - start).count();
    }
    std::sort(seconds.begin(), seconds.end());
    double const median = seconds[seconds.size() / 2];
    std::printf("%-44s %8.2f GB/s %8.0f ns an item, %llu dropped\n", name,
                static_cast<double>(texts.tape.size()) / median * 1e-9, median / static_cast<double>(items) * 1e9,
                static_cast<unsigned long long>(step.dropped()));
}

} // namespace

int main() {
    measure("256 bytes, each its own bag, 1 device", 4096, 256, 1, true, 0);
    measure("256 bytes, each its own bag, 8 devices", 4096, 256, 8, true, 0);
    measure("256 bytes, two a bag, 1 device", 4096, 256, 1, true, 2);
    measure("256 bytes, two a bag, 8 devices", 4096, 256, 8, true, 2);
    measure("128 to 383 bytes, each its own bag, 1 device", 4096, 256, 1, false, 0);
    measure("128 to 383 bytes, four a bag, 8 devices", 4096, 256, 8, false, 4);
    measure("256 bytes, each its own bag, past the caches", 262144, 256, 1, true, 0);
    measure("32 bytes, each its own bag, 1 device", 32768, 32, 1, true, 0);
    return EXIT_SUCCESS;
}
