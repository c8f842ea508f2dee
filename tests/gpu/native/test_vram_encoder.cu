/** A block of the encoder against RAM, operation by operation and whole; `--bench` times each at the real shapes. */
#include <memory>
#include <utility>

#include "ram/layer.h"
#include "tests/gpu/native/gpu_check.h"
#include "vram/layer.h"

namespace {

using namespace gpu_test;
namespace ram = uform::ram;
namespace vram = uform::vram;

using vram_operation = uform_status_t (*)(uform_stream_t*, uform_layer_t const*);

constexpr std::size_t weights_k = 6;
constexpr char const* weight_names_k[weights_k] = {"norm1", "qkv", "out", "norm2", "up", "down"};

/** Counts of values in each of a block's parameters; the gains are the first and the fourth. */
struct block_extents {
    std::size_t hidden, inner;

    std::size_t count(std::size_t weight) const {
        std::size_t const counts[weights_k] = {hidden, 3 * hidden * hidden, hidden * hidden,
                                               hidden, 2 * inner * hidden,  hidden * inner};
        return counts[weight];
    }
    uform_extents_t table() const {
        return {1, static_cast<std::uint32_t>(hidden), static_cast<std::uint32_t>(inner),
                static_cast<std::uint32_t>(hidden / vram::head_width_k)};
    }
};

bool is_gain(std::size_t weight) { return weight == 0 || weight == 3; }

/** What both backends begin with: values that bfloat16 holds. */
struct block_values {
    std::vector<float> weights[weights_k], gradients[weights_k], input, gradient;

    block_values(block_extents const& extents, std::size_t rows) {
        random_values random(41);
        float const deviations[weights_k] = {1, 0.1f, 0.1f, 1, 0.1f, 0.1f};
        for (std::size_t i = 0; i != weights_k; ++i) {
            weights[i] = random.normal(extents.count(i), deviations[i]);
            if (!is_gain(i))
                weights[i] = rounded(weights[i]);
            gradients[i] = random.normal(extents.count(i));
        }
        input = rounded(random.normal(rows * extents.hidden));
        gradient = rounded(random.normal(rows * extents.hidden));
    }
};

/** The layer of either backend over memory of its own; `set` fills the pointers of one parameter. */
void set_weight(uform_layer_t& layer, std::size_t weight, void const* values, float* gradient) {
    void const** const places[weights_k] = {&layer.norm1, &layer.qkv, &layer.out, &layer.norm2, &layer.up, &layer.down};
    float** const gradients[weights_k] = {&layer.norm1_gradient, &layer.qkv_gradient, &layer.out_gradient,
                                          &layer.norm2_gradient, &layer.up_gradient,  &layer.down_gradient};
    *places[weight] = values;
    *gradients[weight] = gradient;
}

struct ram_block {
    ram_device device{2};
    block_values values;
    std::vector<float> output;
    native_test::poisoned_memory saved, workspace;
    uform_layer_t layer{};

    ram_block(columns_fixture const& columns, block_extents const& extents, block_values const& given)
        : values(given), output(columns.view.capacity * extents.hidden), saved(saved_bytes(columns, extents)),
          workspace(workspace_bytes(columns, extents)) {
        layer.extents = extents.table();
        layer.columns = columns.view;
        for (std::size_t i = 0; i != weights_k; ++i)
            set_weight(layer, i, values.weights[i].data(), values.gradients[i].data());
        values.input.resize(output.size(), native_test::poison());
        values.gradient.resize(output.size(), native_test::poison());
        layer.input = values.input.data(), layer.output = output.data(), layer.gradient = values.gradient.data();
        layer.saved = saved.data(), layer.saved_bytes = saved_bytes(columns, extents);
        layer.workspace = workspace.data(), layer.workspace_bytes = workspace_bytes(columns, extents);
    }

    static std::size_t saved_bytes(columns_fixture const& columns, block_extents const& extents) {
        uform_extents_t const table = extents.table();
        return ram_device::operations().layer_saved_bytes(&table, columns.view.capacity);
    }
    static std::size_t workspace_bytes(columns_fixture const& columns, block_extents const& extents) {
        uform_extents_t const table = extents.table();
        return ram_device::operations().layer_workspace_bytes(&table, columns.view.capacity,
                                                              columns.view.segments_capacity);
    }
};

struct vram_block {
    device_columns columns;
    std::vector<std::unique_ptr<device_array<bf16>>> matrices;
    std::vector<std::unique_ptr<device_array<float>>> gains, gradients;
    device_array<bf16> input, output, gradient;
    device_array<std::uint8_t> saved, workspace;
    uform_layer_t layer{};

    vram_block(columns_fixture const& host, block_extents const& extents, block_values const& values)
        : columns(host), input(host.view.capacity * extents.hidden), output(input.size()), gradient(input.size()),
          saved(saved_bytes(host, extents)), workspace(workspace_bytes(host, extents)) {
        columns.copy_expanded(host);
        layer.extents = extents.table();
        layer.columns = columns.view;
        for (std::size_t i = 0; i != weights_k; ++i) {
            gradients.push_back(std::make_unique<device_array<float>>(values.gradients[i]));
            void const* place;
            if (is_gain(i))
                place = gains.emplace_back(std::make_unique<device_array<float>>(values.weights[i]))->data();
            else
                place = matrices.emplace_back(std::make_unique<device_array<bf16>>(to_bf16(values.weights[i])))->data();
            set_weight(layer, i, place, gradients.back()->data());
        }
        input.upload(to_bf16(values.input));
        gradient.upload(to_bf16(values.gradient));
        layer.input = input.data(), layer.output = output.data(), layer.gradient = gradient.data();
        layer.saved = saved.data(), layer.saved_bytes = saved.bytes();
        layer.workspace = workspace.data(), layer.workspace_bytes = workspace.bytes();
    }

    static std::size_t saved_bytes(columns_fixture const& host, block_extents const& extents) {
        uform_extents_t const table = extents.table();
        return vram::layer_saved_bytes(&table, host.view.capacity);
    }
    static std::size_t workspace_bytes(columns_fixture const& host, block_extents const& extents) {
        uform_extents_t const table = extents.table();
        return vram::layer_workspace_bytes(&table, host.view.capacity, host.view.segments_capacity);
    }

    bool guarded() const {
        bool holds = columns.guarded() && input.guarded() && output.guarded() && gradient.guarded() &&
                     saved.guarded() && workspace.guarded();
        for (auto const& one : gradients)
            holds = holds && one->guarded();
        return holds;
    }
};

/** What rounding to bfloat16 adds in the 2-norm. */
double rounding_error() {
    static double const error = [] {
        std::vector<float> const values = random_values(7).normal(10000);
        return relative_error(rounded(values), to_double(values));
    }();
    return error;
}

/** The tolerance policy for an answer behind which lie so many independent roundings of all values. */
double bound_of(unsigned roundings) { return 2 * rounding_error() * std::sqrt(double(roundings)) + 1e-3; }

/** One test's name, blocks on both backends, and how their parts are compared. */
struct block_pair {
    std::string name;
    columns_fixture columns;
    block_extents extents;
    block_values values;
    ram_block on_ram;
    vram_block on_vram;

    block_pair(std::string name, std::vector<columns_fixture::shape> const& shapes, block_extents extents)
        : name(std::move(name)), columns(shapes), extents(extents), values(extents, columns.used()),
          on_ram(expanded(columns), extents, values), on_vram(columns, extents, values) {}

    static columns_fixture const& expanded(columns_fixture& columns) {
        ram_device const device(1);
        device.run(device.operations().columns_expand, columns.view);
        return columns;
    }

    std::size_t used() const { return columns.used(); }
    std::size_t active() const { return columns.view.active; }

    void run(char const* operation, vram_operation on_device,
             uform_status_t (*on_host)(uform_stream_t*, uform_layer_t const*)) {
        on_ram.device.run(on_host, on_ram.layer);
        gpu_test::run(operation, on_device, on_vram.layer);
    }

    /** Compares the rows in use, then makes RAM go on from what the device has. */
    void compare(char const* part, bf16 const* got, float* expected, std::size_t width, unsigned roundings) {
        std::vector<float> const values = to_float(download(got, used() * width));
        std::vector<double> const wanted(expected, expected + values.size());
        check(name + " " + part, relative_error(values, wanted), bound_of(roundings));
        std::copy(values.begin(), values.end(), expected);
    }

    void compare(char const* part, float const* got, float* expected, std::size_t count, double bound) {
        std::vector<float> const values = download(got, count);
        check(name + " " + part, relative_error(values, {expected, expected + count}), bound);
        std::copy(values.begin(), values.end(), expected);
    }

    /** Compares what was added to a parameter's gradient. */
    void compare_gradient(std::size_t weight, unsigned roundings) {
        std::vector<float> got = on_vram.gradients[weight]->download();
        std::vector<double> expected(got.size());
        for (std::size_t i = 0; i != got.size(); ++i) {
            double const before = double(values.gradients[weight][i]);
            got[i] = static_cast<float>(double(got[i]) - before);
            expected[i] = double(on_ram.values.gradients[weight][i]) - before;
        }
        check(name + " " + weight_names_k[weight] + " gradient", relative_error(got, expected), bound_of(roundings));
    }

    /** Rows past the count feed sums over all active rows. */
    void check_zeros(char const* part, bf16 const* rows, std::size_t width) {
        std::vector<float> const slack = to_float(download(rows + used() * width, (active() - used()) * width));
        check(name + " " + part + " zeros past the count",
              std::all_of(slack.begin(), slack.end(), [](float value) { return value == 0; }));
    }

    /** Makes the device go on from what RAM has, rounded, zeros past the count. */
    void hand_over(float* from, bf16* to, std::size_t width) {
        std::vector<float> values(from, from + used() * width);
        values = rounded(values);
        std::copy(values.begin(), values.end(), from);
        values.resize(active() * width, 0.f);
        std::vector<bf16> const packed = to_bf16(values);
        require(cudaMemcpy(to, packed.data(), packed.size() * sizeof(bf16), cudaMemcpyHostToDevice), "cudaMemcpy");
        require(cudaDeviceSynchronize(), "cudaMemcpy");
    }

    template <typename value_at> static std::vector<value_at> download(value_at const* from, std::size_t count) {
        std::vector<value_at> values(count);
        require(cudaMemcpy(values.data(), from, count * sizeof(value_at), cudaMemcpyDeviceToHost), "cudaMemcpy");
        return values;
    }
};

std::vector<columns_fixture::shape> mixed_shapes() {
    std::vector<columns_fixture::shape> shapes = odd_segments(23);
    std::uint32_t const bag = shapes.back().bag + 1;
    shapes.push_back({43, 2, {6, 7, 0}, 43, bag, uform_modality_image_k});
    shapes.push_back({61, 3, {3, 4, 5}, 61, bag + 1, uform_modality_image_k});
    shapes.push_back({200, 1, {199, 0, 0}, 200, bag + 2, uform_modality_text_k});
    return shapes;
}

/** Each operation from the same values on both backends. */
void test_operations(std::string const& name, block_extents const& extents) {
    block_pair pair(name, mixed_shapes(), extents);
    uform_operations_t const& table = ram_device::operations();
    ram::layer_saved const kept = ram::layer_saved::of(pair.on_ram.layer);
    ram::layer_workspace const host = ram::layer_workspace::of(pair.on_ram.layer);
    vram::layer_saved const saved = vram::layer_saved::of(pair.on_vram.layer);
    vram::layer_workspace const work = vram::layer_workspace::of(pair.on_vram.layer);
    std::size_t const hidden = extents.hidden, inner = extents.inner, rows = pair.used();

    pair.run("norm_qkv_forward", vram::norm_qkv_forward, table.norm_qkv_forward);
    pair.compare("inverse1", saved.inverse1, kept.inverse1, rows, 1e-5);
    pair.compare("normed", work.normed, host.normed, hidden, 1);
    pair.check_zeros("normed", work.normed, hidden);
    pair.compare("qkv", saved.qkv, kept.qkv, 3 * hidden, 3);

    pair.on_ram.device.run(table.attention_forward, pair.on_ram.layer);
    pair.hand_over(kept.attended, saved.attended, hidden);

    pair.run("out_residual_forward", vram::out_residual_forward, table.out_residual_forward);
    pair.compare("middle", saved.middle, kept.middle, hidden, 1);

    pair.run("norm_geglu_forward", vram::norm_geglu_forward, table.norm_geglu_forward);
    pair.compare("inverse2", saved.inverse2, kept.inverse2, rows, 1e-5);
    pair.compare("gate_up", saved.gate_up, kept.gate_up, 2 * inner, 2);
    pair.compare("activated", work.activated, host.activated, inner, 4);
    pair.check_zeros("activated", work.activated, inner);

    pair.run("down_residual_forward", vram::down_residual_forward, table.down_residual_forward);
    pair.compare("output", pair.on_vram.output.data(), pair.on_ram.output.data(), hidden, 1);
    std::vector<float> const past = to_float(pair.download(pair.on_vram.output.data() + pair.active() * hidden,
                                                           (pair.columns.view.capacity - pair.active()) * hidden));
    check(name + " output past the active rows", native_test::all_poison(past));

    // RAM's copy of the next values is made from the device's, which holds a gradient where RAM holds another part.
    pair.run("down_residual_backward", vram::down_residual_backward, table.down_residual_backward);
    pair.check_zeros("gradient", pair.on_vram.gradient.data(), hidden);
    pair.compare("activated again", work.activated, host.activated, inner, 1);
    pair.compare("gate_up gradient", work.wide, host.wide, 2 * inner, 2);
    pair.check_zeros("gate_up gradient", work.wide, 2 * inner);
    pair.compare_gradient(5, 1);

    pair.run("norm_geglu_backward", vram::norm_geglu_backward, table.norm_geglu_backward);
    pair.compare("gradient of middle", pair.on_vram.gradient.data(), pair.on_ram.values.gradient.data(), hidden, 2);
    pair.check_zeros("gradient of middle", pair.on_vram.gradient.data(), hidden);
    pair.compare_gradient(3, 1);
    pair.compare_gradient(4, 1);

    pair.run("out_residual_backward", vram::out_residual_backward, table.out_residual_backward);
    pair.compare("attention's gradient", work.delta, host.delta, hidden, 1);
    pair.compare_gradient(2, 1);

    pair.on_ram.device.run(table.attention_backward, pair.on_ram.layer);
    pair.hand_over(host.wide, work.wide, 3 * hidden);

    pair.run("norm_qkv_backward", vram::norm_qkv_backward, table.norm_qkv_backward);
    pair.compare("gradient of input", pair.on_vram.gradient.data(), pair.on_ram.values.gradient.data(), hidden, 3);
    pair.check_zeros("gradient of input", pair.on_vram.gradient.data(), hidden);
    pair.compare_gradient(0, 2);
    pair.compare_gradient(1, 2);
    check(name + " guards", pair.on_vram.guarded());
}

constexpr vram_operation forward_k[] = {vram::norm_qkv_forward, vram::attention_forward, vram::out_residual_forward,
                                        vram::norm_geglu_forward, vram::down_residual_forward};
constexpr vram_operation backward_k[] = {vram::down_residual_backward, vram::norm_geglu_backward,
                                         vram::out_residual_backward, vram::attention_backward,
                                         vram::norm_qkv_backward};

void run_whole(vram_block& block) {
    for (vram_operation operation : forward_k)
        run("forward", operation, block.layer);
    // nothing of the workspace may outlive the block's forward pass
    block.workspace.poison();
    for (vram_operation operation : backward_k)
        run("backward", operation, block.layer);
}

/** All ten operations in a row, with attention's own. */
void test_whole(std::string const& name, block_extents const& extents) {
    block_pair pair(name + " whole", mixed_shapes(), extents);
    uform_operations_t const& table = ram_device::operations();
    for (auto operation :
         {table.norm_qkv_forward, table.attention_forward, table.out_residual_forward, table.norm_geglu_forward,
          table.down_residual_forward, table.down_residual_backward, table.norm_geglu_backward,
          table.out_residual_backward, table.attention_backward, table.norm_qkv_backward})
        pair.on_ram.device.run(operation, pair.on_ram.layer);
    run_whole(pair.on_vram);

    vram_block again(pair.columns, extents, pair.values);
    run_whole(again);
    std::size_t const values = pair.used() * extents.hidden;
    auto const bits = [&](device_array<bf16> const& of) { return pair.download(of.data(), values); };
    bool same = same_bits(bits(pair.on_vram.output), bits(again.output)) &&
                same_bits(bits(pair.on_vram.gradient), bits(again.gradient));
    for (std::size_t i = 0; i != weights_k; ++i)
        same = same && same_bits(pair.on_vram.gradients[i]->download(), again.gradients[i]->download());
    check(name + " whole twice the same bits", same);

    pair.compare("output", pair.on_vram.output.data(), pair.on_ram.output.data(), extents.hidden, 8);
    // A gradient of the whole block passes the values that forward rounded (normed, projected, rotated, probabilities,
    // attended, mid, normed, gated, product) and then those of backward, one for each of seven.
    pair.compare("gradient", pair.on_vram.gradient.data(), pair.on_ram.values.gradient.data(), extents.hidden, 16);
    for (std::size_t i = 0; i != weights_k; ++i)
        pair.compare_gradient(i, 16);
    check(name + " whole guards", pair.on_vram.guarded());
}

/** No columns at all: nothing is touched. */
void test_empty(block_extents const& extents) {
    block_pair pair("empty", mixed_shapes(), extents);
    pair.on_vram.layer.columns.active = 0;
    for (vram_operation operation : {vram::norm_qkv_forward, vram::out_residual_forward, vram::norm_geglu_forward,
                                     vram::down_residual_forward, vram::down_residual_backward,
                                     vram::norm_geglu_backward, vram::out_residual_backward, vram::norm_qkv_backward})
        run("empty", operation, pair.on_vram.layer);
    bool same = true;
    for (std::size_t i = 0; i != weights_k; ++i)
        same = same && same_bits(pair.on_vram.gradients[i]->download(), pair.values.gradients[i]);
    check("empty leaves gradients", same);
}

/* ------------------------------------------------------------------------------------------------------- timings */

/** Goes on with the same values: to draw so many would take longer than what is timed. */
void repeat(std::vector<float>& values, std::size_t count) {
    std::size_t const period = values.size();
    values.resize(count);
    for (std::size_t i = period; i < count; ++i)
        values[i] = values[i - period];
}

void bench(std::uint32_t columns, block_extents const& extents, std::uint32_t length) {
    columns_fixture host(equal_segments(columns / length, length));
    block_pair::expanded(host);
    block_values values(extents, 4096);
    for (std::vector<float>* one : {&values.input, &values.gradient})
        repeat(*one, host.used() * extents.hidden);
    vram_block block(host, extents, values);
    run_whole(block);
    for (vram_operation operation : forward_k)
        run("forward", operation, block.layer);

    double const rows = host.used(), hidden = double(extents.hidden), inner = double(extents.inner);
    double const qkv = 6 * rows * hidden * hidden, out = 2 * rows * hidden * hidden, up = 4 * rows * hidden * inner,
                 down = 2 * rows * hidden * inner, attention = 4 * rows * length * hidden;
    struct timed {
        char const* name;
        vram_operation operation;
        double operations;
    };
    timed const all[] = {{"norm_qkv_forward", vram::norm_qkv_forward, qkv},
                         {"attention_forward", vram::attention_forward, attention},
                         {"out_residual_forward", vram::out_residual_forward, out},
                         {"norm_geglu_forward", vram::norm_geglu_forward, up},
                         {"down_residual_forward", vram::down_residual_forward, down},
                         {"down_residual_backward", vram::down_residual_backward, 2 * down},
                         {"norm_geglu_backward", vram::norm_geglu_backward, 2 * up},
                         {"out_residual_backward", vram::out_residual_backward, 2 * out},
                         {"attention_backward", vram::attention_backward, 2.5 * attention},
                         {"norm_qkv_backward", vram::norm_qkv_backward, 2 * qkv}};
    stopwatch watch;
    std::string const shape = std::string("h").append(std::to_string(extents.hidden));
    double sum = 0;
    for (timed const& one : all) {
        double const time = watch.milliseconds([&] { require(one.operation(stream(), &block.layer), one.name); });
        sum += time;
        std::printf("bench %s %s %.4f ms %.1f TFLOP/s\n", shape.c_str(), one.name, time, one.operations / (time * 1e9));
    }
    std::printf("bench %s block of %u columns, segments of %u: %.4f ms, memory saved %.0f MB, workspace %.0f MB\n",
                shape.c_str(), host.used(), length, sum, double(block.saved.bytes()) * 1e-6,
                double(block.workspace.bytes()) * 1e-6);
}

std::string class_name(int gpu_class) { return std::string("class ").append(std::to_string(gpu_class)); }

} // namespace

int main(int count, char** arguments) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    uform::vram::stream& on = uform::vram::stream::of(stream());
    std::vector<int> classes{on.gpu_class};
    if (on.gpu_class != uform_gpu_class_ampere_k)
        classes.push_back(uform_gpu_class_ampere_k);
    block_extents const small{128, 192}, odd{192, 320};
    for (int gpu_class : classes) {
        int const own = std::exchange(on.gpu_class, gpu_class);
        test_operations(class_name(gpu_class).append(" h128"), small);
        test_operations(class_name(gpu_class).append(" h192"), odd);
        on.gpu_class = own;
    }
    test_empty(small);
    for (int gpu_class : classes) {
        int const own = std::exchange(on.gpu_class, gpu_class);
        test_whole(class_name(gpu_class), odd);
        on.gpu_class = own;
    }
    if (wants_bench(count, arguments)) {
        bench(65536, {512, 1408}, 256);
        bench(65536, {768, 2048}, 256);
        bench(32768, {1024, 2816}, 256);
    }
    return native_test::report();
}
