#include "core/batch.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace uform {

namespace {

// Items of one task: enough texts to hide the cost of handing it out; few where a picture may be among them.
constexpr size_t texts_chunk_k = 512;
constexpr size_t mixed_chunk_k = 8;

size_t chunk_of(uform_items_t const& items) { return items.modalities ? mixed_chunk_k : texts_chunk_k; }

/** Copies the offsets as it checks them, so that nobody can change them afterwards. */
void take_offsets(uform_items_t const& items, uint64_t* to) {
    if (!items.tape_offsets)
        fail(uform_status_invalid_argument_k, "contents: ", items.count,
             " items came, but neither contents nor offsets");
    if (!items.tape && items.tape_bytes)
        fail(uform_status_invalid_argument_k, "contents: the tape of ", items.tape_bytes, " bytes is missing");
    uint64_t before = 0;
    for (size_t index = 0; index <= items.count; ++index) {
        uint64_t const offset = items.tape_offsets[index];
        if (offset < before)
            fail(uform_status_invalid_argument_k, "contents.offsets[", index, "]: ", offset, " is below ", before,
                 ", the one before it");
        if (offset > items.tape_bytes)
            fail(uform_status_invalid_argument_k, "contents.offsets[", index, "]: ", offset, " is past the tape's ",
                 items.tape_bytes, " bytes");
        to[index] = before = offset;
    }
}

template <typename... parts_at>
[[noreturn]] void refuse_measure(plugin_parts const& of, size_t place, parts_at const&... measured) {
    fail(uform_status_internal_k, "plugin ", of.name, ": contents[", place, "]: it measured ", measured...);
}

/** Objectives that cover columns, and positions, rely on it. */
void check_grid(modality_instance const& modality, uform_measure_t const& measured, size_t place) {
    uint64_t columns = 1;
    for (uint16_t axis = 0; axis != measured.axes; ++axis) {
        columns *= measured.extents[axis];
        if (measured.whole[axis] > measured.extents[axis])
            refuse_measure(modality, place, measured.whole[axis], " whole places along axis ", axis, ", which has ",
                           measured.extents[axis]);
    }
    if (columns != measured.columns)
        refuse_measure(modality, place, measured.columns, " columns and extents of ", columns);
}

/** What a plugin's function said of one content, in a buffer of its own, when it refused it. */
class content_message {
public:
    char* text() { return text_; }
    static constexpr size_t bytes() { return sizeof(text_); }

    /** Throws what a third party refused, by its name, with a message or without. */
    void check_foreign(plugin_parts const& of, char const* function, uform_status_t status, size_t place) {
        if (of.own || status == uform_status_success_k)
            return;
        text_[bytes() - 1] = '\0';
        std::string told = *text_ ? text_ : last_error();
        if (told.empty())
            told = std::string("its function ") + function + " failed without a message, with status " +
                   std::to_string(status);
        refuse_plugin(of, status, told, place);
    }

private:
    char text_[512] = "";
};

/** Grows a vector, never shrinks it; at least one element, so that its address tells that it is there. */
template <typename element_at> element_at* reserve_elements(std::vector<element_at>& elements, size_t count) {
    if (elements.size() < std::max<size_t>(count, 1))
        elements.resize(std::max<size_t>(count, 1));
    return elements.data();
}

} // namespace

uform_content_t content_of(uform_items_t const& items, size_t index) {
    if (items.contents)
        return items.contents[index];
    uform_content_t content{};
    content.data = items.tape + items.tape_offsets[index];
    content.bytes = items.tape_offsets[index + 1] - items.tape_offsets[index];
    return content;
}

staging_view::staging_view(uint8_t* base, staging_layout const& layout)
    : base(base), counts(reinterpret_cast<batch_counts*>(base + layout.counts)),
      segments(reinterpret_cast<uform_segment_t*>(base + layout.segments)),
      codes(reinterpret_cast<uint16_t*>(base + layout.codes)),
      covered(reinterpret_cast<uint32_t*>(base + layout.covered)) {}

batch::batch(composition const& whole, thread_pool& pool, pack_capacities_t const& capacities)
    : whole_(whole), pool_(pool), packer_(capacities) {
    std::fill_n(modality_place_, 256, int8_t(-1));
    for (size_t place = 0; place != whole.modalities.size(); ++place)
        modality_place_[whole.modalities[place].plugin->modality & 0xFF] = static_cast<int8_t>(place);
    size_t const cells = capacities.devices * modalities_capacity_k;
    content_columns_.resize(cells);
    covered_first_.resize(cells);
    covered_count_.resize(cells);
    covered_total_.resize(capacities.devices);
    covered_modality_.resize(capacities.devices);
}

/** What says where to read and what to call is copied as it is checked: the caller's memory may change meanwhile. */
void batch::take_items(uform_items_t const& items) {
    if (items.count >= UINT32_MAX)
        fail(uform_status_invalid_argument_k, "contents: at most ", UINT32_MAX - 1, " items, not ", items.count);
    given_ = items;
    if (!items.contents && items.count) {
        uint64_t* const offsets = reserve_elements(offsets_, items.count + 1);
        take_offsets(items, offsets);
        given_.tape_offsets = offsets;
    }
    if (!items.modalities) {
        if (items.count && modality_place_[uform_modality_text_k] < 0)
            fail(uform_status_invalid_argument_k, "contents: the run has no texts");
        return;
    }
    uint8_t* const modalities = reserve_elements(modalities_, items.count);
    given_.modalities = modalities;
    for (size_t item = 0; item != items.count; ++item) {
        uint8_t const modality = modalities[item] = items.modalities[item];
        if (modality_place_[modality] < 0)
            fail(uform_status_invalid_argument_k, "modalities[", item, "]: ", int(modality),
                 " is no modality of this run; its batch shape leaves it out");
    }
}

void batch::take(uform_items_t const& items, std::span<uint32_t const> chosen, uform_choice_texts_t const* choices) {
    if (chosen.empty())
        take_items(items); // else `measure_all` took the whole call before, and passes are many
    choices_ = choices;
    chosen_ = chosen;
    items_count_ = chosen.empty() ? items.count : chosen.size();
    if (items_.size() >= items_count_)
        return;
    columns_.resize(items_count_);
    first_.resize(items_count_);
    before_.resize(items_count_);
    is_covered_.resize(items_count_);
    items_.resize(items_count_); // last: its size tells that all of them have room
}

std::span<uint32_t const> batch::measure_all(uform_items_t const& items, uform_choice_texts_t const* choices) {
    take(items, {}, choices);
    measure();
    return {columns_.data(), items_count_};
}

void batch::plan(uform_items_t const& items, std::span<uint32_t const> chosen, uint32_t const* words,
                 uint32_t const* groups, uform_choice_texts_t const* choices) {
    take(items, chosen, choices);
    measure();
    numbering_.number(words, items_count_);
    bags_count_ = numbering_.count();
    if (bags_.size() < bags_count_)
        bags_.resize(bags_count_);
    packer_.plan({columns_.data(), items_count_}, numbering_.bags(), numbering_.count());
    place(groups);
}

void batch::measure() {
    std::atomic<uint64_t> truncated = 0;
    pool_.parallel_chunks(items_count_, chunk_of(given_), [&](size_t begin, size_t end) {
        uint64_t cut = 0;
        for (size_t index = begin; index != end; ++index) {
            size_t const place = place_of(index);
            uform_item_t& item = items_[index];
            item.content = static_cast<uint32_t>(place);
            item.modality = given_.modalities ? given_.modalities[place] : uint32_t(uform_modality_text_k);
            item.world_item = place;
            item.measure = uform_measure_t{};
            auto const& modality = whole_.modalities[static_cast<size_t>(modality_place_[item.modality])];
            uform_content_t const content = content_of(given_, place);
            if (!content.data && (content.bytes || content.rank))
                fail(uform_status_invalid_argument_k, "contents[", place, "]: its data is missing");
            // What objectives put behind the content is never cut, the content is.
            uint32_t const extra = measure_extra(item);
            uint32_t const limit = whole_.run.row_columns - 1 - extra;
            content_message message;
            auto const ask = [&] {
                return modality.plugin->measure(modality.self, &content, limit, &item.measure, message.text(),
                                                message.bytes());
            };
            uform_status_t const status = ask_plugin(modality, "measure", ask, place);
            message.check_foreign(modality, "measure", status, place);
            if (status != uform_status_success_k)
                fail(status, "contents[", place, "]: ", message.text());
            if (item.measure.columns > limit)
                refuse_measure(modality, place, item.measure.columns, " columns where at most ", limit, " fit");
            if (item.measure.axes < 1 || item.measure.axes > UFORM_AXES)
                refuse_measure(modality, place, item.measure.axes, " axes of positions where 1 to ", UFORM_AXES,
                               " are possible");
            check_grid(modality, item.measure, place);
            cut += item.measure.truncated;
            columns_[index] = 1 + item.measure.columns + extra;
        }
        truncated += cut;
    });
    truncated_ = truncated;
}

uform_extra_t batch::extra_of(uform_item_t const& item) const {
    return {item.content, item.modality, whole_.run.row_columns - 1, choices_};
}

/** The columns that objectives put behind an item's content. */
uint32_t batch::measure_extra(uform_item_t const& item) const {
    uform_extra_t extra = extra_of(item);
    uint32_t all = 0;
    for (objective_instance const& one : whole_.objectives) {
        if (!one.plugin->extra_columns)
            continue;
        uint32_t columns = 0;
        content_message message;
        auto const ask = [&] {
            return one.plugin->extra_columns(one.self, &extra, &columns, message.text(), message.bytes());
        };
        uform_status_t const status = ask_plugin(one, "extra_columns", ask, item.content);
        message.check_foreign(one, "extra_columns", status, item.content);
        if (status != uform_status_success_k)
            fail(status, message.text());
        if (columns > extra.limit)
            refuse_measure(one, item.content, columns, " columns where at most ", extra.limit, " fit");
        extra.limit -= columns;
        all += columns;
    }
    return all;
}

void batch::fill_extra(uform_item_t const& item, uint16_t* codes, uint32_t room) const {
    uform_extra_t extra = extra_of(item);
    for (objective_instance const& one : whole_.objectives) {
        if (!one.plugin->extra_columns)
            continue;
        uint32_t columns = 0;
        content_message message;
        auto const ask = [&] {
            return one.plugin->extra_columns(one.self, &extra, &columns, message.text(), message.bytes());
        };
        call_plugin(one, "extra_columns", ask, item.content);
        if (columns > room)
            refuse_measure(one, item.content, columns, " columns, and fewer before: expected as many each time");
        if (columns)
            call_plugin(
                one, "extra_fill", [&] { return one.plugin->extra_fill(one.self, &extra, codes); }, item.content);
        room -= columns;
        extra.limit -= columns;
        codes += columns;
    }
}

void batch::place(uint32_t const* groups) {
    std::span<uint32_t const> const numbers = numbering_.bags();
    std::span<packed_bag_t const> const packed_bags = packer_.bags();
    for (size_t bag = 0; bag != bags_count_; ++bag) {
        packed_bag_t const& packed = packed_bags[bag];
        uint32_t const slot = packed.device == dropped_k
                                  ? UINT32_MAX
                                  : (whole_.run.first_rank + packed.device) * whole_.run.bags_capacity + packed.place;
        bags_[bag] = {packed.device, packed.place, slot, 0};
    }
    size_t seen = 0; // bags are numbered by first appearance, and a bag's group is its first item's
    std::span<packed_item_t const> const packed_items = packer_.items();
    for (size_t index = 0; index != items_count_; ++index) {
        uform_item_t& item = items_[index];
        item.device = packed_items[index].device;
        item.segment = packed_items[index].segment;
        item.bag = numbers.empty() ? static_cast<uint32_t>(index) : numbers[index];
        first_[index] = packed_items[index].first;
        if (item.bag == seen)
            bags_[seen++].group = groups ? groups[item.content] : 0;
    }
    count_before();
}

void batch::count_before() {
    std::fill(content_columns_.begin(), content_columns_.end(), 0u);
    for (size_t index = 0; index != items_count_; ++index) {
        uform_item_t const& item = items_[index];
        if (item.device == dropped_k)
            continue;
        size_t const place = static_cast<size_t>(modality_place_[item.modality]);
        uint32_t& columns = content_columns_[item.device * modalities_capacity_k + place];
        before_[index] = columns;
        columns += item.measure.columns;
    }
}

void batch::fill(std::span<staging_view const> staging) {
    staging_ = staging;
    std::fill(covered_first_.begin(), covered_first_.end(), 0u);
    std::fill(covered_count_.begin(), covered_count_.end(), 0u);
    std::fill(covered_total_.begin(), covered_total_.end(), 0u);
    std::fill(covered_modality_.begin(), covered_modality_.end(), -1);
    std::fill_n(is_covered_.begin(), items_count_, uint8_t(0));
    pool_.parallel_chunks(items_count_, chunk_of(given_), [&](size_t begin, size_t end) {
        for (size_t index = begin; index != end; ++index)
            if (items_[index].device != dropped_k)
                fill_item(index);
    });
}

void batch::fill_item(size_t index) {
    uform_item_t const& item = items_[index];
    staging_view const& staging = staging_[item.device];
    auto const& modality = whole_.modalities[static_cast<size_t>(modality_place_[item.modality])];
    uform_segment_t& segment = staging.segments[item.segment];
    segment.first = first_[index];
    segment.columns = columns_[index];
    segment.pooled = 1 + item.measure.columns;
    segment.bag = bags_[item.bag].place;
    segment.modality = static_cast<uint16_t>(item.modality);
    segment.axes = item.measure.axes;
    std::memcpy(segment.extents, item.measure.extents, sizeof(segment.extents));
    segment.reserved = 0;
    uform_content_t const content = content_of(given_, item.content);
    uform_fill_t fill{
        &content,       &item.measure, &segment, staging.codes + segment.first, staging.base + modality.staging_offset,
        before_[index], item.device};
    call_plugin(modality, "fill", [&] { return modality.plugin->fill(modality.self, &fill); }, item.content);
    if (segment.columns != segment.pooled)
        fill_extra(item, fill.codes + segment.pooled, segment.columns - segment.pooled);
}

/** Covered columns are gathered and scattered by place, each once; modalities write what the actions say. */
void batch::check_cover(size_t index, uint32_t const* places, uint8_t const* actions, uint8_t const* random_bytes,
                        uint32_t count) const {
    auto const refuse = [](auto const&... why) { fail(uform_status_invalid_argument_k, "cover: ", why...); };
    if (is_covered_[index])
        refuse("item ", index, " is covered already");
    if (count && (!places || !actions))
        refuse("its ", places ? "actions" : "places", " is null: expected ", count);
    for (uint32_t column = 0; column != count; ++column) {
        if (places[column] >= items_[index].measure.columns)
            refuse("item ", index, " has no content column ", places[column]);
        if (column && places[column] <= places[column - 1])
            refuse("its places[", column, "] is ", places[column], ": expected one above ", places[column - 1],
                   ", the one before it");
        if (actions[column] > uform_cover_action_stay_k)
            refuse("its actions[", column, "] is ", int(actions[column]), ": expected one of uform_cover_action_t");
        if (actions[column] == uform_cover_action_random_k && !random_bytes)
            refuse("its random_bytes is null, but its actions[", column, "] is uform_cover_action_random_k");
    }
}

void batch::cover(size_t index, uint32_t const* places, uint8_t const* actions, uint8_t const* random_bytes,
                  uint32_t count) {
    if (index >= items_count_ || items_[index].device == dropped_k)
        fail(uform_status_internal_k, "cover: item ", index, " is not in the batch");
    uform_item_t const& item = items_[index];
    int const place = modality_place_[item.modality];
    size_t const cell = item.device * modalities_capacity_k + static_cast<size_t>(place);
    uint32_t& total = covered_total_[item.device];
    if (place < covered_modality_[item.device])
        fail(uform_status_internal_k, "cover: items must come modality by modality");
    if (place != covered_modality_[item.device]) {
        covered_modality_[item.device] = place;
        covered_first_[cell] = total;
    }
    if (count > whole_.covered_capacity - total)
        fail(uform_status_internal_k, "cover: over the ", whole_.covered_capacity,
             " columns that objectives asked for");
    auto const& modality = whole_.modalities[static_cast<size_t>(place)];
    if (modality.plugin->cover_kind == uform_cover_kind_none_k)
        fail(uform_status_invalid_argument_k, "cover: item ", index, " is of plugin ", modality.name,
             ", whose columns cannot be covered");
    check_cover(index, places, actions, random_bytes, count);
    staging_view const& staging = staging_[item.device];
    uform_segment_t const& segment = staging.segments[item.segment];
    for (uint32_t column = 0; column != count; ++column)
        staging.covered[total + column] = segment.first + 1 + places[column];
    uform_cover_t cover{&segment,
                        staging.codes + segment.first,
                        staging.base + modality.staging_offset,
                        before_[index],
                        covered_count_[cell],
                        item.device,
                        places,
                        actions,
                        random_bytes,
                        count};
    call_plugin(modality, "cover", [&] { return modality.plugin->cover(modality.self, &cover); }, item.content);
    is_covered_[index] = 1;
    covered_count_[cell] += count;
    total += count;
}

void batch::finish() {
    for (size_t device = 0; device != staging_.size(); ++device) {
        packed_device_t const& packed = packer_.devices()[device];
        staging_view const& staging = staging_[device];
        *staging.counts = {packed.columns, packed.segments, packed.bags, covered_total_[device], {}, {}};
        for (size_t place = 0; place != whole_.modalities.size(); ++place) {
            size_t const cell = device * modalities_capacity_k + place;
            staging.counts->covered_of[place] = covered_count_[cell];
            staging.counts->covered_first[place] = covered_first_[cell];
            auto const& modality = whole_.modalities[place];
            call_plugin(modality, "finish", [&] {
                return modality.plugin->finish(modality.self, static_cast<uint32_t>(device),
                                               staging.base + modality.staging_offset, content_columns_[cell],
                                               covered_count_[cell]);
            });
        }
    }
}

} // namespace uform

extern "C" uform_status_t uform_items_bags(uform_items_t const* items, size_t* bags) {
    return uform::guard([&] {
        if (!items->bags) {
            *bags = items->count;
            return;
        }
        thread_local uform::bag_numbering numbering;
        numbering.number(items->bags, items->count);
        *bags = numbering.count();
    });
}
