// Sums and gathers among the devices of a process: several of one GPU, and several GPUs where there are.
#include <memory>
#include <utility>

#include "tests/gpu/native/gpu_check.h"

using namespace gpu_test;
using namespace uform;

namespace {

template <typename value_at> using buffers_of = std::vector<std::unique_ptr<device_array<value_at>>>;

template <typename value_at>
buffers_of<value_at> make_buffers(std::vector<std::int32_t> const& indices, std::size_t count,
                                  std::vector<std::vector<value_at>> const& contents) {
    buffers_of<value_at> buffers;
    for (std::size_t place = 0; place != indices.size(); ++place) {
        buffers.push_back(std::make_unique<device_array<value_at>>(count, indices[place]));
        if (!contents.empty())
            buffers.back()->upload(contents[place]);
    }
    return buffers;
}

template <typename value_at>
std::vector<std::vector<value_at>> random_contents(std::size_t devices, std::size_t count) {
    random_values random(41);
    std::vector<std::vector<value_at>> contents;
    for (std::size_t place = 0; place != devices; ++place) {
        std::vector<float> const values = random.normal(count);
        contents.emplace_back(values.begin(), values.end());
    }
    return contents;
}

template <typename value_at>
void test_sum(std::string const& name, std::vector<std::int32_t> const& indices, std::size_t count, bool bounced,
              uform_status_t (*operation)(uform_stream_t* const*, value_at* const*, std::uint32_t, std::uint64_t)) {
    device_set const devices(indices);
    std::uint32_t const many = static_cast<std::uint32_t>(indices.size());
    void* bounce = nullptr;
    if (bounced)
        for (std::uint32_t place = 0; place != many; ++place) { // the stream gives it back
            require(cudaMalloc(&bounce, vram::bounce_bytes_k), "cudaMalloc");
            vram::stream& on = vram::stream::of(devices.stream(place));
            require(cudaFree(std::exchange(on.bounce, bounce)), "cudaFree");
        }
    auto const contents = random_contents<value_at>(many, count);
    auto const buffers = make_buffers<value_at>(indices, count, contents);
    std::vector<value_at*> pointers;
    for (auto const& one : buffers)
        pointers.push_back(one->data());
    require(operation(devices.streams(), pointers.data(), many, count), name.c_str());
    devices.synchronize();
    std::vector<value_at> sums = contents[0];
    for (std::size_t place = 1; place != many; ++place)
        for (std::size_t i = 0; i != count; ++i)
            sums[i] += contents[place][i];
    bool right = true;
    for (auto const& one : buffers)
        right = right && same_bits(one->download(), sums) && one->guarded();
    check(name + " " + std::to_string(many) + " x " + std::to_string(count) + (bounced ? " bounced" : ""), right);
}

void test_gather(std::vector<std::int32_t> const& indices, std::size_t count, bool in_place) {
    device_set const devices(indices);
    std::uint32_t const many = static_cast<std::uint32_t>(indices.size());
    auto const contents = random_contents<float>(many, count);
    auto const from = make_buffers<float>(indices, count, contents),
               to = make_buffers<float>(indices, count * many, {});
    std::vector<void const*> sources;
    std::vector<void*> targets;
    std::vector<float> expected;
    for (std::uint32_t place = 0; place != many; ++place) {
        targets.push_back(to[place]->data());
        sources.push_back(from[place]->data());
        expected.insert(expected.end(), contents[place].begin(), contents[place].end());
        if (in_place) {
            float* const own = to[place]->data() + place * count;
            require(cudaSetDevice(indices[place]), "cudaSetDevice");
            require(cudaMemcpy(own, from[place]->data(), count * sizeof(float), cudaMemcpyDefault), "cudaMemcpy");
            require(cudaDeviceSynchronize(), "cudaMemcpy");
            sources.back() = own;
        }
    }
    require(vram::gather(devices.streams(), sources.data(), targets.data(), many, count * sizeof(float)), "gather");
    devices.synchronize();
    bool right = true;
    for (auto const& one : to)
        right = right && same_bits(one->download(), expected) && one->guarded();
    check("gather " + std::to_string(many) + " x " + std::to_string(count) + (in_place ? " in place" : ""), right);
}

/** Work before an exchange is seen by it, and it is seen by work after, whichever stream each is on. */
void test_order(std::vector<std::int32_t> const& indices) {
    constexpr std::size_t count = std::size_t(1) << 22;
    device_set const devices(indices);
    std::uint32_t const many = static_cast<std::uint32_t>(indices.size());
    auto const contents = random_contents<float>(many, count);
    auto const staged = make_buffers<float>(indices, count, contents),
               buffers = make_buffers<float>(indices, count, {});
    auto const after = make_buffers<float>(indices, count, {});
    std::vector<float*> pointers;
    for (auto const& one : buffers)
        pointers.push_back(one->data());
    auto const copy = [&](std::uint32_t place, void* to, void const* from) {
        vram::stream const& on = vram::stream::of(devices.stream(place));
        require(cudaSetDevice(on.device), "cudaSetDevice");
        require(cudaMemcpyAsync(to, from, count * sizeof(float), cudaMemcpyDefault, on.handle), "cudaMemcpyAsync");
    };
    for (int round = 0; round != 5; ++round) {
        for (std::uint32_t place = 0; place != many; ++place)
            copy(place, pointers[place], staged[place]->data());
        require(vram::reduce_sum(devices.streams(), pointers.data(), many, count), "reduce_sum");
        for (std::uint32_t place = 0; place != many; ++place)
            copy(place, after[place]->data(), pointers[place]);
    }
    devices.synchronize();
    std::vector<float> sums = contents[0];
    for (std::size_t place = 1; place != many; ++place)
        for (std::size_t i = 0; i != count; ++i)
            sums[i] += contents[place][i];
    bool right = true;
    for (auto const& one : after)
        right = right && same_bits(one->download(), sums);
    check("exchange in order among " + std::to_string(many), right);
}

void bench(std::vector<std::int32_t> const& indices) {
    device_set const devices(indices);
    std::uint32_t const many = static_cast<std::uint32_t>(indices.size());
    constexpr std::size_t count = 40'000'000;
    auto const buffers = make_buffers<float>(indices, count, {});
    std::vector<float*> pointers;
    for (auto const& one : buffers) {
        require(cudaMemset(one->data(), 0x33, one->bytes()), "cudaMemset");
        pointers.push_back(one->data());
    }
    devices.synchronize();
    std::vector<float> times;
    for (int i = 0; i != 12; ++i) {
        vram::stream const& on = vram::stream::of(devices.stream());
        cudaEvent_t begin{}, end{};
        require(cudaSetDevice(on.device), "cudaSetDevice");
        require(cudaEventCreate(&begin), "cudaEventCreate");
        require(cudaEventCreate(&end), "cudaEventCreate");
        require(cudaEventRecord(begin, on.handle), "cudaEventRecord");
        require(vram::reduce_sum(devices.streams(), pointers.data(), many, count), "reduce_sum");
        require(cudaSetDevice(on.device), "cudaSetDevice");
        require(cudaEventRecord(end, on.handle), "cudaEventRecord");
        devices.synchronize();
        float time = 0;
        require(cudaEventElapsedTime(&time, begin, end), "cudaEventElapsedTime");
        times.push_back(time);
        cudaEventDestroy(begin);
        cudaEventDestroy(end);
    }
    std::sort(times.begin(), times.end());
    double const time = double(times[times.size() / 2]);
    std::printf("bench reduce_sum of %zu floats among %u %.4f ms %.0f GB/s of buffers\n", count, many, time,
                double(count) * sizeof(float) * many / (time * 1e-3) * 1e-9);
}

using device_sets = std::vector<std::vector<std::int32_t>>;

void check_all(device_sets const& sets) {
    for (auto const& indices : sets) {
        for (std::size_t values : {1u, 3u, 64u, 1000u, 100003u}) {
            test_sum<float>("reduce_sum", indices, values, false, vram::reduce_sum);
            test_sum<float>("reduce_sum", indices, values, true, vram::reduce_sum);
            test_sum<double>("reduce_terms", indices, values, false, vram::reduce_terms);
            test_gather(indices, values, values % 2 == 0);
        }
        test_order(indices);
    }
    test_sum<float>("reduce_sum", {0, 0, 0}, 9'000'001, true, vram::reduce_sum); // more than one bounce
}

} // namespace

int main(int count, char** arguments) {
    int gpus = 0;
    require(cudaGetDeviceCount(&gpus), "cudaGetDeviceCount");
    device_sets sets = {{0}, {0, 0}, {0, 0, 0}, {0, 0, 0, 0}};
    if (gpus > 1)
        sets.insert(sets.end(), {{0, 1}, {1, 0, 1}});
    if (wants_checks(count, arguments))
        check_all(sets);
    if (wants_bench(count, arguments))
        for (auto const& indices : sets)
            if (indices.size() == 2)
                bench(indices);
    return native_test::report();
}
