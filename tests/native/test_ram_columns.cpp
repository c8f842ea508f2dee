// What happens to columns outside the encoder's blocks: expansion, embeddings, patches, pooling, rows.
#include <algorithm>
#include <cmath>

#include "tests/native/ram_device.h"

using namespace native_test;

namespace {

constexpr std::uint16_t text_k = uform_modality_text_k, image_k = uform_modality_image_k;

/** Texts, one of them with columns past its content, pictures, and a film; two items share a bag. */
std::vector<columns_fixture::shape> mixed_shapes() {
    return {{1, 1, {0, 0, 0}, 1, 0, text_k},
            {14, 1, {9, 0, 0}, 10, 1, text_k},
            {13, 2, {3, 4, 0}, 13, 2, image_k},
            {25, 3, {2, 3, 4}, 25, 1, image_k},
            {40, 1, {39, 0, 0}, 40, 3, text_k}};
}

/** A mix large enough for several tasks. */
std::vector<columns_fixture::shape> many_shapes() {
    std::vector<columns_fixture::shape> shapes;
    for (std::uint32_t i = 0; i != 75; ++i)
        shapes.push_back(
            {1 + i % 13, 1, {static_cast<std::uint16_t>(i % 13), 0, 0}, 1 + i % 13, i / 2, i % 3 ? text_k : image_k});
    return shapes;
}

void test_expand() {
    on_every_device([](ram_device const& device) {
        columns_fixture columns(mixed_shapes());
        device.run(device.operations().columns_expand, columns.view);
        bool right = true;
        auto const expect = [&](std::uint32_t column, std::uint32_t segment, int first, int second, int third) {
            std::uint16_t const* const place = columns.positions.data() + column * UFORM_AXES;
            right = right && columns.segment_of[column] == segment && place[0] == first && place[1] == second &&
                    place[2] == third;
        };
        expect(0, 0, 0, 0, 0);
        for (std::uint32_t c = 0; c != 14; ++c)
            expect(1 + c, 1, static_cast<int>(c), 0, 0); // past the content, too
        expect(15, 2, 0, 0, 0);
        for (int y = 0; y != 3; ++y)
            for (int x = 0; x != 4; ++x)
                expect(static_cast<std::uint32_t>(16 + 4 * y + x), 2, y + 1, x + 1, 0);
        expect(28, 3, 0, 0, 0);
        for (int t = 0; t != 2; ++t)
            for (int y = 0; y != 3; ++y)
                for (int x = 0; x != 4; ++x)
                    expect(static_cast<std::uint32_t>(29 + 12 * t + 4 * y + x), 3, t + 1, y + 1, x + 1);
        CHECK(right);
        CHECK(columns.segment_of[columns.used()] == UINT32_MAX);
        CHECK(columns.positions[columns.used() * UFORM_AXES] == 0xABCD);
    });
}

void test_embedding() {
    constexpr std::uint32_t hidden = 67, table_rows = 70;
    same_on_threads(nullptr, [&](ram_device const& device) {
        columns_fixture columns(many_shapes());
        device.run(device.operations().columns_expand, columns.view);
        random_values random(11);
        for (std::uint32_t c = 0; c != columns.used(); ++c)
            columns.codes[c] = c % 7 == 3 ? UFORM_CODE_VALUES : static_cast<std::uint16_t>(random.below(table_rows));
        std::vector<float> const table = random.normal(table_rows * hidden);
        std::vector<float> states(std::size_t(columns.view.capacity) * hidden, poison());
        std::vector<float> const gradient = random.normal(columns.used() * hidden, 1, states.size());
        std::vector<float> table_gradient = random.normal(table_rows * hidden);
        std::vector<double> expected = to_double(table_gradient);
        std::size_t const bytes =
            device.operations().embedding_workspace_bytes(hidden, table_rows, columns.view.capacity);
        poisoned_memory workspace(bytes);
        uform_embedding_t const embedding{
            columns.view,          hidden,        text_k,          table_rows,       table.data(),
            table_gradient.data(), states.data(), gradient.data(), workspace.data(), bytes};
        device.run(device.operations().embedding_forward, embedding);
        device.run(device.operations().embedding_backward, embedding);
        bool right = true;
        for (std::uint32_t c = 0; c != columns.view.capacity; ++c) {
            std::span<float const> const state(states.data() + c * hidden, hidden);
            bool const coded = c < columns.used() && columns.codes[c] != UFORM_CODE_VALUES &&
                               columns.segments[columns.segment_of[c]].modality == text_k;
            if (!coded) {
                right = right && all_poison(state);
                continue;
            }
            right = right && std::equal(state.begin(), state.end(), table.begin() + columns.codes[c] * hidden);
            for (std::size_t i = 0; i != hidden; ++i)
                expected[columns.codes[c] * hidden + i] += double(gradient[c * hidden + i]);
        }
        CHECK(right);
        CHECK(relative_error(table_gradient, expected) < 1e-6);
        return table_gradient;
    });
}

template <typename element_at>
std::vector<float> patches_case(ram_device const& device, uform_element_t element, float multiplier, float offset) {
    constexpr std::uint32_t hidden = 65, width = 27, count = 301, capacity = 310;
    columns_fixture columns({{count + 1, 1, {count, 0, 0}, count + 1, 0, image_k}});
    random_values random(13);
    std::vector<element_at> values(capacity * width);
    for (std::size_t i = 0; i != count * width; ++i)
        values[i] = static_cast<element_at>(random.below(256));
    if constexpr (std::is_same_v<element_at, float>)
        std::fill(values.begin() + count * width, values.end(), poison());
    std::vector<std::uint32_t> patch_columns(capacity, UINT32_MAX);
    columns.codes[0] = 1;
    for (std::uint32_t p = 0; p != count; ++p) {
        patch_columns[p] = count - p;
        columns.codes[1 + p] = p % 5 == 2 ? 3 : UFORM_CODE_VALUES;
    }
    std::vector<float> const weight = random.normal(hidden * width);
    std::vector<float> states(std::size_t(columns.view.capacity) * hidden, poison());
    std::vector<float> const gradient = random.normal(columns.used() * hidden, 1, states.size());
    std::vector<float> weight_gradient = random.normal(hidden * width);
    std::size_t const bytes = device.operations().patches_workspace_bytes(hidden, width, capacity);
    poisoned_memory workspace(bytes);
    uform_patches_t patches{};
    patches.columns = columns.view;
    patches.hidden = hidden, patches.width = width, patches.element = element;
    patches.multiplier = multiplier, patches.offset = offset;
    patches.capacity = capacity, patches.active = count + 4, patches.count = &count;
    patches.values = values.data(), patches.patch_columns = patch_columns.data();
    patches.weight = weight.data(), patches.weight_gradient = weight_gradient.data();
    patches.states = states.data(), patches.gradient = gradient.data();
    patches.workspace = workspace.data(), patches.workspace_bytes = bytes;
    std::vector<double> expected_states, expected = to_double(weight_gradient);
    std::vector<float> written;
    device.run(device.operations().patches_forward, patches);
    device.run(device.operations().patches_backward, patches);
    bool untouched = true;
    for (std::uint32_t p = 0; p != count; ++p) {
        std::size_t const column = patch_columns[p];
        if (columns.codes[column] != UFORM_CODE_VALUES) {
            untouched = untouched && all_poison({states.data() + column * hidden, hidden});
            continue;
        }
        for (std::size_t h = 0; h != hidden; ++h) {
            double sum = 0;
            for (std::size_t i = 0; i != width; ++i) {
                double const value = double(values[p * width + i]) * double(multiplier) + double(offset);
                sum += double(weight[h * width + i]) * value;
                expected[h * width + i] += double(gradient[column * hidden + h]) * value;
            }
            expected_states.push_back(sum);
            written.push_back(states[column * hidden + h]);
        }
    }
    CHECK(untouched);
    CHECK(relative_error(written, expected_states) < 2e-6);
    CHECK(relative_error(weight_gradient, expected) < 2e-6);
    written.insert(written.end(), weight_gradient.begin(), weight_gradient.end());
    return written;
}

void test_patches() {
    for (char const* blas : blas_choices()) {
        same_on_threads(blas, [](ram_device const& device) {
            return patches_case<std::uint8_t>(device, uform_element_uint8_k, 1 / 127.5f, -1);
        });
        same_on_threads(blas, [](ram_device const& device) {
            return patches_case<std::int16_t>(device, uform_element_int16_k, 1 / 256.f, 0);
        });
        same_on_threads(blas, [](ram_device const& device) {
            return patches_case<float>(device, uform_element_float32_k, 0.01f, 0.5f);
        });
    }
}

/** Everything of one pooling that a test looks at. */
struct pooling {
    columns_fixture columns;
    std::uint32_t hidden;
    std::vector<float> states, pooled, lengths, pooled_gradient, gradient;
    std::vector<std::uint32_t> bag_columns;
    std::size_t bytes;
    poisoned_memory workspace;
    uform_pool_t arguments{};

    pooling(std::vector<columns_fixture::shape> const& shapes, std::uint32_t hidden)
        : columns(shapes), hidden(hidden),
          bytes(ram_device::operations().pool_workspace_bytes(hidden, columns.view.bags_capacity)), workspace(bytes) {
        random_values random(17);
        std::size_t const bags = columns.view.bags_capacity;
        states = random.normal(columns.used() * hidden, 1, std::size_t(columns.view.capacity) * hidden);
        pooled.assign(bags * hidden, poison());
        lengths.assign(bags, poison());
        bag_columns.assign(bags, 77);
        pooled_gradient = random.normal(columns.counts[2] * hidden, 1, bags * hidden);
        gradient.assign(states.size(), poison());
        arguments = {columns.view,
                     hidden,
                     states.data(),
                     pooled.data(),
                     lengths.data(),
                     bag_columns.data(),
                     pooled_gradient.data(),
                     gradient.data(),
                     0,
                     workspace.data(),
                     bytes};
    }

    /** Embeddings by a loop, in double. */
    std::vector<double> reference(std::vector<double> const& at) const {
        std::vector<double> result(std::size_t(columns.counts[2]) * hidden, 0.0);
        for (std::uint32_t bag = 0; bag != columns.counts[2]; ++bag) {
            double* const mean = result.data() + std::size_t(bag) * hidden;
            double count = 0, square = 0;
            for (std::uint32_t s = 0; s != columns.counts[1]; ++s) {
                uform_segment_t const& segment = columns.segments[s];
                if (segment.bag != bag)
                    continue;
                count += segment.pooled;
                for (std::uint32_t c = 0; c != segment.pooled; ++c)
                    for (std::size_t i = 0; i != hidden; ++i)
                        mean[i] += at[(segment.first + c) * hidden + i];
            }
            for (std::size_t i = 0; i != hidden; ++i)
                mean[i] /= count, square += mean[i] * mean[i];
            for (std::size_t i = 0; i != hidden; ++i)
                mean[i] /= std::max(std::sqrt(square), 1e-12);
        }
        return result;
    }

    double loss(std::vector<double> const& at) const {
        std::vector<double> const embeddings = reference(at);
        double sum = 0;
        for (std::size_t i = 0; i != embeddings.size(); ++i)
            sum += embeddings[i] * double(pooled_gradient[i]);
        return sum;
    }
};

void test_pool() {
    auto const compute = [](std::vector<columns_fixture::shape> const& shapes, std::uint32_t hidden) {
        return [=](ram_device const& device) {
            pooling pool(shapes, hidden);
            device.run(device.operations().columns_expand, pool.columns.view);
            device.run(device.operations().pool_forward, pool.arguments);
            device.run(device.operations().pool_backward, pool.arguments);
            std::vector<double> const expected = pool.reference(to_double(pool.states));
            CHECK(relative_error(pool.pooled, expected) < 1e-6);
            bool const zero = std::all_of(pool.pooled.begin() + static_cast<std::ptrdiff_t>(expected.size()),
                                          pool.pooled.end(), [](float value) { return value == 0; });
            CHECK(zero);
            CHECK(all_finite({pool.gradient.data(), pool.columns.view.active * pool.hidden}));
            CHECK(all_poison(std::span(pool.gradient).subspan(pool.columns.view.active * pool.hidden)));

            // central differences at some places
            std::vector<double> at = to_double(pool.states);
            random_values random(19);
            double worst = 0;
            for (int probe = 0; probe != 25; ++probe) {
                std::size_t const place = random.below(pool.columns.used() * pool.hidden);
                double const step = 1e-4, kept = at[place];
                at[place] = kept + step;
                double const above = pool.loss(at);
                at[place] = kept - step;
                double const below = pool.loss(at);
                at[place] = kept;
                worst = std::max(worst, std::abs((above - below) / (2 * step) - double(pool.gradient[place])));
            }
            CHECK(worst < 1e-5);

            // adding on top, and columns that are not pooled
            std::vector<float> const first = pool.gradient;
            pool.arguments.accumulate = 1;
            device.run(device.operations().pool_backward, pool.arguments);
            bool doubled = true, zeros = true;
            for (std::size_t i = 0; i != pool.columns.used() * pool.hidden; ++i) {
                uform_segment_t const& segment = pool.columns.segments[pool.columns.segment_of[i / pool.hidden]];
                doubled = doubled && std::abs(pool.gradient[i] - 2 * first[i]) < 1e-6f;
                if (i / pool.hidden - segment.first >= segment.pooled)
                    zeros = zeros && first[i] == 0;
            }
            CHECK(doubled);
            CHECK(zeros);
            return std::vector<float>(first.begin(), first.begin() + pool.columns.used() * pool.hidden);
        };
    };
    same_on_threads(nullptr, compute(mixed_shapes(), 67));
    same_on_threads(nullptr, compute(many_shapes(), 33));
}

void test_NUM_07_zero_bag() {
    on_every_device([](ram_device const& device) {
        pooling pool({{3, 1, {2, 0, 0}, 3, 0, text_k}}, 64);
        std::fill_n(pool.states.begin(), 3 * 64, 0.f);
        device.run(device.operations().columns_expand, pool.columns.view);
        device.run(device.operations().pool_forward, pool.arguments);
        device.run(device.operations().pool_backward, pool.arguments);
        CHECK(pool.pooled[5] == 0 && pool.lengths[0] == 0);
        CHECK(all_finite({pool.gradient.data(), 3 * 64}));
    });
}

void test_rows() {
    constexpr std::uint32_t hidden = 65, columns = 400, active = 410, count = 150, capacity = 160;
    same_on_threads(nullptr, [&](ram_device const& device) {
        random_values random(23);
        std::vector<float> const states = random.normal(columns * hidden, 1, active * hidden);
        std::vector<std::uint32_t> indices(capacity, UINT32_MAX);
        for (std::uint32_t i = 0; i != count; ++i)
            indices[i] = (i * 17) % columns;
        std::vector<float> rows(capacity * hidden, poison()), gradient(active * hidden, poison());
        std::vector<float> const rows_gradient = random.normal(count * hidden, 1, capacity * hidden);
        uform_rows_t arguments{hidden,          capacity,
                               count + 3,       &count,
                               indices.data(),  states.data(),
                               rows.data(),     rows_gradient.data(),
                               gradient.data(), 0,
                               active};
        device.run(device.operations().rows_gather, arguments);
        device.run(device.operations().rows_scatter, arguments);
        arguments.accumulate = 1;
        device.run(device.operations().rows_scatter, arguments);
        std::vector<float> expected(active * hidden, 0.f);
        bool right = true;
        for (std::size_t i = 0; i != count * hidden; ++i) {
            std::size_t const place = indices[i / hidden] * hidden + i % hidden;
            right = right && rows[i] == states[place];
            expected[place] = 2 * rows_gradient[i];
        }
        CHECK(right);
        CHECK(gradient == expected);
        CHECK(all_poison({rows.data() + count * hidden, (capacity - count) * hidden}));
        return gradient;
    });
}

} // namespace

int main() {
    test_expand();
    test_embedding();
    test_patches();
    test_pool();
    test_NUM_07_zero_bag();
    test_rows();
    return report();
}
