/** Which queries are compared with which documents on which device, decided on the host before the upload. */
#include <algorithm>
#include <cstdio>

#include "state.h"

namespace uform::late_interaction {
namespace {

constexpr uint32_t dropped_k = UINT32_MAX;
constexpr uint32_t none_k = UINT32_MAX;

/** The call's items by their content, and what their sides say. */
class call_view {
public:
    call_view(state& self, uform_plan_t const& plan) : self_(self), scratch_(self.scratch), plan_(plan) {}

    uform_item_t const& item(uint32_t content) const { return plan_.items[scratch_.item_of[content]]; }
    bool is_kept(uint32_t content) const {
        return scratch_.item_of[content] != none_k && item(content).device != dropped_k;
    }
    bool is_query(uint32_t content) const { return has(content, uform_late_interaction_side_query_k); }
    bool is_document(uint32_t content) const { return has(content, uform_late_interaction_side_document_k); }
    uform_segment_t const& segment(uint32_t content) const {
        return plan_.devices[item(content).device].segments[item(content).segment];
    }
    uint32_t query_columns(uint32_t content) const {
        return std::min(segment(content).pooled, static_cast<uint32_t>(self_.config.max_query_span));
    }

    /** Whether a query counts as a row: by what attracts it, for the sigmoid form also by what repels it. */
    bool counts_as_row(uform_pair_rows_t const& pairs, uint32_t query) const {
        bool const repelled_too = self_.config.pair_loss == uform_pair_loss_form_sigmoid_k;
        bool counts = false;
        each_pair(pairs, query, [&](uint32_t, uint8_t kind, float) {
            counts =
                counts || kind == uform_pair_class_attracted_k || (repelled_too && kind == uform_pair_class_repelled_k);
        });
        return counts;
    }

    /** Calls `body(content, class, weight)` for every document that an edge of a query names. */
    template <typename body_at> void each_pair(uform_pair_rows_t const& pairs, uint32_t query, body_at&& body) const {
        for (uint32_t place = pairs.offsets[query]; place != pairs.offsets[query + 1]; ++place)
            if (is_document(pairs.candidates[place]))
                body(pairs.candidates[place], pairs.classes[place], pairs.weights[place]);
    }

    /** Calls `body(content)` for a device's items in the order of segments. */
    template <typename body_at> void each_item(uint32_t device, body_at&& body) const {
        scratch_.item_at.assign(plan_.devices[device].segments_count, none_k);
        for (size_t place = 0; place != plan_.items_count; ++place)
            if (plan_.items[place].device == device)
                scratch_.item_at[plan_.items[place].segment] = plan_.items[place].content;
        for (uint32_t content : scratch_.item_at)
            if (content != none_k)
                body(content);
    }

protected:
    bool has(uint32_t content, uint8_t side) const {
        return plan_.sides && (plan_.sides[content] & side) && is_kept(content);
    }

    state& self_;
    plan_scratch& scratch_;
    uform_plan_t const& plan_;
};

/** Stage 0: what this process has, within the budgets, and what the world is to know of it. */
class agreement : call_view {
public:
    agreement(state& self, uform_plan_t const& plan, uform_pair_rows_t const& pairs)
        : call_view(self, plan), pairs_(pairs) {}

    uform_status_t run() {
        scratch_.rows.clear();
        scratch_.rows_begin.assign(1, 0);
        scratch_.document_of.assign(scratch_.item_of.size(), none_k);
        for (uint32_t device = 0; device != plan_.run->devices; ++device) {
            uform_status_t const status = take_device(device);
            if (status != uform_status_success_k)
                return status;
            scratch_.rows_begin.push_back(static_cast<uint32_t>(scratch_.rows.size()));
        }
        mark_targets();
        return plan_.count(plan_.host, rows_counter_k, static_cast<double>(scratch_.rows.size()));
    }

private:
    notice& notice_of(uint32_t device) const { return *static_cast<notice*>(plan_.notice_of(plan_.host, device)); }

    uform_status_t take_device(uint32_t device) {
        uint64_t query_tokens = 0, documents = 0, document_tokens = 0;
        uint32_t cut = 0;
        each_item(device, [&](uint32_t content) {
            uint32_t const columns = segment(content).pooled;
            if (is_query(content)) {
                query_tokens += query_columns(content);
                cut += query_columns(content) < columns;
                if (counts_as_row(pairs_, content))
                    scratch_.rows.push_back(content);
            }
            if (is_document(content)) {
                ++documents;
                document_tokens += columns;
            }
        });
        *reinterpret_cast<double*>(plan_.devices[device].staging + self_.staging.cut) = cut;
        uform_status_t status = check_budget(device, "token vectors of queries", "max_query_tokens_per_device",
                                             query_tokens, self_.config.max_query_tokens_per_device);
        if (status == uform_status_success_k)
            status = check_budget(device, "documents", "max_documents_per_device", documents,
                                  self_.config.max_documents_per_device);
        if (status == uform_status_success_k)
            status = check_budget(device, "token vectors of documents", "max_document_tokens_per_device",
                                  document_tokens, self_.config.max_document_tokens_per_device);
        if (status == uform_status_success_k)
            tell(device);
        return status;
    }

    uform_status_t check_budget(uint32_t device, char const* what, char const* field, uint64_t count,
                                int32_t most) const {
        if (count <= static_cast<uint64_t>(most))
            return uform_status_success_k;
        char message[200];
        std::snprintf(message, sizeof(message), "sides: device %u has %llu %s, over LateInteraction.%s, %d", device,
                      static_cast<unsigned long long>(count), what, field, most);
        return plan_.fail(plan_.host, uform_status_invalid_argument_k, message);
    }

    void tell(uint32_t device) {
        notice& told = notice_of(device);
        each_item(device, [&](uint32_t content) {
            if (!is_document(content))
                return;
            scratch_.document_of[content] = told.count;
            told.documents[told.count++] = {segment(content).first, segment(content).pooled, item(content).modality, 0};
        });
    }

    void mark_targets() {
        for (uint32_t query = 0; query != pairs_.units; ++query) {
            if (!is_query(query))
                continue;
            each_pair(pairs_, query, [&](uint32_t document, uint8_t kind, float) {
                if (kind != uform_pair_class_ignored_k)
                    notice_of(item(document).device).documents[scratch_.document_of[document]].is_target = 1;
            });
        }
    }

    uform_pair_rows_t const& pairs_;
};

/** Stage 1 for one device. */
class device_plan : call_view {
public:
    device_plan(state& self, uform_plan_t const& plan, uform_pair_rows_t const& pairs, uint32_t device)
        : call_view(self, plan), pairs_(pairs), device_(device), staging_(plan.devices[device].staging),
          first_(scratch_.rows.data() + scratch_.rows_begin[device]),
          count_(scratch_.rows_begin[device + 1] - scratch_.rows_begin[device]) {}

    uform_status_t fill() {
        find_seen();
        fill_documents();
        fill_queries();
        return fill_edges();
    }

private:
    template <typename value_at> value_at* staged(size_t offset) const {
        return reinterpret_cast<value_at*>(staging_ + offset);
    }
    notice const& notice_from(uint32_t rank) const {
        return *static_cast<notice const*>(plan_.notice_from(plan_.host, rank));
    }
    bool ambient() const {
        return self_.config.negatives == uform_negatives_ambient_k && self_.config.ambient_repulsion_weight > 0;
    }
    bool scopes_targets() const { return self_.config.ambient_scope == uform_ambient_scope_targets_k; }

    /** A document of this process among those of the world. */
    uint32_t world_place(uint32_t document) const {
        return scratch_.world_begin[plan_.run->first_rank + item(document).device] + scratch_.document_of[document];
    }

    /** What some row may see, or names. */
    void find_seen() {
        scratch_.world_begin.assign(1, 0);
        for (uint32_t rank = 0; rank != plan_.run->world_devices; ++rank)
            scratch_.world_begin.push_back(scratch_.world_begin.back() + notice_from(rank).count);
        scratch_.place_of.assign(scratch_.world_begin.back(), none_k);
        if (count_ == 0)
            return;
        if (ambient())
            each_document([&](uint32_t place, uint32_t, document_notice const& document) {
                if (!scopes_targets() || document.is_target)
                    scratch_.place_of[place] = 0;
            });
        for (uint32_t row = 0; row != count_; ++row)
            each_pair(pairs_, first_[row], [&](uint32_t document, uint8_t kind, float) {
                if (kind != uform_pair_class_ignored_k)
                    scratch_.place_of[world_place(document)] = 0;
            });
    }

    /** Calls `body(place in the world, rank, document)`, in order. */
    template <typename body_at> void each_document(body_at&& body) const {
        for (uint32_t rank = 0; rank != plan_.run->world_devices; ++rank) {
            notice const& told = notice_from(rank);
            for (uint32_t place = 0; place != told.count; ++place)
                body(scratch_.world_begin[rank] + place, rank, told.documents[place]);
        }
    }

    void fill_documents() {
        uint32_t documents = 0, columns = 0;
        each_document([&](uint32_t place, uint32_t rank, document_notice const& document) {
            if (scratch_.place_of[place] == none_k)
                return;
            scratch_.place_of[place] = documents;
            staged<uform_run_of_rows_t>(self_.staging.documents)[documents] = {
                rank * plan_.run->columns_capacity + document.first, document.columns, columns};
            staged<uint32_t>(self_.staging.faces)[documents++] = face_of(document);
            columns += document.columns;
        });
        staged<uint32_t>(self_.staging.maxsim_counts)[2] = documents;
        staged<uint32_t>(self_.staging.pair_counts)[1] = documents;
    }

    /** A row sees a document as ambient where its look has no bit of the document's face. Queries see documents alone,
     *  so that CROSS_SIDE leaves none out. */
    uint32_t look_of(uint32_t modality) const {
        if (!ambient() || scopes_targets())
            return 1;
        return self_.config.ambient_scope == uform_ambient_scope_cross_modal_k ? bit_of(modality) : 0;
    }
    uint32_t face_of(document_notice const& document) const {
        if (!ambient())
            return 1;
        return scopes_targets() ? !document.is_target : bit_of(document.modality);
    }
    static uint32_t bit_of(uint32_t modality) { return uint32_t(1) << (modality & 31); }

    void fill_queries() {
        uint32_t const first = (plan_.run->first_rank + device_) * plan_.run->columns_capacity;
        uint32_t columns = 0;
        for (uint32_t row = 0; row != count_; ++row) {
            uint32_t const query = first_[row];
            staged<uform_run_of_rows_t>(self_.staging.queries)[row] = {first + segment(query).first,
                                                                       query_columns(query), columns};
            staged<uint32_t>(self_.staging.looks)[row] = look_of(item(query).modality);
            staged<uint32_t>(self_.staging.own)[row] =
                is_document(query) ? scratch_.place_of[world_place(query)] : none_k;
            columns += query_columns(query);
        }
        uint32_t* const counts = staged<uint32_t>(self_.staging.maxsim_counts);
        counts[0] = count_, counts[1] = columns;
        staged<uint32_t>(self_.staging.pair_counts)[0] = count_;
        double const counted = plan_.counted(plan_.host, rows_counter_k);
        *staged<float>(self_.staging.scale) = counted > 0 ? static_cast<float>(self_.config.weight / counted) : 0.0f;
    }

    uform_status_t fill_edges() {
        uint32_t* const offsets = staged<uint32_t>(self_.staging.edge_offsets);
        uint32_t* const slots = scratch_.row_slots.data() + (first_ - scratch_.rows.data());
        uint32_t edges = 0;
        for (uint32_t row = 0; row != count_; ++row) {
            gather_edges(first_[row]);
            if (scratch_.row_edges.size() > self_.most.edges - edges)
                return plan_.fail(plan_.host, uform_status_invalid_argument_k,
                                  "relations: more pairs than Contrastive.max_edges_per_device times the devices");
            slots[row] = plan_.bags[item(first_[row]).bag].slot;
            offsets[row] = edges;
            for (edge const& named : scratch_.row_edges) {
                staged<uint32_t>(self_.staging.edge_documents)[edges] = named.document;
                staged<uint8_t>(self_.staging.edge_classes)[edges] = named.kind;
                staged<float>(self_.staging.edge_weights)[edges] = named.weight;
                ++edges;
            }
        }
        offsets[count_] = edges;
        staged<uint32_t>(self_.staging.pair_counts)[2] = edges;
        return plan_.rows(plan_.host, device_, slots, count_);
    }

    /** The named pairs of a row, ascending by document. An ignored one matters only where it would be ambient. */
    void gather_edges(uint32_t query) {
        scratch_.row_edges.clear();
        each_pair(pairs_, query, [&](uint32_t document, uint8_t kind, float weight) {
            uint32_t const place = scratch_.place_of[world_place(document)];
            if (place != none_k)
                scratch_.row_edges.push_back({place, kind, weight});
        });
        std::sort(scratch_.row_edges.begin(), scratch_.row_edges.end(),
                  [](edge const& left, edge const& right) { return left.document < right.document; });
    }

    uform_pair_rows_t const& pairs_;
    uint32_t device_;
    uint8_t* staging_;
    uint32_t const* first_; /* the device's rows */
    uint32_t count_;
};

/** Where each content of the call is among the items. */
void find_items(state& self, uform_plan_t const& plan) {
    uint32_t contents = 0;
    for (size_t place = 0; place != plan.items_count; ++place)
        contents = std::max(contents, plan.items[place].content + 1);
    self.scratch.item_of.assign(contents, none_k);
    for (size_t place = 0; place != plan.items_count; ++place)
        self.scratch.item_of[plan.items[place].content] = static_cast<uint32_t>(place);
}

/** In inference every column has its vector: those of a segment begin where it begins. */
void plan_answers(state& self, uform_plan_t const& plan) {
    for (uint32_t device = 0; device != plan.run->devices; ++device) {
        uform_device_view_t const& view = plan.devices[device];
        std::vector<uint32_t>& offsets = self.scratch.answer_offsets[device];
        offsets.assign(1, 0);
        for (uint32_t segment = 0; segment != view.segments_count; ++segment)
            offsets.push_back(view.segments[segment].first + view.segments[segment].columns);
    }
}

} // namespace

uform_status_t plan(void* opaque, uform_plan_t const* plan, uint32_t stage) {
    state& self = *static_cast<state*>(opaque);
    if (!plan->run->training) {
        plan_answers(self, *plan);
        return uform_status_success_k;
    }
    if (stage == 0)
        find_items(self, *plan);
    uform_pair_rows_t pairs{};
    uform_status_t status = plan->pairs(plan->host, 0, &pairs);
    if (status != uform_status_success_k)
        return status;
    if (stage == 0)
        return agreement(self, *plan, pairs).run();
    self.scratch.row_slots.resize(self.scratch.rows.size());
    for (uint32_t device = 0; status == uform_status_success_k && device != plan->run->devices; ++device)
        status = device_plan(self, *plan, pairs, device).fill();
    return status;
}

} // namespace uform::late_interaction
