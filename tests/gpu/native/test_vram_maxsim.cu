/** MaxSim, the pairwise losses over its similarities, and the vectors that it compares, on the GPU. */
#include <functional>
#include <limits>
#include <numeric>

#include "tests/gpu/native/gpu_check.h"

using namespace gpu_test;
namespace vram = uform::vram;

namespace {

using run_t = uform_run_of_rows_t;

/** Queries and documents among the rows of some vectors; gaps lie between them, and a run may be both. */
struct setting {
    std::string name;
    std::uint32_t width;
    std::vector<run_t> queries, documents;
    std::uint32_t rows = 0, longest = 1;
    std::vector<float> vectors; // already rounded to bfloat16
    std::uint32_t before = 0;   // values before them on the device, where a user's array may begin anywhere

    std::uint32_t query_vectors() const { return queries.empty() ? 0 : queries.back().place + queries.back().count; }
    std::uint32_t document_vectors() const {
        return documents.empty() ? 0 : documents.back().place + documents.back().count;
    }
};

void append(std::vector<run_t>& runs, std::uint32_t first, std::uint32_t count) {
    runs.push_back({first, count, runs.empty() ? 0 : runs.back().place + runs.back().count});
}

std::vector<float> unit_vectors(std::uint32_t rows, std::uint32_t width, unsigned seed) {
    std::vector<float> values = random_values(seed).normal(std::size_t(rows) * width);
    for (std::uint32_t row = 0; row != rows; ++row) {
        float* const vector = values.data() + std::size_t(row) * width;
        double const square = std::inner_product(vector, vector + width, vector, 0.0);
        for (std::uint32_t i = 0; i != width; ++i)
            vector[i] = static_cast<float>(vector[i] / std::sqrt(square));
    }
    return rounded(values);
}

/** @param query_of, document_of Lengths by number; 0 leaves it out. @param both How many documents are queries, too. */
setting make(std::string name, std::uint32_t width, std::uint32_t queries, std::uint32_t documents,
             std::function<std::uint32_t(std::uint32_t)> query_of,
             std::function<std::uint32_t(std::uint32_t)> document_of, std::uint32_t both = 0) {
    setting made{std::move(name), width, {}, {}, 0, 1, {}};
    for (std::uint32_t i = 0; i != documents; ++i) {
        std::uint32_t const count = document_of(i);
        append(made.documents, made.rows, count);
        made.longest = std::max(made.longest, count);
        if (i < both)
            append(made.queries, made.rows, std::min(count, query_of(i)));
        made.rows += count + i % 3;
    }
    for (std::uint32_t i = 0; i != queries; ++i) {
        append(made.queries, made.rows, query_of(i));
        made.rows += query_of(i) + i % 2;
    }
    made.vectors = unit_vectors(made.rows, width, 17 + documents);
    return made;
}

/** A setting on the device, with room for more than it has: nothing past the counts may be read or written. */
struct device_setting {
    device_setting(setting const& of, std::vector<float> const& coefficients_of)
        : queries_capacity(static_cast<std::uint32_t>(of.queries.size()) + 3),
          documents_capacity(static_cast<std::uint32_t>(of.documents.size()) + 5),
          query_vectors_capacity(of.query_vectors() + 37), document_vectors_capacity(of.document_vectors() + 11),
          counts(std::vector<std::uint32_t>{static_cast<std::uint32_t>(of.queries.size()), of.query_vectors(),
                                            static_cast<std::uint32_t>(of.documents.size())}),
          queries(of.queries, queries_capacity), documents(of.documents, documents_capacity),
          vectors(of.before + of.vectors.size()), similarities(std::size_t(queries_capacity) * documents_capacity),
          places(std::size_t(documents_capacity) * query_vectors_capacity), coefficients(similarities.size()),
          gradient(of.vectors.size()),
          workspace(vram::maxsim_workspace_bytes(of.width, query_vectors_capacity, documents_capacity,
                                                 document_vectors_capacity)) {
        std::vector<float> spread(similarities.size(), std::numeric_limits<float>::quiet_NaN());
        for (std::size_t q = 0; q != of.queries.size(); ++q)
            for (std::size_t d = 0; d != of.documents.size(); ++d)
                spread[q * documents_capacity + d] = coefficients_of[q * of.documents.size() + d];
        coefficients.upload(spread);
        std::vector<float> moved(of.before, std::numeric_limits<float>::quiet_NaN());
        moved.insert(moved.end(), of.vectors.begin(), of.vectors.end());
        vectors.upload(moved);
        view.width = of.width, view.vectors_capacity = of.rows, view.queries_capacity = queries_capacity;
        view.query_vectors_capacity = query_vectors_capacity, view.documents_capacity = documents_capacity;
        view.document_vectors_capacity = document_vectors_capacity, view.longest = of.longest + 1;
        view.counts = counts.data(), view.vectors = vectors.data() + of.before, view.queries = queries.data();
        view.documents = documents.data(), view.similarities = similarities.data(), view.places = places.data();
        view.coefficients = coefficients.data(), view.gradient = gradient.data();
        view.workspace = workspace.data(), view.workspace_bytes = workspace.bytes();
    }

    bool guarded() const {
        return counts.guarded() && queries.guarded() && documents.guarded() && vectors.guarded() &&
               similarities.guarded() && places.guarded() && coefficients.guarded() && gradient.guarded() &&
               workspace.guarded();
    }

    std::uint32_t queries_capacity, documents_capacity, query_vectors_capacity, document_vectors_capacity;
    device_array<std::uint32_t> counts;
    device_array<run_t> queries, documents;
    device_array<float> vectors, similarities;
    device_array<std::uint16_t> places;
    device_array<float> coefficients, gradient;
    device_array<std::uint8_t> workspace;
    uform_maxsim_t view{};
};

double dot(setting const& of, std::size_t left, std::size_t right) {
    double sum = 0;
    for (std::uint32_t i = 0; i != of.width; ++i)
        sum += double(of.vectors[left * of.width + i]) * of.vectors[right * of.width + i];
    return sum;
}

std::vector<float> random_coefficients(setting const& of) {
    std::vector<float> values = random_values(23).normal(of.queries.size() * of.documents.size(), 0.01f);
    for (std::size_t i = 0; i < values.size(); i += 3)
        values[i] = 0; // as those of pairs that are none
    return values;
}

/** What the gradient is where the matches are those found. */
std::vector<double> exact_gradient(setting const& of, std::vector<float> const& coefficients,
                                   std::function<std::uint32_t(std::size_t, std::size_t)> place_of) {
    std::vector<double> gradient(of.vectors.size(), 0);
    for (std::size_t d = 0; d != of.documents.size(); ++d)
        for (std::size_t q = 0; q != of.queries.size(); ++q) {
            double const pull = double(coefficients[q * of.documents.size() + d]) / of.queries[q].count;
            for (std::uint32_t row = 0; row != of.queries[q].count; ++row) {
                std::size_t const left = of.queries[q].first + row;
                std::size_t const right = of.documents[d].first + place_of(d, of.queries[q].place + row);
                for (std::uint32_t i = 0; i != of.width; ++i) {
                    gradient[left * of.width + i] += pull * of.vectors[right * of.width + i];
                    gradient[right * of.width + i] += pull * of.vectors[left * of.width + i];
                }
            }
        }
    return gradient;
}

/** How much smaller than the largest dot product the found ones are, and whether ties take the first. */
struct match_errors {
    double shortfall = 0;
    bool first = true;
};

match_errors compare_matches(setting const& of, std::vector<std::uint16_t> const& places, std::uint32_t stride) {
    match_errors errors;
    for (std::size_t d = 0; d != of.documents.size(); ++d)
        for (run_t const& query : of.queries)
            for (std::uint32_t row = 0; row != query.count; ++row) {
                std::uint32_t const place = places[d * stride + query.place + row];
                if (place >= of.documents[d].count)
                    return {1, false};
                double const found = dot(of, query.first + row, of.documents[d].first + place);
                for (std::uint32_t other = 0; other != of.documents[d].count; ++other) {
                    double const value = dot(of, query.first + row, of.documents[d].first + other);
                    errors.shortfall = std::max(errors.shortfall, value - found);
                    errors.first = errors.first && !(value == found && other < place);
                }
            }
    return errors;
}

void check_setting(setting const& of, ram_device const& ram) {
    std::vector<float> const coefficients = random_coefficients(of);
    device_setting gpu(of, coefficients);
    run((of.name + " forward").c_str(), vram::maxsim_forward, gpu.view);
    run((of.name + " backward").c_str(), vram::maxsim_backward, gpu.view);
    std::vector<float> const similarities = gpu.similarities.download(), gradient = gpu.gradient.download();
    std::vector<std::uint16_t> const places = gpu.places.download();

    std::vector<double> expected;
    std::vector<float> got;
    {
        std::uint32_t const counts[] = {static_cast<std::uint32_t>(of.queries.size()), of.query_vectors(),
                                        static_cast<std::uint32_t>(of.documents.size())};
        std::vector<float> values(of.queries.size() * of.documents.size());
        std::vector<std::uint16_t> found(of.documents.size() * of.query_vectors());
        uform_maxsim_t view = gpu.view;
        view.counts = counts, view.vectors = of.vectors.data(), view.queries = of.queries.data();
        view.documents = of.documents.data(), view.documents_capacity = counts[2];
        view.query_vectors_capacity = counts[1], view.similarities = values.data(), view.places = found.data();
        ram.run(ram.operations().maxsim_forward, view);
        expected = to_double(values);
        for (std::size_t q = 0; q != of.queries.size(); ++q)
            for (std::size_t d = 0; d != of.documents.size(); ++d)
                got.push_back(similarities[q * gpu.documents_capacity + d]);
    }
    check(of.name + " similarities", relative_error(got, expected), 1e-3);
    match_errors const errors = compare_matches(of, places, gpu.query_vectors_capacity);
    check(of.name + " matches", errors.shortfall, 1e-5);
    check(of.name + " the first of equal ones", errors.first);
    std::vector<double> const exact = exact_gradient(
        of, coefficients, [&](std::size_t d, std::size_t at) { return places[d * gpu.query_vectors_capacity + at]; });
    check(of.name + " gradient", relative_error(gradient, exact), 1e-3);
    check(of.name + " guarded", gpu.guarded());

    gpu.similarities.poison(), gpu.gradient.poison();
    once(how::captured, of.name.c_str(), [&] {
        require(vram::maxsim_forward(stream(), &gpu.view), "maxsim_forward");
        require(vram::maxsim_backward(stream(), &gpu.view), "maxsim_backward");
    });
    check(of.name + " twice", same_bits(gpu.gradient.download(), gradient) &&
                                  same_bits(gpu.places.download(), places) &&
                                  same_bits(gpu.similarities.download(), similarities));
}

/** Every vector of a document is the same, or comes again later: the first one has the match. */
setting make_ties() {
    setting made =
        make("ties", 64, 7, 9, [](std::uint32_t i) { return 1 + i * 5; }, [](std::uint32_t i) { return 1 + i * 40; });
    for (run_t const& document : made.documents)
        for (std::uint32_t row = 0; row != document.count; ++row)
            std::copy_n(made.vectors.begin() + (document.first + row % 3 % document.count) * 64L, 64,
                        made.vectors.begin() + (document.first + row) * 64L);
    return made;
}

/** One vector of each document is nearest to all queries: as many terms of one sum as there can be. */
setting make_hub() {
    setting made =
        make("hub", 128, 40, 6, [](std::uint32_t i) { return 1 + i; }, [](std::uint32_t i) { return 100 + i * 60; });
    for (run_t const& query : made.queries)
        for (std::uint32_t row = 0; row != query.count; ++row)
            made.vectors[(query.first + row) * 128L] = 2;
    for (run_t const& document : made.documents)
        made.vectors[(document.first + document.count / 2) * 128L] = 4;
    return made;
}

void check_maxsim(ram_device const& ram) {
    auto const constant = [](std::uint32_t count) { return [count](std::uint32_t) { return count; }; };
    auto const odd = [](std::uint32_t step, std::uint32_t most) {
        return [=](std::uint32_t i) { return 1 + i * step % most; };
    };
    check_setting(make("one", 128, 1, 1, constant(1), constant(1)), ram);
    check_setting(make("few", 8, 3, 2, odd(7, 11), odd(5, 13), 1), ram);
    check_setting(make("even", 128, 8, 16, constant(32), constant(256)), ram);
    check_setting(make("odd", 128, 37, 53, odd(13, 41), odd(37, 301), 20), ram);
    check_setting(make("narrow", 64, 37, 53, odd(13, 41), odd(37, 301), 5), ram);
    check_setting(make("wide", 200, 21, 19, odd(13, 41), odd(37, 301), 5), ram);
    check_setting(make("uneven width", 100, 21, 19, odd(13, 41), odd(37, 301), 5), ram);
    check_setting(make("unaligned width", 33, 21, 19, odd(13, 41), odd(37, 301), 5), ram);
    check_setting(make("many queries", 64, 900, 5, constant(20), odd(37, 301)), ram);
    check_setting(make("many documents", 64, 2, 1500, constant(9), odd(3, 20)), ram);
    check_setting(make("long", 64, 3, 3, constant(50), odd(1700, 4000)), ram);
    setting shifted = make("shifted", 64, 7, 9, odd(13, 41), odd(37, 301));
    shifted.before = 1;
    check_setting(shifted, ram);
    check_setting(make_ties(), ram);
    check_setting(make_hub(), ram);
    setting none = make("none", 64, 0, 3, constant(1), constant(5));
    device_setting gpu(none, {});
    run("none forward", vram::maxsim_forward, gpu.view);
    run("none backward", vram::maxsim_backward, gpu.view);
    std::vector<float> const gradient = gpu.gradient.download();
    check("none", std::all_of(gradient.begin(), gradient.end(), [](float value) { return value == 0; }));
}

/* ------------------------------------------------------------------------------------------------- pairwise losses */

struct loss_answers {
    double loss = 0;
    std::vector<float> row_losses, coefficients, temperature{0.5f}, bias{0.25f};
};

struct loss_setting {
    std::uint32_t rows, candidates, edges;
    std::int32_t form;
    float log_inverse_temperature, bias, ambient_weight, spread;
    std::vector<float> similarities, weights;
    std::vector<std::uint32_t> own, looks, faces, offsets, ids;
    std::vector<std::uint8_t> classes;
};

loss_setting make_loss(std::int32_t form, std::uint32_t rows, std::uint32_t candidates, float inverse_temperature,
                       float spread, bool ambient) {
    loss_setting made{rows,
                      candidates,
                      0,
                      form,
                      std::log(inverse_temperature),
                      form == 3 ? -10.f : 0.f,
                      0.5f,
                      spread,
                      random_values(3).normal(std::size_t(rows) * candidates, spread),
                      {},
                      {},
                      {},
                      {},
                      {0},
                      {},
                      {}};
    for (std::uint32_t candidate = 0; candidate != candidates; ++candidate)
        made.faces.push_back(ambient ? 1u << candidate % 4 : 1);
    for (std::uint32_t row = 0; row != rows; ++row) {
        made.own.push_back(row % 3 ? UINT32_MAX : row % candidates);
        made.looks.push_back(ambient ? 1u << row % 5 : 1);
        for (std::uint32_t at = row % 4; at < candidates; at += 1 + row * 7 % 31) {
            if (at == made.own.back())
                continue;
            made.ids.push_back(at);
            made.classes.push_back(static_cast<std::uint8_t>((made.ids.size() + row) % 3));
            made.weights.push_back(0.25f + static_cast<float>(at % 3));
        }
        if (row % 6 != 5 && made.ids.size() != made.offsets.back())
            made.classes[made.offsets.back()] = uform_pair_class_attracted_k;
        made.offsets.push_back(static_cast<std::uint32_t>(made.ids.size()));
    }
    made.edges = made.offsets.back();
    return made;
}

uform_similarity_pairs_t view_of(loss_setting const& of) {
    uform_similarity_pairs_t view{};
    view.rows_capacity = of.rows, view.candidates_capacity = of.candidates, view.edges_capacity = of.edges;
    view.form = of.form, view.ambient_weight = of.ambient_weight;
    return view;
}

void check_loss(std::string const& name, loss_setting const& of, ram_device const& device) {
    std::vector<std::uint32_t> const counts{of.rows, of.candidates, of.edges};
    float const scale = 0.125f;
    loss_answers ram;
    ram.row_losses.assign(of.rows, 0), ram.coefficients.resize(of.similarities.size());
    std::vector<std::uint8_t> room(device.operations().similarity_pairs_workspace_bytes(of.rows, of.edges));
    uform_similarity_pairs_t view = view_of(of);
    view.counts = counts.data(), view.similarities = of.similarities.data(), view.own = of.own.data();
    view.looks = of.looks.data(), view.faces = of.faces.data(), view.edge_offsets = of.offsets.data();
    view.edge_candidates = of.ids.data(), view.edge_classes = of.classes.data(), view.edge_weights = of.weights.data();
    view.log_inverse_temperature = &of.log_inverse_temperature, view.bias = &of.bias, view.scale = &scale;
    view.loss = &ram.loss, view.row_losses = ram.row_losses.data(), view.coefficients = ram.coefficients.data();
    view.log_inverse_temperature_gradient = ram.temperature.data(), view.bias_gradient = ram.bias.data();
    view.workspace = room.data(), view.workspace_bytes = room.size();
    device.run(device.operations().similarity_pairs, view);

    device_array<std::uint32_t> const device_counts(counts), own(of.own), looks(of.looks), faces(of.faces),
        offsets(of.offsets), ids(of.ids);
    device_array<std::uint8_t> const classes(of.classes),
        workspace(vram::similarity_pairs_workspace_bytes(of.rows, of.edges));
    device_array<float> const similarities(of.similarities), weights(of.weights),
        temperature_of(std::vector{of.log_inverse_temperature}), bias_of(std::vector{of.bias}),
        scale_of(std::vector{scale}), row_losses(std::vector<float>(of.rows, 0.f)),
        coefficients(of.similarities.size()), temperature(std::vector{0.5f}), bias(std::vector{0.25f});
    device_array<double> const loss(std::vector{0.});
    view.counts = device_counts.data(), view.similarities = similarities.data(), view.own = own.data();
    view.looks = looks.data(), view.faces = faces.data(), view.edge_offsets = offsets.data();
    view.edge_candidates = ids.data(), view.edge_classes = classes.data(), view.edge_weights = weights.data();
    view.log_inverse_temperature = temperature_of.data(), view.bias = bias_of.data(), view.scale = scale_of.data();
    view.loss = loss.data(), view.row_losses = row_losses.data(), view.coefficients = coefficients.data();
    view.log_inverse_temperature_gradient = temperature.data(), view.bias_gradient = bias.data();
    view.workspace = workspace.data(), view.workspace_bytes = workspace.bytes();
    run(name.c_str(), vram::similarity_pairs, view);
    if (std::isnan(ram.loss)) {
        check(name + " is no number", std::isnan(loss.download()[0]));
        return;
    }
    check(name + " loss", std::fabs(loss.download()[0] - ram.loss), 1e-6 * std::fabs(ram.loss) + 1e-9);
    check(name + " rows", relative_error(row_losses.download(), to_double(ram.row_losses)), 1e-5);
    check(name + " coefficients", relative_error(coefficients.download(), to_double(ram.coefficients)), 1e-5);
    check(name + " temperature", std::fabs(temperature.download()[0] - ram.temperature[0]),
          1e-5 * std::fabs(ram.temperature[0]) + 1e-6);
    check(name + " bias", std::fabs(bias.download()[0] - ram.bias[0]), 1e-5 * std::fabs(ram.bias[0]) + 1e-6);
    check(name + " guarded", coefficients.guarded() && row_losses.guarded() && loss.guarded() && workspace.guarded());
}

void check_losses(ram_device const& ram) {
    constexpr char const* names[] = {"", "balanced", "ranked", "sigmoid"};
    for (std::int32_t form = 1; form != 4; ++form) {
        for (bool ambient : {true, false}) {
            std::string const name = std::string(names[form]) + (ambient ? " ambient" : " named");
            check_loss(name, make_loss(form, 23, 301, 20, 0.3f, ambient), ram);
            check_loss(name + " sharp", make_loss(form, 9, 700, 100, 1, ambient), ram);
        }
        check_loss(std::string(names[form]) + " lone", make_loss(form, 1, 1, 20, 1, true), ram);
        // A query whose vectors are no numbers: one of its similarities, then all.
        for (std::uint32_t count : {1u, 300u}) {
            loss_setting broken = make_loss(form, 23, 301, 20, 0.3f, true);
            std::fill_n(broken.similarities.begin() + 1, count, std::numeric_limits<float>::quiet_NaN());
            check_loss(std::string(names[form]) + " without " + std::to_string(count), broken, ram);
        }
    }
}

/* --------------------------------------------------------------------------------------------------------- vectors */

void check_vectors(std::uint32_t hidden, std::uint32_t width, std::uint32_t count, ram_device const& device) {
    std::string const name = "vectors " + std::to_string(hidden) + " to " + std::to_string(width);
    std::uint32_t const active = (count + 63) / 64 * 64;
    std::vector<float> states = rounded(random_values(5).normal(std::size_t(active) * hidden));
    std::fill(states.begin() + std::size_t(count) * hidden, states.end(), 0.f);
    std::fill(states.begin() + hidden, states.begin() + 2 * hidden, 0.f); // maps to no direction at all
    std::vector<float> const weight = rounded(random_values(6).normal(std::size_t(width) * hidden, 0.05f));
    std::vector<float> const slopes = random_values(7).normal(std::size_t(active) * width);
    std::vector<float> const before = rounded(random_values(8).normal(std::size_t(active) * hidden));
    std::uint32_t const counts[] = {count, 1, 1};
    uform_vectors_t view{};
    view.columns.capacity = view.columns.active = active, view.columns.counts = counts;
    view.hidden = hidden, view.width = width;

    std::vector<float> vectors(slopes.size()), lengths(active), gradient = before, weight_gradient(weight.size(), 0.5f);
    std::vector<std::uint8_t> room(device.operations().vectors_workspace_bytes(hidden, width, active));
    uform_vectors_t ram = view;
    ram.states = states.data(), ram.weight = weight.data(), ram.vectors = vectors.data(), ram.lengths = lengths.data();
    ram.vectors_gradient = slopes.data(), ram.gradient = gradient.data(), ram.weight_gradient = weight_gradient.data();
    ram.workspace = room.data(), ram.workspace_bytes = room.size();
    device.run(device.operations().vectors_forward, ram);
    device.run(device.operations().vectors_backward, ram);

    device_array<std::uint32_t> const device_counts(std::vector<std::uint32_t>{count, 1, 1});
    device_array<bf16> const device_states(to_bf16(states)), device_weight(to_bf16(weight)),
        device_gradient(to_bf16(before));
    device_array<float> const device_vectors(slopes.size()), device_lengths(active), device_slopes(slopes),
        device_weight_gradient(std::vector<float>(weight.size(), 0.5f));
    device_array<std::uint8_t> const workspace(vram::vectors_workspace_bytes(hidden, width, active));
    view.columns.counts = device_counts.data(), view.states = device_states.data(), view.weight = device_weight.data();
    view.vectors = device_vectors.data(), view.lengths = device_lengths.data();
    view.vectors_gradient = device_slopes.data(), view.gradient = device_gradient.data();
    view.weight_gradient = device_weight_gradient.data();
    view.workspace = workspace.data(), view.workspace_bytes = workspace.bytes();
    run((name + " forward").c_str(), vram::vectors_forward, view);
    run((name + " backward").c_str(), vram::vectors_backward, view);
    auto const used = [&](std::vector<float> values, std::uint32_t columns) {
        values.resize(std::size_t(count) * columns);
        return values;
    };
    check(name, relative_error(used(device_vectors.download(), width), to_double(used(vectors, width))), 1e-3);
    // The gradient by what was mapped is rounded to bfloat16 before the two products.
    check(name + " states",
          relative_error(used(to_float(device_gradient.download()), hidden), to_double(used(gradient, hidden))), 6e-3);
    check(name + " weight", relative_error(device_weight_gradient.download(), to_double(weight_gradient)), 6e-3);
    check(name + " guarded", device_vectors.guarded() && device_gradient.guarded() &&
                                 device_weight_gradient.guarded() && device_lengths.guarded() && workspace.guarded());
}

void bench(std::uint32_t queries, std::uint32_t query_length, std::uint32_t documents, std::uint32_t document_length,
           std::uint32_t width) {
    setting of{"", width, {}, {}, 0, document_length, {}};
    for (std::uint32_t i = 0; i != documents; ++i, of.rows += document_length)
        append(of.documents, of.rows, document_length);
    for (std::uint32_t i = 0; i != queries; ++i, of.rows += query_length)
        append(of.queries, of.rows, query_length);
    of.vectors = noise(std::size_t(of.rows) * width);
    std::vector<float> const coefficients(std::size_t(queries) * documents, 1e-3f);
    device_setting gpu(of, coefficients);
    std::string const name = std::to_string(queries) + "x" + std::to_string(query_length) + " " +
                             std::to_string(documents) + "x" + std::to_string(document_length) +
                             " D=" + std::to_string(width);
    double const all = 2. * queries * query_length * documents * document_length * width;
    auto const forward = [&] { require(vram::maxsim_forward(stream(), &gpu.view), "maxsim_forward"); };
    auto const backward = [&] { require(vram::maxsim_backward(stream(), &gpu.view), "maxsim_backward"); };
    stopwatch watch;
    std::printf("bench maxsim %s workspace %.3f GiB\n", name.c_str(), double(gpu.workspace.bytes()) / (1 << 30));
    watch.operations("maxsim forward " + name, all, forward);
    watch.operations("maxsim backward " + name, all, backward);
    watch.operations("maxsim both " + name, all, [&] { forward(), backward(); });
}

} // namespace

int main(int count, char** arguments) {
    ram_device const device(2);
    if (wants_checks(count, arguments)) {
        check_losses(device);
        check_maxsim(device);
        check_vectors(64, 8, 5, device);
        check_vectors(512, 128, 777, device);
    }
    if (wants_bench(count, arguments)) {
        bench(512, 32, 1024, 256, 128);
        bench(256, 32, 256, 180, 128);
        bench(128, 128, 256, 2048, 128);
    }
    return native_test::report();
}
