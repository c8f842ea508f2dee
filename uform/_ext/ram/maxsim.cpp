/** Late interaction: how well queries match documents, vector by vector, block by block. */
#include <algorithm>
#include <limits>

#include "ram/elementwise.h"
#include "ram/operations.h"

namespace uform::ram {

namespace {

/** Dot products that a task has at a time, on its stack. */
constexpr std::size_t query_rows_k = 32;
constexpr std::size_t document_rows_k = 128;

/** The largest dot product of one of a query's vectors with any of a document's so far, and which it is of. */
struct match {
    float value = -std::numeric_limits<float>::infinity();
    std::uint16_t place = 0;

    void offer(float other, std::size_t at) {
        if (other > value)
            value = other, place = static_cast<std::uint16_t>(at);
    }
};

/** The matches of some of a query's vectors in one document. */
void find_matches(gemm const& product, uform_maxsim_t const& given, std::size_t first, std::size_t count,
                  uform_run_of_rows_t const& document, match (&matches)[query_rows_k]) {
    float dots[query_rows_k * document_rows_k];
    std::size_t const width = given.width;
    for (std::size_t begin = 0; begin < document.count; begin += document_rows_k) {
        std::size_t const across = std::min<std::size_t>(document_rows_k, document.count - begin);
        product.nt(count, across, width, 1, given.vectors + first * width, width,
                   given.vectors + (document.first + begin) * width, width, 0, dots, across);
        for (std::size_t row = 0; row != count; ++row)
            for (std::size_t column = 0; column != across; ++column)
                matches[row].offer(dots[row * across + column], begin + column);
    }
}

/** The similarity of a query to a document; writes where its vectors found their matches. */
float match_query(gemm const& product, uform_maxsim_t const& given, uform_run_of_rows_t const& query,
                  uform_run_of_rows_t const& document, std::uint16_t* places) {
    double sum = 0;
    for (std::size_t begin = 0; begin < query.count; begin += query_rows_k) {
        std::size_t const count = std::min<std::size_t>(query_rows_k, query.count - begin);
        match matches[query_rows_k];
        find_matches(product, given, query.first + begin, count, document, matches);
        for (std::size_t row = 0; row != count; ++row) {
            sum += matches[row].value;
            places[begin + row] = matches[row].place;
        }
    }
    return static_cast<float>(sum / query.count);
}

/** Of a pair of a query and a document: where its vectors found their matches, and what moving one of them counts. */
struct weighted_pair {
    std::uint16_t const* places;
    float coefficient;

    weighted_pair(uform_maxsim_t const& given, std::size_t query, std::size_t document)
        : places(given.places + document * given.query_vectors_capacity + given.queries[query].place),
          coefficient(given.coefficients[query * given.documents_capacity + document] / given.queries[query].count) {}
};

void pull_document(uform_maxsim_t const& given, std::size_t document) {
    std::size_t const width = given.width, first = given.documents[document].first;
    for (std::size_t query = 0; query != given.counts[0]; ++query) {
        weighted_pair const pair(given, query, document);
        if (pair.coefficient == 0)
            continue;
        uform_run_of_rows_t const& run = given.queries[query];
        for (std::size_t row = 0; row != run.count; ++row)
            add_scaled(given.gradient + (first + pair.places[row]) * width, given.vectors + (run.first + row) * width,
                       pair.coefficient, width);
    }
}

void pull_query(uform_maxsim_t const& given, std::size_t query) {
    std::size_t const width = given.width;
    uform_run_of_rows_t const& run = given.queries[query];
    for (std::size_t document = 0; document != given.counts[2]; ++document) {
        weighted_pair const pair(given, query, document);
        if (pair.coefficient == 0)
            continue;
        for (std::size_t row = 0; row != run.count; ++row)
            add_scaled(given.gradient + (run.first + row) * width,
                       given.vectors + (given.documents[document].first + pair.places[row]) * width, pair.coefficient,
                       width);
    }
}

} // namespace

std::size_t maxsim_workspace_bytes(std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t) { return 0; }

void maxsim_forward(stream const& stream, uform_maxsim_t const& given) {
    stream.backend.parallel_for(given.counts[2], [&](std::size_t document) {
        std::uint16_t* const places = given.places + document * given.query_vectors_capacity;
        for (std::size_t query = 0; query != given.counts[0]; ++query)
            given.similarities[query * given.documents_capacity + document] =
                match_query(stream.backend.gemm(), given, given.queries[query], given.documents[document],
                            places + given.queries[query].place);
    });
}

void maxsim_backward(stream const& stream, uform_maxsim_t const& given) {
    stream.backend.parallel_chunks(given.vectors_capacity, rows_per_task_k, [&](std::size_t begin, std::size_t end) {
        std::fill(given.gradient + begin * given.width, given.gradient + end * given.width, 0.f);
    });
    // A vector may be of a query and of a document: first all of the documents', each by its owner.
    stream.backend.parallel_for(given.counts[2], [&](std::size_t document) { pull_document(given, document); });
    stream.backend.parallel_for(given.counts[0], [&](std::size_t query) { pull_query(given, query); });
}

} // namespace uform::ram
