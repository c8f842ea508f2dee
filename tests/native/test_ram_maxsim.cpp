// Late interaction's operations on RAM: against plain loops, with one thread and with three, in memory that bites.
#include <algorithm>
#include <cmath>

#include "tests/native/ram_device.h"

using namespace native_test;

namespace {

using run_t = uform_run_of_rows_t;

/** Queries and documents among rows of vectors; the rows between them are NaN, and one run is both. */
struct problem {
    std::uint32_t width = 19, rows = 0, queries_capacity = 9, documents_capacity = 7, query_capacity = 300;
    std::vector<run_t> queries, documents;
    std::vector<float> vectors;

    problem() {
        append(documents, 0, 150);
        append(queries, 0, 40);
        append(documents, 153, 1);
        append(documents, 155, 129);
        append(queries, 290, 33);
        append(queries, 330, 1);
        rows = 340;
        vectors.assign(std::size_t(rows) * width, poison());
        random_values random(3);
        for (std::vector<run_t> const* runs : {&queries, &documents})
            for (run_t const& run : *runs) {
                std::vector<float> const values = random.normal(std::size_t(run.count) * width);
                std::copy(values.begin(), values.end(), vectors.begin() + std::ptrdiff_t(run.first) * width);
            }
    }

    static void append(std::vector<run_t>& runs, std::uint32_t first, std::uint32_t count) {
        runs.push_back({first, count, runs.empty() ? 0 : runs.back().place + runs.back().count});
    }

    double dot(std::size_t left, std::size_t right) const {
        double sum = 0;
        for (std::uint32_t i = 0; i != width; ++i)
            sum += double(vectors[left * width + i]) * double(vectors[right * width + i]);
        return sum;
    }
};

struct answers {
    std::vector<float> similarities, gradient;
    std::vector<std::uint16_t> places;
};

answers run_ram(problem const& of, std::vector<float> const& coefficients, ram_device const& device) {
    answers got;
    got.similarities.assign(std::size_t(of.queries_capacity) * of.documents_capacity, poison());
    got.gradient.assign(of.vectors.size(), poison());
    got.places.assign(std::size_t(of.documents_capacity) * of.query_capacity, 0xFFFF);
    std::uint32_t const counts[] = {static_cast<std::uint32_t>(of.queries.size()),
                                    of.queries.back().place + of.queries.back().count,
                                    static_cast<std::uint32_t>(of.documents.size())};
    uform_maxsim_t view{};
    view.width = of.width, view.vectors_capacity = of.rows, view.queries_capacity = of.queries_capacity;
    view.query_vectors_capacity = of.query_capacity, view.documents_capacity = of.documents_capacity;
    view.document_vectors_capacity = of.rows, view.longest = 200, view.counts = counts;
    view.vectors = of.vectors.data(), view.queries = of.queries.data(), view.documents = of.documents.data();
    view.similarities = got.similarities.data(), view.places = got.places.data();
    view.coefficients = coefficients.data(), view.gradient = got.gradient.data();
    device.run(device.operations().maxsim_forward, view);
    device.run(device.operations().maxsim_backward, view);
    return got;
}

void test_maxsim() {
    problem const of;
    std::vector<float> coefficients(std::size_t(of.queries_capacity) * of.documents_capacity, poison());
    random_values random(5);
    std::vector<double> similarities, gradient(of.vectors.size(), 0);
    for (std::size_t q = 0; q != of.queries.size(); ++q)
        for (std::size_t d = 0; d != of.documents.size(); ++d) {
            float const coefficient = (q + d) % 3 ? random.normal(1)[0] : 0;
            coefficients[q * of.documents_capacity + d] = coefficient;
            double sum = 0;
            for (std::uint32_t a = 0; a != of.queries[q].count; ++a) {
                std::size_t const left = of.queries[q].first + a;
                std::size_t best = of.documents[d].first;
                for (std::uint32_t b = 1; b != of.documents[d].count; ++b)
                    if (of.dot(left, of.documents[d].first + b) > of.dot(left, best))
                        best = of.documents[d].first + b;
                sum += of.dot(left, best);
                for (std::uint32_t i = 0; i != of.width; ++i) {
                    double const pull = double(coefficient) / of.queries[q].count;
                    gradient[left * of.width + i] += pull * double(of.vectors[best * of.width + i]);
                    gradient[best * of.width + i] += pull * double(of.vectors[left * of.width + i]);
                }
            }
            similarities.push_back(sum / of.queries[q].count);
        }
    for (char const* blas : blas_choices()) {
        answers const one = run_ram(of, coefficients, ram_device(1, blas));
        answers const three = run_ram(of, coefficients, ram_device(3, blas));
        CHECK(one.places == three.places);
        CHECK(std::memcmp(one.gradient.data(), three.gradient.data(), sizeof(float) * one.gradient.size()) == 0);
        std::vector<float> found;
        for (std::size_t q = 0; q != of.queries.size(); ++q)
            for (std::size_t d = 0; d != of.documents.size(); ++d)
                found.push_back(one.similarities[q * of.documents_capacity + d]);
        CHECK(relative_error(found, similarities) < 1e-6);
        CHECK(relative_error(one.gradient, gradient) < 1e-6);
    }
}

/** Of equal products the first counts; a document's vectors are all the same here. */
void test_ties() {
    problem of;
    for (run_t const& document : of.documents)
        for (std::uint32_t row = 1; row < document.count; ++row)
            std::copy_n(of.vectors.begin() + std::ptrdiff_t(document.first) * of.width, of.width,
                        of.vectors.begin() + std::ptrdiff_t(document.first + row) * of.width);
    answers const got = run_ram(of, std::vector<float>(63, 0.f), ram_device(2));
    for (std::size_t d = 0; d != of.documents.size(); ++d)
        for (std::uint32_t a = 0; a != of.queries.back().place + of.queries.back().count; ++a)
            CHECK(got.places[d * of.query_capacity + a] == 0);
    CHECK(std::all_of(got.gradient.begin(), got.gradient.end(), [](float value) { return value == 0; }));
}

/** A state that maps to nothing has no direction, and its gradient stays finite. */
void test_vectors() {
    constexpr std::uint32_t hidden = 64, width = 24, count = 200, capacity = 256;
    random_values random(7);
    std::vector<float> states = random.normal(std::size_t(count) * hidden, 1, std::size_t(capacity) * hidden);
    std::fill(states.begin() + hidden, states.begin() + 2 * hidden, 0.f);
    std::vector<float> const weight = random.normal(std::size_t(width) * hidden);
    std::vector<float> const slopes = random.normal(std::size_t(count) * width, 1, std::size_t(capacity) * width);
    std::vector<float> const before = random.normal(std::size_t(capacity) * hidden);
    std::uint32_t const counts[] = {count, 1, 1};
    for (char const* blas : blas_choices())
        same_on_threads(blas, [&](ram_device const& device) {
            std::vector<float> vectors(std::size_t(capacity) * width, poison()), lengths(capacity, poison());
            std::vector<float> gradient = before, weight_gradient(weight.size(), 1);
            std::vector<float> room(std::size_t(capacity) * width + 64);
            uform_vectors_t view{};
            view.columns.capacity = view.columns.active = capacity, view.columns.counts = counts;
            view.hidden = hidden, view.width = width, view.states = states.data(), view.weight = weight.data();
            view.vectors = vectors.data(), view.lengths = lengths.data(), view.vectors_gradient = slopes.data();
            view.gradient = gradient.data(), view.weight_gradient = weight_gradient.data();
            view.workspace = room.data(), view.workspace_bytes = room.size() * sizeof(float);
            device.run(device.operations().vectors_forward, view);
            device.run(device.operations().vectors_backward, view);
            double square = 0;
            for (std::uint32_t i = 0; i != width; ++i)
                square += double(vectors[i]) * double(vectors[i]);
            CHECK(std::abs(square - 1) < 1e-6);
            CHECK(std::all_of(vectors.begin() + width, vectors.begin() + 2 * width, [](float x) { return x == 0; }));
            CHECK(std::equal(gradient.begin() + count * hidden, gradient.end(), before.begin() + count * hidden));
            CHECK(std::all_of(gradient.begin(), gradient.end(), [](float x) { return std::isfinite(x); }));
            return gradient;
        });
}

} // namespace

int main() {
    test_maxsim();
    test_ties();
    test_vectors();
    return report();
}
