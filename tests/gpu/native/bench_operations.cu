/**
 *  Every operation of the table at the shapes of a training step: its time, the bytes it must move and the operations
 *  its products must make, each operand counted once; first the GPU's own ceilings. Beside one without products stands
 *  a plain kernel that reads and writes as much. A line each, for `tools/bench`:
 *
 *      bench SHAPE OPERATION: MILLISECONDS ms, BYTES bytes, OPERATIONS operations, RATES
 *      bench SHAPE OPERATION: MILLISECONDS ms, BYTES bytes, 0 operations, plain MILLISECONDS ms, RATE
 *      memory SHAPE OPERATION: BYTES bytes of gradients and workspace
 */
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "core/operations.h"
#include "tests/gpu/native/gpu_check.h"
#include "tests/gpu/native/plain_moves.h"
#include "vram/gemm.h"

namespace {

using namespace gpu_test;

/** What an operation needs at least, were every operand read once and every answer written once. */
struct cost {
    double bytes, operations;
};

/* ------------------------------------------------------------------------------------------------ values of its own */

__device__ float scattered(std::size_t index) {
    std::uint64_t state = (index + 1) * 0x9E3779B97F4A7C15ull, sum = 0;
    for (int i = 0; i != 4; ++i) {
        state = (state ^ (state >> 31)) * 0xBF58476D1CE4E5B9ull;
        sum += state >> 40;
    }
    return (static_cast<float>(sum) * 0x1p-24f - 2.f) * 1.7f; // nearly normal
}

__device__ void store(float* to, float value) { *to = value; }
__device__ void store(bf16* to, float value) { *to = __float2bfloat16(value); }
__device__ void store(std::uint8_t* to, float value) { *to = static_cast<std::uint8_t>(127 + 40 * value); }

template <typename value_at> __global__ void fill_kernel(value_at* to, std::size_t count, float deviation) {
    for (std::size_t i = blockIdx.x * std::size_t(blockDim.x) + threadIdx.x; i < count;
         i += std::size_t(gridDim.x) * blockDim.x)
        store(to + i, scattered(i) * deviation);
}

/** Values that look normal, made on the GPU: real ones take a product's power, and so its time, where zeros do not. */
template <typename value_at> struct values : device_array<value_at> {
    explicit values(std::size_t count, float deviation = 1) : device_array<value_at>(count) {
        fill_kernel<<<1024, 256>>>(this->data(), count, deviation);
        require(cudaDeviceSynchronize(), "fill_kernel");
    }
};

void print_moves(std::string const& shape, char const* operation, double taken, traffic const& moved, double plain) {
    std::printf("bench %s %s: %.4f ms, %.0f bytes, 0 operations, plain %.4f ms, %.0f GB/s\n", shape.c_str(), operation,
                taken, moved.bytes(), plain, moved.bytes() / (taken * 1e6));
}

void print_memory(std::string const& shape, char const* operation, std::size_t bytes) {
    std::printf("memory %s %s: %zu bytes of gradients and workspace\n", shape.c_str(), operation, bytes);
}

std::vector<std::uint32_t> counted(std::size_t count) {
    std::vector<std::uint32_t> numbers(count);
    std::iota(numbers.begin(), numbers.end(), 0u);
    return numbers;
}

/* -------------------------------------------------------------------------------------------------------- the shapes
 */

/** One device's share of a step: texts of 256 columns, three tenths of them covered. */
struct shape {
    std::uint32_t depth, hidden, inner, columns;

    static constexpr std::uint32_t segment_k = 256, table_rows_k = 260, patch_width_k = 768;

    std::string name() const { return std::to_string(depth) + "x" + std::to_string(hidden); }
    std::uint32_t segments() const { return columns / segment_k; }
    std::uint32_t covered() const { return columns * 3 / 10; }
    /** Bytes of one tensor of hidden states. */
    double tensor() const { return 2.0 * columns * hidden; }
    /** The ratio of what lies between GeGLU's two maps to the hidden states. */
    double ratio() const { return double(inner) / hidden; }
    double parameters() const { return double(depth) * hidden * (4.0 * hidden + 3.0 * inner); }
};

class table_bench {
public:
    table_bench(stopwatch& watch, shape const& of)
        : watch_(watch), of_(of), host_(equal_segments(of.segments(), shape::segment_k)), columns_(prepare(host_)) {}

    void run() {
        columns();
        embedding();
        patches();
        block();
        norm_and_pool();
        rows();
        heads();
        choices();
        update();
    }

private:
    static columns_fixture& prepare(columns_fixture& host) {
        // As text has it: a third masked, the rest mostly of some thirty bytes; the marker leads each segment.
        random_values random(5);
        for (std::uint32_t column = 0; column != host.used(); ++column)
            host.codes[column] = static_cast<std::uint16_t>(column % shape::segment_k == 0 ? 256
                                                            : column % 3 == 0              ? 257
                                                            : column % 7                   ? 97 + random.below(30)
                                                                                           : random.below(256));
        host.view.active = host.used();
        return host;
    }

    template <typename arguments_at>
    void time(char const* name, uform_status_t (*operation)(uform_stream_t*, arguments_at const*),
              arguments_at const& arguments, cost const& least) {
        double const taken = watch_.milliseconds([&] { require(operation(stream(), &arguments), name); });
        std::printf("bench %s %s: %.4f ms, %.0f bytes, %.0f operations, %.0f GB/s, %.1f TFLOP/s\n", of_.name().c_str(),
                    name, taken, least.bytes, least.operations, least.bytes / (taken * 1e6),
                    least.operations / (taken * 1e9));
    }

    /** The same of an operation without products. */
    template <typename arguments_at>
    void time(char const* name, uform_status_t (*operation)(uform_stream_t*, arguments_at const*),
              arguments_at const& arguments, traffic const& moved) {
        double const taken = watch_.milliseconds([&] { require(operation(stream(), &arguments), name); });
        print_moves(of_.name(), name, taken, moved, plain_milliseconds(watch_, moved));
    }

    std::size_t states() const { return std::size_t(columns_.view.capacity) * of_.hidden; }

    void columns() {
        // A segment is 32 bytes; of each column its segment and three positions are written.
        traffic const moved{32.0 * of_.segments(), 10.0 * of_.columns};
        time("columns_expand", table_.columns_expand, columns_.view, moved);
    }

    void embedding() {
        values<bf16> const table(std::size_t(shape::table_rows_k) * of_.hidden), gradient(states());
        device_array<bf16> const to(states());
        values<float> const table_gradient(table.size());
        std::size_t const bytes =
            table_.embedding_workspace_bytes(of_.hidden, shape::table_rows_k, columns_.view.capacity);
        device_array<std::uint8_t> const workspace(bytes);
        uform_embedding_t const arguments{
            columns_.view,         of_.hidden, uform_modality_text_k, shape::table_rows_k, table.data(),
            table_gradient.data(), to.data(),  gradient.data(),       workspace.data(),    bytes};
        double const codes = 2.0 * of_.columns;
        time("embedding_forward", table_.embedding_forward, arguments, traffic{codes, of_.tensor()});
        time("embedding_backward", table_.embedding_backward, arguments, traffic{of_.tensor() + codes, 0});
    }

    /** As if all columns but the markers were patches of 16 x 16 in colour. */
    void patches() {
        constexpr std::uint32_t width = shape::patch_width_k;
        columns_fixture host(equal_segments(of_.segments(), shape::segment_k, uform_modality_image_k));
        std::vector<std::uint32_t> places;
        for (std::uint32_t column = 0; column != host.used(); ++column)
            if (column % shape::segment_k != 0)
                host.codes[column] = UFORM_CODE_VALUES, places.push_back(column);
        device_columns columns(host);
        columns.expand();
        std::uint32_t const count = static_cast<std::uint32_t>(places.size());
        device_array<std::uint32_t> const device_count(std::vector{count}), device_places(places);
        values<std::uint8_t> const pixels(std::size_t(count) * width);
        values<bf16> const weight(std::size_t(of_.hidden) * width, 0.02f), gradient(states());
        device_array<bf16> const to(states());
        values<float> const weight_gradient(weight.size());
        std::size_t const bytes = table_.patches_workspace_bytes(of_.hidden, width, count);
        device_array<std::uint8_t> const workspace(bytes);
        uform_patches_t arguments{};
        arguments.columns = columns.view, arguments.hidden = of_.hidden, arguments.width = width;
        arguments.element = uform_element_uint8_k, arguments.multiplier = 1 / 127.5f, arguments.offset = -1;
        arguments.capacity = arguments.active = count, arguments.count = device_count.data();
        arguments.values = pixels.data(), arguments.patch_columns = device_places.data();
        arguments.weight = weight.data(), arguments.weight_gradient = weight_gradient.data();
        arguments.states = to.data(), arguments.gradient = gradient.data();
        arguments.workspace = workspace.data(), arguments.workspace_bytes = bytes;
        cost const least{double(count) * (width + 2.0 * of_.hidden), 2.0 * count * width * of_.hidden};
        time("patches_forward", table_.patches_forward, arguments, least);
        time("patches_backward", table_.patches_backward, arguments, least);
    }

    void block() {
        std::size_t const h = of_.hidden, i = of_.inner;
        std::size_t const counts[] = {h, 3 * h * h, h * h, h, 2 * i * h, h * i};
        std::vector<std::unique_ptr<values<bf16>>> weights;
        std::vector<std::unique_ptr<values<float>>> gains, gradients;
        uform_layer_t layer{};
        void const** const places[] = {&layer.norm1, &layer.qkv, &layer.out, &layer.norm2, &layer.up, &layer.down};
        float** const slopes[] = {&layer.norm1_gradient, &layer.qkv_gradient, &layer.out_gradient,
                                  &layer.norm2_gradient, &layer.up_gradient,  &layer.down_gradient};
        for (std::size_t at = 0; at != std::size(counts); ++at) {
            if (counts[at] == h)
                *places[at] = gains.emplace_back(std::make_unique<values<float>>(h))->data();
            else
                *places[at] = weights.emplace_back(std::make_unique<values<bf16>>(counts[at], 0.02f))->data();
            *slopes[at] = gradients.emplace_back(std::make_unique<values<float>>(counts[at]))->data();
        }
        layer.extents = {of_.depth, of_.hidden, of_.inner, of_.hidden / 64};
        layer.columns = columns_.view;
        values<bf16> const input(states()), gradient(states());
        device_array<bf16> const output(states());
        device_array<std::uint8_t> const saved(table_.layer_saved_bytes(&layer.extents, columns_.view.capacity));
        device_array<std::uint8_t> const workspace(
            table_.layer_workspace_bytes(&layer.extents, columns_.view.capacity, columns_.view.segments_capacity));
        layer.input = input.data(), layer.output = output.data(), layer.gradient = gradient.data();
        layer.saved = saved.data(), layer.saved_bytes = saved.bytes();
        layer.workspace = workspace.data(), layer.workspace_bytes = workspace.bytes();

        double const u = of_.tensor(), r = of_.ratio(), rows = of_.columns;
        double const qkv = 3.0 * double(h) * double(h), out = double(h) * double(h), up = 2.0 * double(i) * double(h),
                     down = double(i) * double(h), scores = 2.0 * rows * shape::segment_k * double(h);
        // Weights are read as two bytes; their gradients, of four, are read and written.
        auto const forward = [&](double tensors, double weight) {
            return cost{tensors * u + 2 * weight, 2 * rows * weight};
        };
        auto const backward = [&](double tensors, double weight) {
            return cost{tensors * u + 10 * weight, 4 * rows * weight};
        };
        time("norm_qkv_forward", table_.norm_qkv_forward, layer, forward(4, qkv));
        time("attention_forward", table_.attention_forward, layer, cost{4 * u, 2 * scores});
        time("out_residual_forward", table_.out_residual_forward, layer, forward(3, out));
        time("norm_geglu_forward", table_.norm_geglu_forward, layer, forward(1 + 3 * r, up));
        time("down_residual_forward", table_.down_residual_forward, layer, forward(2 + r, down));
        time("down_residual_backward", table_.down_residual_backward, layer, backward(1 + 5 * r, down));
        time("norm_geglu_backward", table_.norm_geglu_backward, layer, backward(3 + 2 * r, up));
        time("out_residual_backward", table_.out_residual_backward, layer, backward(3, out));
        time("attention_backward", table_.attention_backward, layer, cost{8 * u, 5 * scores});
        time("norm_qkv_backward", table_.norm_qkv_backward, layer, backward(6, qkv));
    }

    void norm_and_pool() {
        values<bf16> const input(states()), gradient(states());
        device_array<bf16> const output(states());
        values<float> const gain(of_.hidden), gain_gradient(of_.hidden);
        device_array<float> const inverses(columns_.view.capacity);
        std::size_t const norm_bytes = table_.norm_workspace_bytes(of_.hidden, columns_.view.capacity);
        device_array<std::uint8_t> const norm_workspace(norm_bytes);
        uform_norm_t norm{};
        norm.columns = columns_.view, norm.hidden = of_.hidden, norm.gain = gain.data();
        norm.gain_gradient = gain_gradient.data(), norm.input = input.data(), norm.output = output.data();
        norm.inverse_rms = inverses.data(), norm.gradient = gradient.data();
        norm.workspace = norm_workspace.data(), norm.workspace_bytes = norm_bytes;
        time("norm_forward", table_.norm_forward, norm, traffic{of_.tensor(), of_.tensor()});

        std::size_t const bags = columns_.view.bags_capacity;
        device_array<float> const pooled(bags * of_.hidden), lengths(bags);
        values<float> const pooled_gradient(bags * of_.hidden);
        device_array<std::uint32_t> const bag_columns(bags);
        std::size_t const pool_bytes = table_.pool_workspace_bytes(of_.hidden, columns_.view.bags_capacity);
        device_array<std::uint8_t> const pool_workspace(pool_bytes);
        uform_pool_t pool{};
        pool.columns = columns_.view, pool.hidden = of_.hidden, pool.hidden_states = output.data();
        pool.pooled = pooled.data(), pool.lengths = lengths.data(), pool.bag_columns = bag_columns.data();
        pool.pooled_gradient = pooled_gradient.data(), pool.gradient = gradient.data();
        pool.workspace = pool_workspace.data(), pool.workspace_bytes = pool_bytes;
        double const small = 4.0 * double(bags) * of_.hidden;
        time("pool_forward", table_.pool_forward, pool, traffic{of_.tensor(), small});
        time("pool_backward", table_.pool_backward, pool, traffic{2 * small, of_.tensor()});
        time("norm_backward", table_.norm_backward, norm, traffic{2 * of_.tensor(), of_.tensor()});
    }

    void rows() {
        std::uint32_t const count = of_.covered();
        std::vector<std::uint32_t> indices = counted(count);
        for (std::uint32_t& one : indices)
            one = one * 10 / 3;
        device_array<std::uint32_t> const device_count(std::vector{count}), device_indices(indices);
        values<bf16> const from(states()), gradient(states());
        device_array<bf16> const gathered(std::size_t(count) * of_.hidden);
        values<float> const gathered_gradient(gathered.size());
        uform_rows_t arguments{};
        arguments.hidden = of_.hidden, arguments.capacity = arguments.active = count;
        arguments.count = device_count.data(), arguments.indices = device_indices.data();
        arguments.states = from.data(), arguments.rows = gathered.data();
        arguments.rows_gradient = gathered_gradient.data(), arguments.gradient = gradient.data();
        arguments.columns_active = of_.columns;
        double const taken = double(gathered.size());
        time("rows_gather", table_.rows_gather, arguments, traffic{2 * taken, 2 * taken});
        time("rows_scatter", table_.rows_scatter, arguments, traffic{4 * taken, of_.tensor()});
    }

    void heads() {
        std::uint32_t const count = of_.covered(), hidden = of_.hidden;
        device_array<std::uint32_t> const device_count(std::vector{count}), covered(counted(count));
        values<bf16> const rows(std::size_t(count) * hidden);
        values<bf16> const bytes_table(std::size_t(shape::table_rows_k) * hidden, 0.02f);
        values<bf16> const patches_head(std::size_t(shape::patch_width_k) * hidden, 0.02f);
        values<float> const bytes_gradient(bytes_table.size()), patches_gradient(patches_head.size());
        device_array<std::uint8_t> const targets(std::vector<std::uint8_t>(count, 101));
        values<std::uint8_t> const pixels(std::size_t(count) * shape::patch_width_k);
        device_array<float> const rows_gradient(rows.size());
        device_array<float> const scale(std::vector{1.f / static_cast<float>(count)}), weight(std::vector{1.f});
        device_array<double> const loss(std::vector{0.});
        double const states = double(rows.size());

        constexpr std::uint32_t classes = 256;
        device_array<std::uint8_t> const workspace(
            std::max({table_.bytes_head_workspace_bytes(hidden, count),
                      table_.patches_head_workspace_bytes(hidden, shape::patch_width_k, count),
                      table_.cross_entropy_workspace_bytes(classes, count)}));
        uform_bytes_head_t head{};
        head.hidden = hidden, head.capacity = head.active = count, head.count = device_count.data();
        head.rows = rows.data(), head.table = bytes_table.data(), head.targets = targets.data();
        head.scale = scale.data(), head.weight = weight.data(), head.loss = loss.data();
        head.rows_gradient = rows_gradient.data(), head.table_gradient = bytes_gradient.data();
        head.workspace = workspace.data(), head.workspace_bytes = workspace.bytes();
        time("bytes_head", table_.bytes_head, head, cost{6 * states + count, 6 * states * classes});

        print_memory(of_.name(), "bytes_head",
                     rows_gradient.bytes() + bytes_gradient.bytes() + table_.bytes_head_workspace_bytes(hidden, count));

        uform_patches_head_t drawn{};
        drawn.hidden = hidden, drawn.width = shape::patch_width_k, drawn.element = uform_element_uint8_k;
        drawn.multiplier = 1 / 127.5f, drawn.offset = -1, drawn.capacity = drawn.active = count;
        drawn.count = device_count.data(), drawn.rows = rows.data(), drawn.values = pixels.data();
        drawn.covered_patches = covered.data(), drawn.head = patches_head.data();
        drawn.head_gradient = patches_gradient.data(), drawn.scale = scale.data(), drawn.weight = weight.data();
        drawn.loss = loss.data(), drawn.rows_gradient = rows_gradient.data();
        drawn.workspace = workspace.data(), drawn.workspace_bytes = workspace.bytes();
        time("patches_head", table_.patches_head, drawn,
             cost{6 * states + double(pixels.size()), 6 * states * shape::patch_width_k});

        values<float> const logits(std::size_t(count) * classes);
        device_array<float> const logits_gradient(logits.size());
        uform_cross_entropy_t entropy{};
        entropy.classes = classes, entropy.count = count, entropy.logits = logits.data();
        entropy.targets = targets.data(), entropy.scale = 1.f / static_cast<float>(count), entropy.loss = loss.data();
        entropy.gradient = logits_gradient.data();
        entropy.workspace = workspace.data(), entropy.workspace_bytes = workspace.bytes();
        double const entries = double(logits.size());
        time("cross_entropy", table_.cross_entropy, entropy, traffic{4 * entries + count, 4 * entries});
    }

    /** Sixteen choices of every segment. */
    void choices() {
        std::uint32_t const items = of_.segments(), each = 16, count = items * each, hidden = of_.hidden;
        std::vector<std::uint32_t> offsets;
        for (std::uint32_t item = 0; item <= items; ++item)
            offsets.push_back(item * each);
        device_array<std::uint32_t> const counts(std::vector{items, count}), device_offsets(offsets);
        values<bf16> const rows(std::size_t(count) * hidden);
        values<float> const vector(hidden, 0.02f), vector_gradient(hidden);
        device_array<float> const targets(std::vector<float>(count, 1.f / each)), probabilities(count);
        device_array<float> const rows_gradient(rows.size());
        device_array<float> const one(std::vector{1.f}), temperature(std::vector{0.f});
        device_array<float> const temperature_gradient(std::vector{0.f});
        device_array<double> const loss(std::vector{0.});
        device_array<std::uint8_t> const workspace(table_.choices_head_workspace_bytes(hidden, items, count));
        uform_choices_head_t head{};
        head.hidden = hidden, head.items_capacity = head.items_active = items;
        head.rows_capacity = head.rows_active = count, head.counts = counts.data();
        head.offsets = device_offsets.data(), head.rows = rows.data(), head.vector = vector.data();
        head.log_inverse_temperature = temperature.data(), head.probabilities = probabilities.data();
        head.targets = targets.data(), head.scale = one.data(), head.weight = one.data(), head.loss = loss.data();
        head.rows_gradient = rows_gradient.data(), head.vector_gradient = vector_gradient.data();
        head.log_inverse_temperature_gradient = temperature_gradient.data();
        head.workspace = workspace.data(), head.workspace_bytes = workspace.bytes();
        time("choices_head", table_.choices_head, head, traffic{2 * double(rows.size()), 4 * double(rows.size())});
    }

    /** All matrices of the encoder as one parameter: gradients are read twice, for their norm and for the update. */
    void update() {
        std::uint32_t const width = of_.hidden, height = static_cast<std::uint32_t>(of_.parameters() / of_.hidden);
        std::size_t const count = std::size_t(width) * height;
        values<float> const parameters(count, 0.02f), gradient(count, 1e-3f), first(count, 1e-3f);
        device_array<float> const second(count);
        require(cudaMemset(second.data(), 0, second.bytes()), "cudaMemset");
        device_array<bf16> const working(count);
        uform_parameter_span_t span{};
        span.count = count, span.decay = 1, span.minimum = -INFINITY, span.maximum = INFINITY;
        span.rows = height, span.columns = width, span.kind = uform_parameter_kind_matrix_k;
        span.working = working.data();
        device_array<uform_parameter_span_t> const spans(std::vector{span});
        device_array<uform_update_state_t> const state(std::vector{uform_update_state_t{}});
        std::size_t const bytes = table_.update_workspace_bytes(count);
        device_array<std::uint8_t> const workspace(bytes);
        uform_update_t arguments{};
        arguments.count = count, arguments.parameters = parameters.data(), arguments.gradient = gradient.data();
        arguments.first_moment = first.data(), arguments.second_moment = second.data();
        arguments.spans = spans.data(), arguments.spans_count = 1;
        arguments.peak = 1e-3, arguments.floor = 1e-4, arguments.warmup_steps = 10, arguments.steps = 1000;
        arguments.beta1 = 0.9, arguments.beta2 = 0.98, arguments.epsilon = 1e-6, arguments.decay = 0.01;
        arguments.max_norm = 1, arguments.state = state.data();
        arguments.workspace = workspace.data(), arguments.workspace_bytes = bytes;
        time("update", table_.update, arguments, traffic{20.0 * double(count), 14.0 * double(count)});

        double const taken = watch_.milliseconds([&] {
            require(table_.weights_import(stream(), uform_parameter_kind_matrix_k, height, width, parameters.data(),
                                          working.data()),
                    "weights_import");
        });
        traffic const moved{4.0 * double(count), 2.0 * double(count)};
        print_moves(of_.name(), "weights_import", taken, moved, plain_milliseconds(watch_, moved));
    }

    stopwatch& watch_;
    shape of_;
    columns_fixture host_;
    device_columns columns_;
    uform_operations_t const& table_ = uform::vram_operations();
};

/* ------------------------------------------------------------------------------------------------------- the losses */

/** InfoNCE over pairs of two modalities, given both ways, each row against all candidates of the other modality. */
void pairs(stopwatch& watch, std::uint32_t count, std::uint32_t width) {
    uform_operations_t const& table = uform::vram_operations();
    std::uint32_t const units = 2 * count;
    std::vector<std::uint32_t> others = counted(units), modalities(units);
    for (std::uint32_t unit = 0; unit != units; ++unit)
        others[unit] = (unit + count) % units, modalities[unit] = unit < count ? 1 : 2;
    device_array<std::uint32_t> const counts(std::vector{units, units, units}), rows(counted(units)),
        groups(std::vector<std::uint32_t>(units, 0)), device_modalities(modalities), offsets(counted(units + 1)),
        device_others(others);
    device_array<std::uint8_t> const sides(std::vector<std::uint8_t>(units, 0)),
        targets(std::vector<std::uint8_t>(units, 1)),
        classes(std::vector<std::uint8_t>(units, uform_pair_class_attracted_k));
    device_array<float> const weights(std::vector<float>(units, 1.f));
    values<float> const source(std::size_t(units) * width);
    device_array<float> const vectors(source.size()), gradient(source.size()), lengths(units);
    values<float> const source_gradient(source.size());
    device_array<float> const temperature(std::vector{std::log(20.f)}), bias(std::vector{0.f});
    device_array<float> const scale(std::vector{1.f / static_cast<float>(units)}), logs(units), forces(units);
    device_array<double> const loss(std::vector{0.});
    device_array<float> const temperature_gradient(std::vector{0.f}), bias_gradient(std::vector{0.f});
    device_array<std::uint8_t> const workspace(table.pairs_workspace_bytes(units, units, units, width, 1));

    uform_prefix_t prefix{};
    prefix.stride = prefix.width = width, prefix.normalize = 1, prefix.capacity = prefix.active = units;
    prefix.count = counts.data(), prefix.indices = rows.data(), prefix.source = source.data();
    prefix.vectors = vectors.data(), prefix.lengths = lengths.data(), prefix.vectors_gradient = gradient.data();
    prefix.source_gradient = source_gradient.data();
    uform_pairs_t of{};
    of.width = width, of.units_capacity = of.units_active = units, of.rows_capacity = of.rows_active = units;
    of.edges_capacity = units, of.groups = 1, of.counts = counts.data(), of.vectors = vectors.data();
    of.rows = rows.data(), of.row_groups = groups.data(), of.modalities = device_modalities.data();
    of.sides = sides.data(), of.targets = targets.data(), of.edge_offsets = offsets.data();
    of.edge_units = device_others.data(), of.edge_classes = classes.data(), of.edge_weights = weights.data();
    of.form = uform_pair_loss_form_balanced_k, of.negatives = uform_negatives_ambient_k;
    of.scope = uform_ambient_scope_cross_modal_k, of.ambient_weight = 1;
    of.log_inverse_temperature = temperature.data(), of.bias = bias.data(), of.scale = scale.data();
    of.loss = loss.data(), of.row_logs = logs.data(), of.row_forces = forces.data(), of.gradient = gradient.data();
    of.log_inverse_temperature_gradient = temperature_gradient.data(), of.bias_gradient = bias_gradient.data();
    of.workspace = workspace.data(), of.workspace_bytes = workspace.bytes();

    std::string const name = "N=" + std::to_string(count);
    double const tensor = double(source.bytes()), product = 2.0 * count * double(count) * width;
    auto const milliseconds = [&](char const* operation, auto&& body) {
        return watch.milliseconds([&] { require(body(), operation); }, 7);
    };
    auto const time = [&](char const* operation, cost const& least, auto&& body) {
        double const taken = milliseconds(operation, body);
        std::printf("bench %s %s: %.4f ms, %.0f bytes, %.0f operations, %.0f GB/s, %.1f TFLOP/s\n", name.c_str(),
                    operation, taken, least.bytes, least.operations, least.bytes / (taken * 1e6),
                    least.operations / (taken * 1e9));
    };
    auto const time_moves = [&](char const* operation, traffic const& moved, auto&& body) {
        double const taken = milliseconds(operation, body);
        print_moves(name, operation, taken, moved, plain_milliseconds(watch, moved));
    };
    time_moves("prefix_forward", {tensor, tensor}, [&] { return table.prefix_forward(stream(), &prefix); });
    // A product serves a row's and a column's sums; backward makes it again, and two more for the gradients.
    time("pairs_forward", {tensor, product}, [&] { return table.pairs_forward(stream(), &of); });
    time("pairs_backward", {2 * tensor, 3 * product}, [&] { return table.pairs_backward(stream(), &of); });
    time("pairs", {3 * tensor, 4 * product}, [&] {
        uform_status_t const status = table.pairs_forward(stream(), &of);
        return status == uform_status_success_k ? table.pairs_backward(stream(), &of) : status;
    });
    time_moves("prefix_backward", {3 * tensor, tensor}, [&] { return table.prefix_backward(stream(), &prefix); });
    print_memory(name, "pairs", gradient.bytes() + workspace.bytes());
}

/** Queries against documents, each of so many token vectors. */
void maxsim(stopwatch& watch, std::uint32_t queries, std::uint32_t query_rows, std::uint32_t documents,
            std::uint32_t document_rows, std::uint32_t width) {
    uform_operations_t const& table = uform::vram_operations();
    std::uint32_t const all = queries * query_rows, rows = all + documents * document_rows;
    std::vector<uform_run_of_rows_t> query_runs, document_runs;
    for (std::uint32_t query = 0; query != queries; ++query)
        query_runs.push_back({query * query_rows, query_rows, query * query_rows});
    for (std::uint32_t document = 0; document != documents; ++document)
        document_runs.push_back({all + document * document_rows, document_rows, document * document_rows});
    values<float> const vectors(std::size_t(rows) * width), coefficients(std::size_t(queries) * documents);
    device_array<uform_run_of_rows_t> const runs_of_queries(query_runs), runs_of_documents(document_runs);
    device_array<std::uint32_t> const counts(std::vector{queries, all, documents});
    device_array<float> const similarities(coefficients.size()), gradient(vectors.size());
    device_array<std::uint16_t> const places(std::size_t(documents) * all);
    device_array<std::uint8_t> const workspace(
        table.maxsim_workspace_bytes(width, all, documents, documents * document_rows));
    uform_maxsim_t of{};
    of.width = width, of.vectors_capacity = rows, of.queries_capacity = queries, of.query_vectors_capacity = all;
    of.documents_capacity = documents, of.document_vectors_capacity = documents * document_rows;
    of.longest = document_rows, of.counts = counts.data(), of.vectors = vectors.data();
    of.queries = runs_of_queries.data(), of.documents = runs_of_documents.data();
    of.similarities = similarities.data(), of.places = places.data(), of.coefficients = coefficients.data();
    of.gradient = gradient.data(), of.workspace = workspace.data(), of.workspace_bytes = workspace.bytes();

    std::string const name = std::to_string(queries) + "x" + std::to_string(query_rows) + ":" +
                             std::to_string(documents) + "x" + std::to_string(document_rows);
    double const tensor = double(vectors.bytes()), product = 2.0 * all * double(documents) * document_rows * width;
    auto const time = [&](char const* operation, double bytes, double operations, auto&& body) {
        double const taken = watch.milliseconds([&] { require(body(), operation); }, 7);
        std::printf("bench %s %s: %.4f ms, %.0f bytes, %.0f operations, %.0f GB/s, %.1f TFLOP/s\n", name.c_str(),
                    operation, taken, bytes, operations, bytes / (taken * 1e6), operations / (taken * 1e9));
    };
    // Backward makes no product: it gathers what matched.
    time("maxsim_forward", tensor, product, [&] { return table.maxsim_forward(stream(), &of); });
    time("maxsim_backward", 2 * tensor, 0, [&] { return table.maxsim_backward(stream(), &of); });
    time("maxsim", 3 * tensor, product, [&] {
        uform_status_t const status = table.maxsim_forward(stream(), &of);
        return status == uform_status_success_k ? table.maxsim_backward(stream(), &of) : status;
    });
    print_memory(name, "maxsim",
                 gradient.bytes() + workspace.bytes() + places.bytes() + similarities.bytes() + coefficients.bytes());
}

/* ----------------------------------------------------------------------------------------------------- the exchange */

/** Two replicas on one GPU, whose sums are of the encoder's gradients; timed by the host, waiting included. */
void exchange(shape const& of) {
    uform_operations_t const& table = uform::vram_operations();
    device_set const both({0, 0});
    std::size_t const count = static_cast<std::size_t>(of.parameters()), block = std::size_t(of.segments()) * of.hidden;
    values<float> const first(count), second(count);
    values<float> const own(block), other(block);
    device_array<float> const gathered(2 * block), gathered_too(2 * block);
    device_array<double> const terms(std::vector<double>(UFORM_TERMS_CAPACITY, 1)),
        more_terms(std::vector<double>(UFORM_TERMS_CAPACITY, 1));
    float* const sums[] = {first.data(), second.data()};
    double* const losses[] = {terms.data(), more_terms.data()};
    void const* const from[] = {own.data(), other.data()};
    void* const to[] = {gathered.data(), gathered_too.data()};
    cudaEvent_t begin{}, end{};
    require(cudaEventCreate(&begin), "cudaEventCreate");
    require(cudaEventCreate(&end), "cudaEventCreate");
    cudaStream_t const on = uform::vram::stream::of(both.stream()).handle;
    auto const time = [&](char const* operation, double bytes, auto&& body) {
        std::vector<float> times(11);
        for (float& one : times) {
            both.synchronize();
            require(cudaEventRecord(begin, on), operation);
            require(body(), operation);
            require(cudaEventRecord(end, on), operation);
            both.synchronize();
            require(cudaEventElapsedTime(&one, begin, end), operation);
        }
        std::sort(times.begin(), times.end());
        double const taken = double(times[times.size() / 2]);
        std::printf("bench %s %s: %.4f ms, %.0f bytes, 0 operations, %.0f GB/s\n", of.name().c_str(), operation, taken,
                    bytes, bytes / (taken * 1e6));
    };
    time("reduce_sum", 16.0 * double(count), [&] { return table.reduce_sum(both.streams(), sums, 2, count); });
    time("reduce_terms", 32.0 * UFORM_TERMS_CAPACITY,
         [&] { return table.reduce_terms(both.streams(), losses, 2, UFORM_TERMS_CAPACITY); });
    time("gather", 6.0 * double(own.bytes()), [&] { return table.gather(both.streams(), from, to, 2, own.bytes()); });
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
}

/* ----------------------------------------------------------------------------------------------------- the ceilings */

/** How fast this GPU copies and multiplies at best, in this very run. */
void ceilings(stopwatch& watch) {
    constexpr std::size_t bytes = std::size_t(1) << 30;
    cudaStream_t const on = uform::vram::stream::of(stream()).handle;
    device_array<std::uint8_t> const from(bytes), to(bytes);
    double const taken = watch.milliseconds([&] {
        require(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, on), "cudaMemcpyAsync");
    });
    std::printf("bench ceiling copy: %.4f ms, %zu bytes, 0 operations, %.0f GB/s\n", taken, 2 * bytes,
                2 * double(bytes) / (taken * 1e6));
    for (uform::vram::linear_extents const& one :
         {uform::vram::linear_extents{8192, 8192, 8192}, {65536, 4096, 768}, {32768, 5632, 1024}}) {
        auto const [rows, outs, ins] = one;
        values<bf16> const x(std::size_t(rows) * ins), weight(std::size_t(outs) * ins);
        device_array<bf16> const y(std::size_t(rows) * outs);
        double const operations = 2.0 * rows * outs * ins;
        double const product = watch.milliseconds([&] {
            uform::vram::gemm_forward(uform::vram::stream::of(stream()), one, x.data(), weight.data(), nullptr,
                                      y.data());
        });
        double const moved = 2.0 * (double(rows) * ins + double(outs) * ins + double(rows) * outs);
        std::printf("bench ceiling product of %u x %u x %u: %.4f ms, %.0f bytes, %.0f operations, %.1f TFLOP/s\n", rows,
                    outs, ins, product, moved, operations, operations / (product * 1e9));
    }
}

} // namespace

int main() {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    stopwatch watch;
    ceilings(watch);
    for (shape const& one : {shape{12, 512, 1408, 65536}, shape{12, 768, 2048, 65536}, shape{24, 1024, 2816, 32768}}) {
        table_bench(watch, one).run();
        exchange(one);
    }
    for (std::uint32_t count : {16384u, 65536u})
        pairs(watch, count, 512);
    maxsim(watch, 512, 32, 1024, 256, 128);
    synchronize();
    return 0;
}
