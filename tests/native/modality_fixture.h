/** A host of the tests' own for a modality plugin: its staging, and its pass over the columns on a RAM device. */
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <uform/plugin.h>

#include "tests/native/check.h"
#include "tests/native/ram_device.h"

struct uform_host_t {
    std::string message;
    std::vector<uform_parameter_request_t> parameters;
    size_t staging = 0;
    size_t workspace = 0;
    size_t columns_capacity = 0;
};

namespace native_test {

inline uform_status_t fail(uform_host_t* host, uform_status_t status, char const* message) {
    host->message = message;
    return status;
}

inline uform_status_t reserve(size_t& total, size_t bytes, size_t* offset) {
    *offset = total;
    total += (bytes + 63) / 64 * 64;
    return uform_status_success_k;
}

inline uform_declare_t declare_of(uform_host_t& host) {
    uform_declare_t declare{};
    declare.host = &host;
    declare.operations = uform_operations_ram();
    declare.fail = fail;
    declare.parameter = [](uform_host_t* to, uform_parameter_request_t const* asked, uint32_t* handle) {
        *handle = static_cast<uint32_t>(to->parameters.size());
        to->parameters.push_back(*asked);
        return uform_status_success_k;
    };
    declare.staging = [](uform_host_t* to, size_t bytes, size_t* offset) {
        return reserve(to->staging, bytes, offset);
    };
    declare.column_staging = [](uform_host_t* to, uint32_t, size_t bytes, size_t* offset) {
        return reserve(to->staging, bytes * to->columns_capacity, offset);
    };
    declare.workspace = [](uform_host_t* to, size_t bytes, size_t* offset) {
        return reserve(to->workspace, bytes, offset);
    };
    return declare;
}

constexpr uint32_t hidden_k = 64;

inline uform_run_t run_of(uint32_t row_columns, uint32_t columns, bool training = true) {
    uform_run_t run{};
    run.hidden = hidden_k;
    run.devices = run.world_devices = 1;
    run.row_columns = row_columns;
    run.columns_capacity = columns;
    run.training = training;
    return run;
}

/** A modality at work for one device, with the staging that it declared. */
class modality {
public:
    modality(uform_modality_plugin_t const& plugin, void* config, uint32_t row_columns, uint32_t columns,
             bool training = true)
        : plugin_(plugin), run_(run_of(row_columns, columns, training)), columns_(columns) {
        host_.columns_capacity = columns;
        uform_declare_t const declare = declare_of(host_);
        uint32_t enabled = 0;
        CHECK(plugin.derive(config, &run_, &declare, &enabled) == uform_status_success_k && enabled == 1);
        CHECK(plugin.create(config, &run_, &declare, &self_) == uform_status_success_k);
        staging_.assign(host_.staging, 0xEE);
        codes_.assign(columns, 0xEEEE);
    }
    ~modality() { plugin_.destroy(self_); }
    modality(modality const&) = delete;
    modality& operator=(modality const&) = delete;

    struct item {
        uform_measure_t measure{};
        uform_segment_t segment{};
        uint32_t before = 0;
    };

    /** The message where the content is refused. */
    std::string measure(uform_content_t const& content, uint32_t limit, uform_measure_t& measured) const {
        char message[512] = "";
        measured = {};
        uform_status_t const status = plugin_.measure(self_, &content, limit, &measured, message, sizeof(message));
        CHECK((status == uform_status_success_k) == (message[0] == 0));
        return message;
    }

    /** Measures and fills one more content. */
    item add(uform_content_t const& content, uint32_t limit) {
        item added;
        CHECK(measure(content, limit, added.measure).empty());
        CHECK(added.measure.columns <= limit);
        added.segment.first = first_;
        added.segment.columns = added.segment.pooled = 1 + added.measure.columns;
        added.segment.modality = static_cast<uint16_t>(plugin_.modality);
        added.segment.axes = added.measure.axes;
        std::copy_n(added.measure.extents, UFORM_AXES, added.segment.extents);
        added.before = before_;
        uform_fill_t const fill{
            &content, &added.measure, &added.segment, codes_.data() + first_, staging_.data(), before_, 0};
        CHECK(first_ + added.segment.columns <= columns_);
        CHECK(plugin_.fill(self_, &fill) == uform_status_success_k);
        first_ += added.segment.columns;
        before_ += added.measure.columns;
        return added;
    }

    void cover(item const& of, std::vector<uint32_t> const& places, std::vector<uint8_t> const& actions,
               std::vector<uint8_t> const& random_bytes) {
        uform_cover_t const cover{&of.segment,
                                  codes_.data() + of.segment.first,
                                  staging_.data(),
                                  of.before,
                                  covered_,
                                  0,
                                  places.data(),
                                  actions.data(),
                                  random_bytes.data(),
                                  static_cast<uint32_t>(places.size())};
        CHECK(plugin_.cover(self_, &cover) == uform_status_success_k);
        covered_ += cover.count;
    }

    void finish() { CHECK(plugin_.finish(self_, 0, staging_.data(), before_, covered_) == uform_status_success_k); }

    void* self() const { return self_; }
    uform_run_t const& run() const { return run_; }
    uform_host_t& host() { return host_; }
    uform_modality_plugin_t const& plugin() const { return plugin_; }
    std::vector<uint16_t> const& codes() const { return codes_; }
    uint8_t const* staging() const { return staging_.data(); }
    uint32_t used() const { return first_; }
    uint32_t covered() const { return covered_; }

    /** Values of the staging part declared at `place`, all of them before it having `bytes` bytes. */
    template <typename value_at> value_at const* staged(std::vector<size_t> const& bytes) const {
        size_t offset = 0;
        for (size_t part : bytes)
            offset += (part + 63) / 64 * 64;
        return reinterpret_cast<value_at const*>(staging_.data() + offset);
    }

private:
    uform_modality_plugin_t const& plugin_;
    uform_run_t run_;
    uint32_t columns_;
    uform_host_t host_;
    void* self_ = nullptr;
    std::vector<uint8_t> staging_;
    std::vector<uint16_t> codes_;
    uint32_t first_ = 0, before_ = 0, covered_ = 0;
};

/** A pass over one modality's columns, with parameters at random and memory that bites. */
struct pass_fixture {
    modality& of;
    columns_fixture columns;
    std::vector<std::vector<float>> parameters, gradients;
    std::vector<void const*> weights;
    std::vector<float*> gradient_pointers;
    std::vector<float> states, states_gradient;
    poisoned_memory workspace;
    uform_pass_t pass{};

    pass_fixture(ram_device const& device, modality& of, std::vector<columns_fixture::shape> const& shapes)
        : of(of), columns(shapes), workspace(of.host().workspace) {
        random_values random(3);
        for (uform_parameter_request_t const& one : of.host().parameters) {
            parameters.push_back(random.normal(size_t(one.rows) * one.columns));
            gradients.emplace_back(size_t(one.rows) * one.columns, 0.f);
        }
        for (size_t place = 0; place != parameters.size(); ++place) {
            weights.push_back(parameters[place].data());
            gradient_pointers.push_back(gradients[place].data());
        }
        std::copy_n(of.codes().begin(), of.used(), columns.codes.begin());
        states.assign(size_t(columns.view.capacity) * hidden_k, poison());
        states_gradient = random.normal(size_t(columns.used()) * hidden_k, 1, states.size());
        pass.run = &of.run();
        pass.operations = &device.operations();
        pass.stream = device.stream();
        pass.backward = 1;
        pass.columns = columns.view;
        pass.staging = of.staging();
        pass.workspace = static_cast<uint8_t*>(workspace.data());
        pass.weights = weights.data();
        pass.gradients = gradient_pointers.data();
        pass.states = states.data();
        pass.states_gradient = states_gradient.data();
        device.run(device.operations().columns_expand, columns.view);
    }
};

/** Covered rows, some of them another modality's, and their loss. */
struct covered_rows {
    static constexpr uint32_t first = 2, capacity = 9;
    uint32_t count, before = 1;
    std::vector<float> rows, rows_gradient;
    float scale = 0.25f, weight = 2;
    double term = 1;
    uform_reconstruction_t taken{};

    explicit covered_rows(uint32_t count) : count(count) {
        random_values random(8);
        rows = random.normal((first + count) * hidden_k, 1, (first + capacity) * hidden_k);
        rows_gradient.assign(rows.size(), poison());
        taken = {first - before,       count + 1, capacity, &this->count, rows.data(),
                 rows_gradient.data(), &scale,    &weight,  &term,        &before};
    }

    double dot(std::vector<float> const& weights, size_t output, size_t row) const {
        double sum = 0;
        for (size_t i = 0; i != hidden_k; ++i)
            sum += double(weights[output * hidden_k + i]) * double(rows[(first + row) * hidden_k + i]);
        return sum;
    }

    bool wrote_its_own_gradient() const {
        size_t const begin = first * hidden_k, end = begin + count * hidden_k;
        return all_poison({rows_gradient.data(), begin}) && all_finite({rows_gradient.data() + begin, end - begin}) &&
               all_poison({rows_gradient.data() + end, rows_gradient.size() - end});
    }
};

} // namespace native_test
