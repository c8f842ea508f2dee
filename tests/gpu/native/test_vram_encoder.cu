/**
 *  A block of the encoder against a naive one in double, operation by operation and whole; `--bench` times each at the
 *  real shapes, `--reference` holds the naive block against RAM and needs no GPU.
 */
#include <memory>
#include <utility>

#include "tests/gpu/native/gpu_check.h"
#include "tests/gpu/native/naive_block.h"
#include "vram/layer.h"

namespace {

using namespace gpu_test;
namespace vram = uform::vram;

using vram_operation = uform_status_t (*)(uform_stream_t*, uform_layer_t const*);

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

bool is_gain(std::size_t weight) { return weight == norm1_k || weight == norm2_k; }

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

template <typename value_at>
naive_block<value_at> made_naive(columns_fixture const& columns, block_extents const& extents,
                                 block_values const& values) {
    return {columns, extents.hidden, extents.inner, values.weights, values.gradients, values.input, values.gradient};
}

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

/** One test's name, the device's block and the naive ones, and how their parts are compared. */
struct compared_blocks {
    std::string name;
    columns_fixture columns;
    block_extents extents;
    block_values values;
    naive_block<double> exact;
    naive_block<float> naive;
    vram_block on_vram;

    compared_blocks(std::string name, std::vector<columns_fixture::shape> const& shapes, block_extents extents)
        : name(std::move(name)), columns(shapes), extents(extents), values(extents, columns.used()),
          exact(made_naive<double>(expanded(columns), extents, values)),
          naive(made_naive<float>(columns, extents, values)), on_vram(columns, extents, values) {}

    std::size_t used() const { return columns.used(); }
    std::size_t active() const { return columns.view.active; }

    /** Runs one operation of all three. */
    void run(char const* operation, vram_operation on_device, void (naive_block<double>::*exactly)(),
             void (naive_block<float>::*naively)()) {
        (exact.*exactly)();
        (naive.*naively)();
        gpu_test::run(operation, on_device, on_vram.layer);
    }

    /** Compares the rows in use; the naive blocks go on from what the device has. */
    template <typename value_at>
    void compare(char const* part, value_at const* got, std::vector<double>& wanted, std::vector<float>& rough) {
        std::vector<float> const values = download_floats(got, wanted.size());
        check_close(name + " " + part, values, rough, wanted);
        wanted.assign(values.begin(), values.end());
        rough = values;
    }

    /** Sums in float32, of which a naive implementation keeps all digits. */
    void compare_inverses(char const* part, float const* got, std::vector<double>& wanted, std::vector<float>& rough) {
        std::vector<float> const values = download(got, wanted.size());
        check(name + " " + part, relative_error(values, wanted), 1e-5);
        wanted.assign(values.begin(), values.end());
        rough = values;
    }

    /** Compares what was added to a parameter's gradient. */
    void compare_gradient(std::size_t weight) {
        std::vector<float> const& before = values.gradients[weight];
        std::vector<float> got = on_vram.gradients[weight]->download(), rough = naive.gradients[weight];
        std::vector<double> wanted = exact.gradients[weight];
        for (std::size_t i = 0; i != got.size(); ++i) {
            got[i] = static_cast<float>(double(got[i]) - double(before[i]));
            rough[i] = static_cast<float>(double(rough[i]) - double(before[i]));
            wanted[i] -= double(before[i]);
        }
        check_close(name + " " + weight_names_k[weight] + " gradient", got, rough, wanted);
    }

    /** Rows past the count feed sums over all active rows. */
    void check_zeros(char const* part, bf16 const* rows, std::size_t width) {
        std::vector<float> const slack = download_floats(rows + used() * width, (active() - used()) * width);
        check(name + " " + part + " zeros past the count",
              std::all_of(slack.begin(), slack.end(), [](float value) { return value == 0; }));
    }

    /** Makes the device go on from what the naive block has, zeros past the count. */
    void hand_over(std::vector<float> values, bf16* to, std::size_t width) const {
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
    static std::vector<float> download_floats(bf16 const* from, std::size_t count) {
        return to_float(download(from, count));
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

/** Each operation from the same values. */
void test_operations(std::string const& name, block_extents const& extents) {
    compared_blocks blocks(name, mixed_shapes(), extents);
    naive_block<double>& exact = blocks.exact;
    naive_block<float>& naive = blocks.naive;
    vram::layer_saved const saved = vram::layer_saved::of(blocks.on_vram.layer);
    vram::layer_workspace const work = vram::layer_workspace::of(blocks.on_vram.layer);
    std::size_t const hidden = extents.hidden, inner = extents.inner;
    bf16* const gradient = blocks.on_vram.gradient.data();

#define RUN(operation)                                                                                                 \
    blocks.run(#operation, vram::operation, &naive_block<double>::operation, &naive_block<float>::operation)

    RUN(norm_qkv_forward);
    blocks.compare_inverses("inverse1", saved.inverse1, exact.inverse1, naive.inverse1);
    blocks.compare("qkv", saved.qkv, exact.qkv, naive.qkv);

    naive.attention_forward();
    exact.attention.attended.assign(naive.attention.attended.begin(), naive.attention.attended.end());
    blocks.hand_over(naive.attention.attended, saved.attended, hidden);

    RUN(out_residual_forward);
    blocks.compare("middle", saved.middle, exact.middle, naive.middle);

    RUN(norm_geglu_forward);
    blocks.compare_inverses("inverse2", saved.inverse2, exact.inverse2, naive.inverse2);
    blocks.compare("gate_up", saved.gate_up, exact.gate_up, naive.gate_up);
    blocks.compare("activated", saved.activated, exact.activated, naive.activated);
    blocks.check_zeros("activated", saved.activated, inner);

    RUN(down_residual_forward);
    blocks.compare("output", blocks.on_vram.output.data(), exact.output, naive.output);
    std::vector<float> const past = blocks.download_floats(blocks.on_vram.output.data() + blocks.active() * hidden,
                                                           (blocks.columns.view.capacity - blocks.active()) * hidden);
    check(name + " output past the active rows", native_test::all_poison(past));

    RUN(down_residual_backward);
    blocks.check_zeros("gradient", gradient, hidden);
    blocks.compare("gate_up gradient", work.wide, exact.wide, naive.wide);
    blocks.check_zeros("gate_up gradient", work.wide, 2 * inner);
    blocks.compare_gradient(down_k);

    RUN(norm_geglu_backward);
    blocks.compare("normed middle", work.normed, exact.normed, naive.normed);
    blocks.check_zeros("normed middle", work.normed, hidden);
    blocks.compare("gradient of middle", gradient, exact.gradient, naive.gradient);
    blocks.check_zeros("gradient of middle", gradient, hidden);
    blocks.compare_gradient(norm2_k);
    blocks.compare_gradient(up_k);

    RUN(out_residual_backward);
    blocks.compare("attention's gradient", work.delta, exact.delta, naive.delta);
    blocks.compare_gradient(out_k);

    naive.attention_backward();
    std::vector<float> const& of_qkv = naive.attention.qkv_gradient;
    exact.attention.qkv_gradient.assign(of_qkv.begin(), of_qkv.end());
    blocks.hand_over(of_qkv, work.wide, 3 * hidden);

    RUN(norm_qkv_backward);
    blocks.compare("normed input", work.normed, exact.normed, naive.normed);
    blocks.check_zeros("normed input", work.normed, hidden);
    blocks.compare("gradient of input", gradient, exact.gradient, naive.gradient);
    blocks.check_zeros("gradient of input", gradient, hidden);
    blocks.compare_gradient(norm1_k);
    blocks.compare_gradient(qkv_k);
    check(name + " guards", blocks.on_vram.guarded());
#undef RUN
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
    compared_blocks blocks(name + " whole", mixed_shapes(), extents);
    run_whole(blocks.on_vram);
    blocks.exact.forward(), blocks.exact.backward();
    blocks.naive.forward(), blocks.naive.backward();

    vram_block again(blocks.columns, extents, blocks.values);
    run_whole(again);
    std::size_t const values = blocks.used() * extents.hidden;
    auto const bits = [&](device_array<bf16> const& of) { return blocks.download(of.data(), values); };
    bool same = same_bits(bits(blocks.on_vram.output), bits(again.output)) &&
                same_bits(bits(blocks.on_vram.gradient), bits(again.gradient));
    for (std::size_t i = 0; i != weights_k; ++i)
        same = same && same_bits(blocks.on_vram.gradients[i]->download(), again.gradients[i]->download());
    check(name + " whole twice the same bits", same);

    blocks.compare("output", blocks.on_vram.output.data(), blocks.exact.output, blocks.naive.output);
    blocks.compare("gradient", blocks.on_vram.gradient.data(), blocks.exact.gradient, blocks.naive.gradient);
    for (std::size_t i = 0; i != weights_k; ++i)
        blocks.compare_gradient(i);
    check(name + " whole guards", blocks.on_vram.guarded());
}

/** The naive block itself: in double it is what RAM computes, which the parity tests hold against the oracle. */
void test_reference(std::string const& name, block_extents const& extents) {
    columns_fixture columns(mixed_shapes());
    block_values const values(extents, columns.used());
    naive_block<double> exact = made_naive<double>(expanded(columns), extents, values);
    exact.forward(), exact.backward();
    ram_block on_ram(columns, extents, values);
    uform_operations_t const& table = ram_device::operations();
    for (auto operation :
         {table.norm_qkv_forward, table.attention_forward, table.out_residual_forward, table.norm_geglu_forward,
          table.down_residual_forward, table.down_residual_backward, table.norm_geglu_backward,
          table.out_residual_backward, table.attention_backward, table.norm_qkv_backward})
        on_ram.device.run(operation, on_ram.layer);
    check(name + " RAM output", relative_error(on_ram.output, exact.output), 1e-5);
    check(name + " RAM gradient", relative_error(on_ram.values.gradient, exact.gradient), 1e-4);
    for (std::size_t i = 0; i != weights_k; ++i)
        check(name + " RAM " + weight_names_k[i] + " gradient",
              relative_error(on_ram.values.gradients[i], exact.gradients[i]), 1e-4);
}

/** No columns at all: nothing is touched. */
void test_empty(block_extents const& extents) {
    columns_fixture columns(mixed_shapes());
    block_values const values(extents, columns.used());
    vram_block block(expanded(columns), extents, values);
    block.layer.columns.active = 0;
    for (vram_operation operation : {vram::norm_qkv_forward, vram::out_residual_forward, vram::norm_geglu_forward,
                                     vram::down_residual_forward, vram::down_residual_backward,
                                     vram::norm_geglu_backward, vram::out_residual_backward, vram::norm_qkv_backward})
        run("empty", operation, block.layer);
    bool same = true;
    for (std::size_t i = 0; i != weights_k; ++i)
        same = same && same_bits(block.gradients[i]->download(), values.gradients[i]);
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
    expanded(host);
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

constexpr block_extents small_k{128, 192}, odd_k{192, 320};

void check_reference() {
    test_reference("h128", small_k);
    test_reference("h192", odd_k);
}

void check_all() {
    uform::vram::stream& on = uform::vram::stream::of(stream());
    std::vector<int> classes{on.gpu_class};
    if (on.gpu_class != uform_gpu_class_ampere_k)
        classes.push_back(uform_gpu_class_ampere_k);
    for (int gpu_class : classes) {
        int const own = std::exchange(on.gpu_class, gpu_class);
        test_operations(class_name(gpu_class).append(" h128"), small_k);
        test_operations(class_name(gpu_class).append(" h192"), odd_k);
        on.gpu_class = own;
    }
    test_empty(small_k);
    for (int gpu_class : classes) {
        int const own = std::exchange(on.gpu_class, gpu_class);
        test_whole(class_name(gpu_class), odd_k);
        on.gpu_class = own;
    }
}

} // namespace

int main(int count, char** arguments) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    if (wants_checks(count, arguments))
        check_reference();
    if (asked(count, arguments, "--reference"))
        return native_test::report();
    if (wants_checks(count, arguments))
        check_all();
    if (wants_bench(count, arguments)) {
        bench(65536, {512, 1408}, 256);
        bench(65536, {768, 2048}, 256);
        bench(32768, {1024, 2816}, 256);
    }
    return native_test::report();
}
