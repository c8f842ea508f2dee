/** Pairwise losses over given similarities. */
#include <algorithm>
#include <cmath>

#include "ram/operations.h"
#include "ram/pair_row.h"

namespace uform::ram {

namespace {

/** Rows that one task takes. */
constexpr std::size_t rows_per_chunk_k = 16;

/** Which candidates a row sees as ambient where no edge names them. */
struct candidate_scope {
    std::uint32_t const* faces;
    std::uint32_t look, own;

    bool operator()(std::uint32_t candidate) const { return candidate != own && !(look & faces[candidate]); }
};

/** The parts of a pairwise loss's workspace. */
struct similarity_workspace {
    named_pair* named; /* [edges] */
    row_sums* rows;    /* [rows] */

    explicit similarity_workspace(uform_similarity_pairs_t const& pairs) {
        workspace_parts parts(pairs.workspace);
        named = parts.take<named_pair>(pairs.edges_capacity);
        rows = parts.take<row_sums>(pairs.rows_capacity);
    }
};

/** The loss of a row, and what it adds to the gradients; leaves the row's coefficients where they are asked for. */
row_sums score_row(uform_similarity_pairs_t const& pairs, similarity_workspace const& workspace, std::size_t row) {
    std::size_t const line = row * pairs.candidates_capacity;
    float const* const given = pairs.similarities + line;
    // Forward reads them alone, backward replaces them.
    float* const similarities = pairs.coefficients ? pairs.coefficients + line : const_cast<float*>(given);
    if (pairs.coefficients)
        std::copy_n(given, pairs.counts[1], similarities);
    pair_row<candidate_scope> scored({pairs.form, std::exp(double(*pairs.log_inverse_temperature)), *pairs.bias,
                                      pairs.ambient_weight, pairs.counts[1]},
                                     {pairs.edge_candidates, pairs.edge_classes, pairs.edge_weights,
                                      pairs.edge_offsets[row], pairs.edge_offsets[row + 1]},
                                     {pairs.faces, pairs.looks[row], pairs.own[row]}, similarities, workspace.named);
    scored.name([&](std::uint32_t candidate) { return double(given[candidate]); });
    double const loss = scored.forward().loss;
    row_sums sums = pairs.coefficients ? scored.backward(*pairs.scale) : row_sums{};
    sums.loss = loss;
    return sums;
}

} // namespace

std::size_t similarity_pairs_workspace_bytes(std::uint32_t rows, std::uint32_t edges) {
    return part_bytes<named_pair>(edges) + part_bytes<row_sums>(rows);
}

void similarity_pairs(stream const& stream, uform_similarity_pairs_t const& pairs) {
    similarity_workspace const workspace(pairs);
    std::size_t const rows = pairs.counts[0];
    stream.backend.parallel_chunks(rows, rows_per_chunk_k, [&](std::size_t begin, std::size_t end) {
        for (std::size_t row = begin; row != end; ++row)
            workspace.rows[row] = score_row(pairs, workspace, row);
    });
    double const scale = *pairs.scale;
    row_sums sums{};
    for (std::size_t row = 0; row != rows; ++row) {
        sums.loss += workspace.rows[row].loss;
        sums.log_inverse_temperature += workspace.rows[row].log_inverse_temperature;
        sums.bias += workspace.rows[row].bias;
        if (pairs.row_losses)
            pairs.row_losses[row] += static_cast<float>(workspace.rows[row].loss);
    }
    *pairs.loss += scale * sums.loss;
    if (!pairs.coefficients)
        return;
    *pairs.log_inverse_temperature_gradient += static_cast<float>(scale * sums.log_inverse_temperature);
    if (pairs.form == uform_pair_loss_form_sigmoid_k)
        *pairs.bias_gradient += static_cast<float>(scale * sums.bias);
}

} // namespace uform::ram
