// Texts and images on the host: what is derived, refused, measured, filled and covered; and what their operations get.
#include "plugins/modalities/image/image.h"
#include "plugins/modalities/text/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/native/modality_fixture.h"

using namespace native_test;

namespace {

/* ---------------------------------------------------------------------------------------------------- texts */

uform_content_t text_of(std::string const& text) {
    uform_content_t content{};
    content.data = text.data();
    content.bytes = text.size();
    return content;
}

std::vector<uint16_t> codes_of(std::string const& text) {
    std::vector<uint16_t> codes{256};
    for (char byte : text)
        codes.push_back(static_cast<uint8_t>(byte));
    return codes;
}

void test_text_declares() {
    for (bool training : {true, false}) {
        modality texts(uform::text_plugin, nullptr, 1024, 4096, training);
        CHECK(texts.host().parameters.size() == 1);
        uform_parameter_request_t const& table = texts.host().parameters[0];
        CHECK(std::string(table.name) == "table" && table.rows == 260 && table.columns == hidden_k);
        CHECK(table.kind == uform_parameter_kind_embedding_k && table.deviation == 0.02);
        CHECK(texts.host().staging == (training ? 4096u : 0u));
    }
}

void test_TXT_07_any_cap() {
    std::string const text = "a\xC3\xB1\xE6\xBC\xA2\xF0\x9F\x98\x80"; // 1 + 2 + 3 + 4 bytes
    for (uint32_t limit = 0; limit != 12; ++limit) {
        modality texts(uform::text_plugin, nullptr, limit + 1, 64);
        auto const item = texts.add(text_of(text), limit);
        uint32_t const kept = std::min<uint32_t>(limit, 10);
        CHECK(item.measure.columns == kept && item.measure.truncated == (limit < 10));
        CHECK(item.measure.axes == 1 && item.measure.extents[0] == kept && item.measure.whole[0] == kept);
        std::vector<uint16_t> const expected = codes_of(text.substr(0, kept));
        CHECK(std::equal(expected.begin(), expected.end(), texts.codes().begin()));
        CHECK(texts.codes()[1 + kept] == 0xEEEE);
    }
}

void test_text_of_any_bytes() {
    modality texts(uform::text_plugin, nullptr, 1024, 4096);
    std::string every;
    for (int byte = 0; byte != 256; ++byte)
        every.push_back(static_cast<char>(byte));
    std::vector<uint16_t> expected;
    for (std::string const& text : {std::string("a\0b", 3), std::string("a"), std::string("a\0", 2), std::string(),
                                    every, std::string(1023, '\xFF')}) {
        texts.add(text_of(text), 1023);
        for (uint16_t code : codes_of(text))
            expected.push_back(code);
    }
    CHECK(texts.used() == expected.size());
    CHECK(std::equal(expected.begin(), expected.end(), texts.codes().begin()));
}

void test_text_refuses() {
    modality texts(uform::text_plugin, nullptr, 16, 64);
    uform_measure_t measured;
    uform_content_t content{};
    content.rank = 2;
    CHECK(texts.measure(content, 15, measured) == "a text is a string or a row of bytes, not an array of 2 extents");
    content.rank = 0;
    CHECK(texts.measure(content, 15, measured).empty()); // no bytes need no data
    content.bytes = 3;
    CHECK(texts.measure(content, 15, measured) == "its 3 bytes are a null pointer");
}

void test_text_covers() {
    modality texts(uform::text_plugin, nullptr, 64, 128);
    auto const first = texts.add(text_of("some bytes"), 63), second = texts.add(text_of("xyz"), 63);
    uint8_t const mask = uform_cover_action_mask_k, random = uform_cover_action_random_k,
                  stay = uform_cover_action_stay_k;
    texts.cover(first, {0, 4, 9}, {mask, random, stay}, {7, 200, 9});
    texts.cover(second, {}, {}, {});
    texts.cover(second, {2}, {mask}, {0});
    std::vector<uint16_t> expected = codes_of("some bytes");
    expected[1] = 257, expected[5] = 200;
    std::vector<uint16_t> const rest{256, 'x', 'y', 257};
    expected.insert(expected.end(), rest.begin(), rest.end());
    CHECK(std::equal(expected.begin(), expected.end(), texts.codes().begin()));
    CHECK(std::string(texts.staging(), texts.staging() + 4) == "s sz");
    CHECK(texts.staging()[4] == 0xEE);
}

/* ---------------------------------------------------------------------------------------------------- images */

/** An array of pixels with the strides wanted, in memory that holds nothing else. */
struct pixels {
    enum layout { plain, padded, turned, mirrored };

    std::vector<uint8_t> memory;
    uform_content_t content{};

    pixels(uint32_t height, uint32_t width, uint32_t channels, layout layout, unsigned seed, bool has_channels = true) {
        int64_t const h = height, w = width, c = channels;
        content.rank = has_channels ? 3 : 2;
        content.element = uform_element_uint8_k;
        content.bytes = uint64_t(height) * width * channels;
        content.extents[0] = height, content.extents[1] = width, content.extents[2] = channels;
        std::array<int64_t, 3> strides{w * c, c, 1};
        if (layout == padded)
            strides = {(w * (c + 1)) + 3, c + 1, 1};
        if (layout == turned)
            strides = {1, h, h * w};
        if (layout == mirrored)
            strides = {-w * c, -c, -1};
        int64_t first = 0, last = 0;
        int64_t const extents[3] = {h, w, c};
        for (int axis = 0; axis != 3; ++axis) {
            content.strides[axis] = strides[static_cast<size_t>(axis)];
            (content.strides[axis] < 0 ? first : last) += content.strides[axis] * (extents[axis] - 1);
        }
        memory.resize(static_cast<size_t>(last - first + 1));
        std::mt19937 generator(seed);
        for (uint8_t& byte : memory)
            byte = static_cast<uint8_t>(generator());
        content.data = memory.data() - first;
    }

    uint32_t at(uint64_t y, uint64_t x, uint32_t channel) const {
        int64_t const offset = int64_t(y) * content.strides[0] + int64_t(x) * content.strides[1] +
                               (content.rank == 3 ? int64_t(channel) * content.strides[2] : 0);
        return static_cast<uint8_t const*>(content.data)[offset];
    }

    /** The value of a pixel for a run of `to` channels. */
    uint32_t converted(uint64_t y, uint64_t x, uint32_t channel, uint32_t to) const {
        uint32_t const channels = content.rank == 3 ? static_cast<uint32_t>(content.extents[2]) : 1;
        bool const has_alpha = channels == 2 || channels == 4, is_grey = channels < 3;
        uint32_t const alpha = has_alpha ? at(y, x, channels - 1) : 255;
        auto const colour = [&](uint32_t c) -> uint32_t {
            uint32_t const value = at(y, x, is_grey ? 0 : c);
            return to == 4 ? value : static_cast<uint32_t>(std::lround((value * alpha + 255. * (255 - alpha)) / 255));
        };
        if (to == 4 && channel == 3)
            return alpha;
        if (to > 1)
            return colour(channel);
        return static_cast<uint32_t>(std::lround((colour(0) + colour(1) + colour(2)) / 3.));
    }
};

/** The scaled pixel, as the mean of as many samples a side as the picture has pixels there. */
uint32_t scaled(pixels const& from, uint64_t y, uint64_t x, uint64_t height, uint64_t width, uint32_t channel,
                uint32_t to) {
    uint64_t const whole_height = from.content.extents[0], whole_width = from.content.extents[1];
    uint64_t sum = 0;
    for (uint64_t a = 0; a != whole_height; ++a)
        for (uint64_t b = 0; b != whole_width; ++b)
            sum += from.converted((y * whole_height + a) / height, (x * whole_width + b) / width, channel, to);
    return static_cast<uint32_t>((2 * sum + whole_height * whole_width) / (2 * whole_height * whole_width));
}

struct shape {
    uint32_t height, width;
};

uint64_t patches_of(uint64_t height, uint64_t width, uint64_t side) {
    return ((height + side - 1) / side) * ((width + side - 1) / side);
}

/** The largest size that keeps the aspect, found by trying every one. */
shape best_fit(uint64_t height, uint64_t width, uint64_t side, uint64_t limit) {
    for (uint64_t longer = std::max(height, width);; --longer) {
        double const other = double(std::min(height, width)) * double(longer) / double(std::max(height, width));
        uint64_t const shorter = std::max<uint64_t>(1, static_cast<uint64_t>(std::floor(other + 0.5)));
        uint64_t const rows = height < width ? shorter : longer, columns = height < width ? longer : shorter;
        if (patches_of(rows, columns, side) <= limit)
            return {static_cast<uint32_t>(rows), static_cast<uint32_t>(columns)};
    }
}

void check_patches(pixels const& from, uint32_t side, uint32_t channels, uint32_t limit) {
    uform_image_shape_t config{static_cast<int32_t>(side), static_cast<int32_t>(channels)};
    uint32_t const height = static_cast<uint32_t>(from.content.extents[0]);
    uint32_t const width = static_cast<uint32_t>(from.content.extents[1]);
    shape const fitted = best_fit(height, width, side, limit);
    uint32_t const rows = (fitted.height + side - 1) / side, columns = (fitted.width + side - 1) / side;
    uint32_t const patches = rows * columns, values = side * side * channels, capacity = 2 * patches + 2;
    modality images(uform::image_plugin, &config, limit + 1, capacity);
    images.add(from.content, limit);
    auto const item = images.add(from.content, limit);
    images.finish();

    uform_measure_t const& measured = item.measure;
    CHECK(measured.columns == patches && measured.axes == 2);
    CHECK(measured.extents[0] == rows && measured.extents[1] == columns);
    CHECK(measured.whole[0] == fitted.height / side && measured.whole[1] == fitted.width / side);
    CHECK(measured.truncated == (fitted.height != height || fitted.width != width));

    CHECK(*images.staged<uint32_t>({}) == 2 * patches);
    uint8_t const* const staged = images.staged<uint8_t>({4});
    size_t const values_bytes = size_t(capacity) * values;
    bool same = true;
    for (uint32_t patch = 0; patch != patches; ++patch)
        for (uint32_t value = 0; value != values; ++value) {
            uint32_t const channel = value % channels, x = value / channels % side, y = value / channels / side;
            uint32_t const row = std::min(patch / columns * side + y, fitted.height - 1);
            uint32_t const column = std::min(patch % columns * side + x, fitted.width - 1);
            uint32_t const expected = scaled(from, row, column, fitted.height, fitted.width, channel, channels);
            same = same && staged[size_t(patch) * values + value] == expected &&
                   staged[size_t(patches + patch) * values + value] == expected;
        }
    CHECK(same);
    CHECK(staged[size_t(2 * patches) * values] == 0xEE); // nothing past the two

    uint32_t const* const places = images.staged<uint32_t>({4, values_bytes});
    bool placed = images.codes()[0] == 0 && images.codes()[1 + patches] == 0;
    for (uint32_t patch = 0; patch != 2 * patches; ++patch)
        placed = placed && places[patch] == 1 + patch + (patch >= patches) &&
                 images.codes()[places[patch]] == UFORM_CODE_VALUES;
    CHECK(placed);
}

void test_patches_of_every_kind() {
    unsigned seed = 1;
    for (uint32_t from = 1; from <= 4; ++from)
        for (uint32_t to : {1u, 3u, 4u})
            for (auto layout : {pixels::plain, pixels::padded, pixels::turned, pixels::mirrored})
                for (uint32_t limit : {1u, 5u, 60u})
                    check_patches(pixels(11, 14, from, layout, seed++), 3, to, limit);
    for (uint32_t to : {1u, 3u, 4u})
        check_patches(pixels(5, 7, 1, pixels::turned, seed++, false), 4, to, 100);
}

void test_IMG_13_thin_pictures() {
    unsigned seed = 100;
    for (auto [height, width] : {shape{1, 1}, {7, 1}, {1, 7}, {3, 1}, {1, 3}, {16, 16}, {17, 31}, {1, 97}, {64, 2}})
        for (uint32_t side : {1u, 4u, 16u})
            for (uint32_t limit : {1u, 3u, 1000u})
                check_patches(pixels(height, width, 3, pixels::plain, seed++), side, 3, limit);
}

/** More source pixels under one patch than are summed at a time. */
void test_long_pictures() {
    for (uint32_t channels : {1u, 3u}) {
        check_patches(pixels(2, 1500, channels, pixels::plain, 200 + channels), 4, 3, 2);
        check_patches(pixels(1500, 2, channels, pixels::turned, 300 + channels), 4, 3, 2);
    }
}

void test_large_pictures_fit() {
    uform_image_shape_t config{16, 3};
    modality images(uform::image_plugin, &config, 1024, 1024);
    uint8_t const pixel = 77;
    std::mt19937 generator(5);
    for (int trial = 0; trial != 300; ++trial) {
        uint32_t const height = 1 + generator() % (trial % 3 ? 4000 : 20), width = 1 + generator() % 3000;
        uint32_t const limit = 1 + generator() % (trial % 2 ? 1023 : 9);
        uform_content_t content{};
        content.data = &pixel, content.rank = 2;
        content.extents[0] = height, content.extents[1] = width;
        uform_measure_t measured;
        CHECK(images.measure(content, limit, measured).empty());
        shape const expected = best_fit(height, width, 16, limit);
        CHECK(measured.columns == patches_of(expected.height, expected.width, 16) && measured.columns <= limit);
        CHECK(measured.extents[0] == (expected.height + 15) / 16 && measured.extents[1] == (expected.width + 15) / 16);
    }
}

/** One colour stays that colour, however large the picture: the sums are exact. */
void test_the_largest_sums() {
    uform_image_shape_t config{2, 1};
    for (auto [height, width] : {shape{1, 1u << 24}, {1u << 24, 1}, {3000, 2000}}) {
        modality images(uform::image_plugin, &config, 8, 16);
        uint8_t const pixel = 255;
        uform_content_t content{};
        content.data = &pixel, content.rank = 2;
        content.extents[0] = height, content.extents[1] = width;
        auto const item = images.add(content, 7);
        uint8_t const* const values = images.staged<uint8_t>({4});
        CHECK(std::all_of(values, values + item.measure.columns * 4, [](uint8_t value) { return value == 255; }));
    }
}

void test_image_covers() {
    uform_image_shape_t config{2, 3};
    modality images(uform::image_plugin, &config, 64, 128);
    pixels const small(3, 5, 3, pixels::plain, 1), large(8, 8, 3, pixels::plain, 2);
    auto const first = images.add(small.content, 63), second = images.add(large.content, 63);
    CHECK(first.measure.columns == 6 && second.measure.columns == 16);
    std::vector<uint8_t> const mask(3, uform_cover_action_mask_k);
    images.cover(first, {1}, mask, {0});
    images.cover(second, {0, 7, 15}, mask, {0, 0, 0});
    images.finish();
    std::vector<uint32_t> const expected{1, 6, 13, 21};
    uint32_t const* const covered = images.staged<uint32_t>({4, 128 * 12, 128 * 4});
    CHECK(std::equal(expected.begin(), expected.end(), covered));
    for (uint32_t column = 0; column != images.used(); ++column) {
        bool const is_marker = column == 0 || column == 7;
        bool const is_covered = column == 2 || column == 8 || column == 15 || column == 23;
        CHECK(images.codes()[column] == (is_marker ? 0 : is_covered ? 1 : UFORM_CODE_VALUES));
    }
}

void test_image_derives() {
    uform_run_t const run = run_of(1024, 4096);
    auto const derive = [&](uform_image_shape_t& config, uint32_t& enabled, uform_run_t const& of) {
        uform_host_t host;
        uform_declare_t const declare = declare_of(host);
        uform_status_t const status = uform::image_plugin.derive(&config, &of, &declare, &enabled);
        CHECK((status == uform_status_success_k) == host.message.empty());
        CHECK(status == uform_status_success_k || status == uform_status_invalid_argument_k);
        return host.message;
    };
    uint32_t enabled = 7;
    uform_image_shape_t config{0, 3};
    CHECK(derive(config, enabled, run).empty() && enabled == 0);
    for (int32_t channels : {0, 1, 3, 4}) {
        config = {16, channels};
        CHECK(derive(config, enabled, run).empty() && enabled == 1);
        CHECK(config.channels == (channels ? channels : 3));
    }
    for (int32_t side : {-1, 257, INT32_MIN, INT32_MAX}) {
        config = {side, 3};
        CHECK(derive(config, enabled, run).starts_with("ImageShape.patch_side is " + std::to_string(side) + ": "));
    }
    for (int32_t channels : {-1, 2, 5}) {
        config = {16, channels};
        CHECK(derive(config, enabled, run).starts_with("ImageShape.channels is " + std::to_string(channels) + ": "));
    }
    config = {16, 3};
    CHECK(derive(config, enabled, run_of(1, 64)).starts_with("BatchShape.max_columns_per_row is 1: "));
}

void test_image_declares() {
    for (bool training : {true, false}) {
        uform_image_shape_t config{16, 0};
        modality images(uform::image_plugin, &config, 64, 128, training);
        std::map<std::string, std::array<uint32_t, 3>> found;
        for (uform_parameter_request_t const& one : images.host().parameters)
            found[one.name] = {one.rows, one.columns, one.kind}, CHECK(one.deviation == 0.02);
        std::map<std::string, std::array<uint32_t, 3>> expected{
            {"table", {2, hidden_k, uform_parameter_kind_embedding_k}},
            {"patch", {hidden_k, 768, uform_parameter_kind_matrix_k}}};
        if (training)
            expected["head"] = {768, hidden_k, uform_parameter_kind_matrix_k};
        CHECK(found == expected);
    }
}

void test_image_refuses() {
    uform_image_shape_t config{16, 3};
    modality images(uform::image_plugin, &config, 64, 128);
    pixels const good(4, 5, 3, pixels::plain, 1);
    uform_measure_t measured;
    auto const refusal = [&](auto&& spoil) {
        uform_content_t content = good.content;
        spoil(content);
        return images.measure(content, 63, measured);
    };
    CHECK(refusal([](uform_content_t&) {}).empty());
    CHECK(refusal([](uform_content_t& content) { content.rank = 0; }).starts_with("it is still encoded: decode it"));
    CHECK(refusal([](uform_content_t& content) { content.rank = 1; }).ends_with("not 1 of them"));
    CHECK(refusal([](uform_content_t& content) { content.rank = 4; }).ends_with("not 4 of them"));
    CHECK(refusal([](uform_content_t& content) { content.element = uform_element_float32_k; }).find("uint8") !=
          std::string::npos);
    CHECK(refusal([](uform_content_t& content) { content.extents[0] = 0; }).find("0 x 5") != std::string::npos);
    CHECK(refusal([](uform_content_t& content) { content.extents[1] = 0; }).find("4 x 0") != std::string::npos);
    CHECK(refusal([](uform_content_t& content) { content.extents[2] = 0; }).ends_with("not 0"));
    CHECK(refusal([](uform_content_t& content) { content.extents[2] = 5; }).ends_with("not 5"));
    CHECK(refusal([](uform_content_t& content) { content.extents[1] = UINT64_MAX; }).find("too large") !=
          std::string::npos);
    CHECK(refusal([](uform_content_t& content) {
              content.extents[0] = content.extents[1] = 1 << 16;
          }).find("too large") != std::string::npos);
    CHECK(refusal([](uform_content_t& content) { content.data = nullptr; }).find("null") != std::string::npos);
}

/* ---------------------------------------------------------------------------------------------------- on a device */

/** States by the formulas, and that what they send back adds up. */
void check_embedding(pass_fixture& fixture, std::vector<double> const& values, size_t width) {
    uform_modality_plugin_t const& plugin = fixture.of.plugin();
    CHECK(plugin.embed_forward(fixture.of.self(), &fixture.pass) == uform_status_success_k);
    CHECK(plugin.embed_backward(fixture.of.self(), &fixture.pass) == uform_status_success_k);
    std::vector<double> states(fixture.columns.used() * hidden_k, 0.), table(fixture.gradients[0].size(), 0.);
    std::vector<double> patch(hidden_k * width, 0.);
    size_t shown = 0;
    for (size_t column = 0; column != fixture.columns.used(); ++column) {
        uint16_t const code = fixture.columns.codes[column];
        bool const is_content = code == UFORM_CODE_VALUES || code == 1;
        for (size_t i = 0; i != hidden_k; ++i) {
            double const gradient = fixture.states_gradient[column * hidden_k + i];
            double& state = states[column * hidden_k + i];
            if (code != UFORM_CODE_VALUES) {
                state = fixture.parameters[0][code * hidden_k + i];
                table[code * hidden_k + i] += gradient;
                continue;
            }
            for (size_t k = 0; k != width; ++k) {
                state += double(fixture.parameters[1][i * width + k]) * values[shown * width + k];
                patch[i * width + k] += gradient * values[shown * width + k];
            }
        }
        shown += width && is_content;
    }
    std::vector<float> const written(fixture.states.begin(), fixture.states.begin() + std::ptrdiff_t(states.size()));
    CHECK(relative_error(written, states) < 1e-6);
    CHECK(all_poison({fixture.states.data() + states.size(), fixture.states.size() - states.size()}));
    CHECK(relative_error(fixture.gradients[0], table) < 1e-6);
    if (width)
        CHECK(relative_error(fixture.gradients[1], patch) < 1e-6);
}

void test_text_on_a_device() {
    on_every_device([](ram_device const& device) {
        modality texts(uform::text_plugin, nullptr, 64, 128);
        auto const item = texts.add(text_of("embedded"), 63);
        texts.add(text_of(""), 63);
        std::vector<uint32_t> const places{1, 2, 5};
        texts.cover(item, places, {0, 0, 1}, {0, 0, 99});
        pass_fixture fixture(device, texts, {{9, 1, {8, 0, 0}, 9, 0, 0}, {1, 1, {0, 0, 0}, 1, 1, 0}});
        check_embedding(fixture, {}, 0);

        covered_rows covered(3);
        CHECK(texts.plugin().reconstruct(texts.self(), &fixture.pass, &covered.taken) == uform_status_success_k);
        double expected = 0;
        for (size_t row = 0; row != 3; ++row) {
            double sum = 0;
            for (size_t byte = 0; byte != 256; ++byte)
                sum += std::exp(covered.dot(fixture.parameters[0], byte, row));
            expected += std::log(sum) - covered.dot(fixture.parameters[0], size_t("mbd"[row]), row);
        }
        CHECK(std::abs(covered.term - (1 + 0.25 * expected)) < 1e-4);
        CHECK(covered.wrote_its_own_gradient());
    });
}

void test_image_on_a_device() {
    on_every_device([](ram_device const& device) {
        uform_image_shape_t config{3, 3};
        modality images(uform::image_plugin, &config, 64, 128);
        pixels const wide(6, 9, 3, pixels::plain, 1), tall(5, 2, 3, pixels::plain, 2);
        auto const first = images.add(wide.content, 63), second = images.add(tall.content, 63);
        images.cover(first, {1, 4}, {0, 0}, {0, 0});
        images.cover(second, {0}, {0}, {0});
        images.finish();
        constexpr size_t width = 27, patches = 8;
        std::vector<double> values;
        for (size_t value = 0; value != patches * width; ++value)
            values.push_back(images.staged<uint8_t>({4})[value] / 127.5 - 1);
        pass_fixture fixture(device, images, {{7, 2, {2, 3, 0}, 7, 0, 1}, {3, 2, {2, 1, 0}, 3, 1, 1}});
        check_embedding(fixture, values, width);

        covered_rows covered(3);
        CHECK(images.plugin().reconstruct(images.self(), &fixture.pass, &covered.taken) == uform_status_success_k);
        double expected = 0;
        size_t const shown[3] = {1, 4, 6};
        for (size_t row = 0; row != 3; ++row) {
            double const* const patch = values.data() + shown[row] * width;
            double mean = 0, variance = 0, squares = 0;
            for (size_t k = 0; k != width; ++k)
                mean += patch[k] / width;
            for (size_t k = 0; k != width; ++k)
                variance += (patch[k] - mean) * (patch[k] - mean) / width;
            for (size_t k = 0; k != width; ++k) {
                double const error =
                    covered.dot(fixture.parameters[2], k, row) - (patch[k] - mean) / std::sqrt(variance + 1e-6);
                squares += error * error / width;
            }
            expected += squares;
        }
        CHECK(std::abs(covered.term - (1 + 0.25 * expected)) < 1e-4 * expected);
        CHECK(covered.wrote_its_own_gradient());
        CHECK(all_finite(fixture.gradients[2]));
    });
}

} // namespace

int main() {
    test_text_declares();
    test_TXT_07_any_cap();
    test_text_of_any_bytes();
    test_text_refuses();
    test_text_covers();
    test_patches_of_every_kind();
    test_IMG_13_thin_pictures();
    test_long_pictures();
    test_large_pictures_fit();
    test_the_largest_sums();
    test_image_covers();
    test_image_derives();
    test_image_declares();
    test_image_refuses();
    test_text_on_a_device();
    test_image_on_a_device();
    return report();
}
