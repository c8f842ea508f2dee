// How fast one core turns a tape of texts into packed columns, in gigabytes of text a second.
//
// A step's host work on texts: number the bags, measure every item, pack, then fill a segment and its codes for each.
// The text modality is stood in for by its essence: an item needs a column a byte, and a byte widened to 16 bits is a
// code.
//
//     g++ -std=c++20 -O3 -DNDEBUG -pthread -Iuform/_ext -Iuform/_ext/include uform/_ext/core/pack.cpp
//         uform/_ext/core/error.cpp tools/benchmark_pack.cpp -o build/benchmark_pack    (one line)
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include <uform/plugin.h>

#include "core/pack.h"

namespace {

constexpr std::uint16_t marker_code_k = 256;
constexpr std::uint32_t row_columns_k = 1024;

struct texts_t {
    std::vector<std::uint8_t> tape;
    std::vector<std::uint64_t> offsets;
    std::vector<std::uint32_t> bags;
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

/** One device's staging: what would be uploaded. */
struct staging_t {
    std::vector<std::uint16_t> codes;
    std::vector<uform_segment_t> segments;
};

class text_step {
public:
    explicit text_step(uform::pack_capacities_t const& capacities) : packer_(capacities), staging_(capacities.devices) {
        for (staging_t& staging : staging_) {
            staging.codes.resize(std::size_t(capacities.rows) * capacities.row_columns);
            staging.segments.resize(capacities.segments);
        }
    }

    void run(texts_t const& texts, bool with_bags) {
        std::size_t const items = texts.offsets.size() - 1;
        columns_.resize(items);
        bags_.number(with_bags ? texts.bags.data() : nullptr, items);
        for (std::size_t item = 0; item != items; ++item)
            columns_[item] = 1 + static_cast<std::uint32_t>(std::min<std::uint64_t>(
                                     texts.offsets[item + 1] - texts.offsets[item], row_columns_k - 1));
        packer_.plan(columns_, bags_.bags(), bags_.count());
        for (std::size_t item = 0; item != items; ++item)
            fill(texts, item);
    }

    std::uint64_t dropped() const { return packer_.dropped(); }

private:
    void fill(texts_t const& texts, std::size_t item) {
        uform::packed_item_t const& place = packer_.items()[item];
        if (place.device == uform::dropped_k)
            return;
        staging_t& staging = staging_[place.device];
        std::uint32_t const columns = columns_[item];
        std::uint32_t const bag = bags_.bags().empty() ? static_cast<std::uint32_t>(item) : bags_.bags()[item];
        staging.segments[place.segment] = {place.first,
                                           columns,
                                           columns,
                                           packer_.bags()[bag].place,
                                           0,
                                           1,
                                           {static_cast<std::uint16_t>(columns - 1), 1, 1},
                                           0};
        std::uint16_t* const codes = staging.codes.data() + place.first;
        std::uint8_t const* const bytes = texts.tape.data() + texts.offsets[item];
        codes[0] = marker_code_k;
        for (std::uint32_t byte = 0; byte + 1 < columns; ++byte)
            codes[byte + 1] = bytes[byte];
    }

    uform::packer packer_;
    uform::bag_numbering bags_;
    std::vector<std::uint32_t> columns_;
    std::vector<staging_t> staging_;
};

void measure(char const* name, std::size_t items, std::size_t bytes, std::uint32_t devices, bool even,
             std::size_t items_per_bag) {
    using clock = std::chrono::steady_clock;
    texts_t const texts = make_texts(items, bytes, even, std::max<std::size_t>(items_per_bag, 1));
    auto const rows = static_cast<std::uint32_t>(texts.tape.size() * 3 / 2 / row_columns_k / devices + 1);
    auto const capacity = static_cast<std::uint32_t>(items);
    text_step step({devices, rows, row_columns_k, capacity, capacity});
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
