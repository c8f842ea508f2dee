// Configuration structures through their description: out to JSON, back, compared and derived field by field.
#include "core/fields.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "core/error.h"
#include "core/resume.h"

using namespace uform;

namespace {

struct sample_t {
    std::int32_t list[4];
    std::int32_t list_count;
    std::int32_t depth;
    double rate;
    std::int64_t steps;
};

constexpr uform_field_t fields_k[] = {
    {"sizes", uform_field_type_int32_list_k, offsetof(sample_t, list), 4, offsetof(sample_t, list_count)},
    {"depth", uform_field_type_int32_k, offsetof(sample_t, depth), 0, 0},
    {"rate", uform_field_type_double_k, offsetof(sample_t, rate), 0, 0},
    {"steps", uform_field_type_int64_k, offsetof(sample_t, steps), 0, 0},
};
constexpr std::size_t count_k = std::size(fields_k);

constexpr sample_t sample_k = {{64, 128}, 2, -3, 0.1, std::int64_t(1) << 53};

bool all_equal(sample_t const& left, sample_t const& right) {
    return std::all_of(std::begin(fields_k), std::end(fields_k),
                       [&](uform_field_t const& field) { return fields_equal(field, &left, &right); });
}

std::string refusal(auto&& body) {
    try {
        body();
    } catch (uform::error const& failure) {
        CHECK(failure.status == uform_status_invalid_argument_k);
        return failure.message;
    }
    return {};
}

std::string refusal_of(char const* text) {
    sample_t sample = {};
    return refusal([&] { restore_fields(fields_k, count_k, &sample, json::parse(text), "plugin"); });
}

void test_describe() {
    CHECK(describe_fields(fields_k, count_k, &sample_k).dump() ==
          R"({"sizes":[64,128],"depth":-3,"rate":0.1,"steps":9007199254740992})");
    CHECK(describe_fields(nullptr, 0, nullptr).dump() == "{}");
}

void test_restore() {
    sample_t sample = {{1, 2, 3, 4}, 4, 5, 6, 7};
    auto const all =
        restore_fields(fields_k, count_k, &sample, describe_fields(fields_k, count_k, &sample_k), "plugin");
    CHECK(all == std::vector<bool>(count_k, true) && all_equal(sample, sample_k));
    CHECK(sample.list[2] == 0 && sample.list[3] == 0);
    auto const one = restore_fields(fields_k, count_k, &sample, json::parse(R"({"rate":2})"), "plugin");
    CHECK(one == std::vector<bool>({false, false, true, false}));
    CHECK(sample.depth == 0 && sample.list_count == 0 && sample.rate == 2.0 && sample.steps == 0);
}

void test_restore_refuses() {
    CHECK(refusal_of(R"({"width":1})").find("width") != std::string::npos);
    CHECK(refusal_of(R"({"depth":2147483648})") == "plugin.depth is 2147483648, which 32 bits do not hold");
    CHECK(refusal_of(R"({"depth":1.5})").find("plugin.depth") != std::string::npos);
    CHECK(refusal_of(R"({"rate":"fast"})").find("plugin.rate") != std::string::npos);
    CHECK(refusal_of(R"({"sizes":[1,2,3,4,5]})") == "plugin.sizes has 5 entries, but takes at most 4");
    CHECK(refusal_of(R"({"sizes":[1,null]})").find("plugin.sizes[1]") != std::string::npos);
    CHECK(refusal_of(R"({"sizes":3})").find("plugin.sizes") != std::string::npos);
    CHECK(refusal_of("[]").find("plugin") != std::string::npos);
}

void test_single_fields() {
    sample_t config = {{7, 7, 7, 7}, 0, 0, -0.0, 0};
    for (uform_field_t const& field : fields_k) {
        CHECK(field_is_zero(field, &config) && !field_is_zero(field, &sample_k));
        CHECK(!fields_equal(field, &config, &sample_k));
        copy_field(field, &config, &sample_k);
        CHECK(fields_equal(field, &config, &sample_k));
        CHECK(field_value(field, &config) == describe_fields(fields_k, count_k, &sample_k).at(field.name));
    }
    config.list[3] = 9; // past the count
    CHECK(all_equal(config, sample_k));
    config.list_count = 1;
    CHECK(!fields_equal(fields_k[0], &config, &sample_k) && fields_equal(fields_k[1], &config, &sample_k));
    for (uform_field_t const& field : fields_k) {
        clear_field(field, &config);
        CHECK(field_is_zero(field, &config));
        CHECK(ask_true_zero(field, &config) == (field.type != uform_field_type_int32_list_k));
    }
    CHECK(config.list[0] == 0 && config.depth == -1 && config.steps == -1);
    CHECK(config.rate < 0 && config.rate > -1e-20);
}

/* ------------------------------------------------------------------------------------------------ derivation */

/** Sizes are at least 1 and derive 4 and 8, the rate may be a true zero, the steps derive ten times the depth. */
void derive_sample(void* config) {
    auto& sample = *static_cast<sample_t*>(config);
    if (sample.list_count == 0)
        sample.list[0] = 4, sample.list[1] = 8, sample.list_count = 2;
    if (sample.depth == 0)
        sample.depth = 3;
    if (sample.depth < 0)
        fail(uform_status_invalid_argument_k, "depth: at least 1, not ", sample.depth);
    sample.rate = sample.rate == 0 ? 0.5 : sample.rate < 0 ? 0 : sample.rate;
    if (sample.steps == 0)
        sample.steps = 10 * sample.depth;
    if (sample.steps < sample.depth)
        fail(uform_status_invalid_argument_k, "steps: ", sample.steps, " is below depth, ", sample.depth);
}

config_kind const kind = {fields_k, sizeof(sample_t), derive_sample};

sample_t sample_of(derived_config const& config) {
    sample_t sample;
    std::memcpy(&sample, config.values.data(), sizeof(sample));
    return sample;
}

derived_config read(char const* values, char const* given = nullptr, absent_field_t absent = absent_field_t::refused) {
    json const names = given ? json::parse(given) : json();
    return read_derived(kind, json::parse(values), given ? &names : nullptr, "plugin", absent);
}

void test_derives_what_was_given() {
    sample_t const given = {{}, 0, 5, -1.0, 0};
    derived_config const made = derive_given(kind, &given);
    CHECK(all_equal(sample_of(made), {{4, 8}, 2, 5, 0.0, 50}));
    CHECK(describe_given(fields_k, made.given).dump() == R"(["depth","rate"])");
    config_kind const restless = {fields_k, sizeof(sample_t),
                                  [](void* config) { ++static_cast<sample_t*>(config)->steps; }};
    CHECK(refusal([&] { derive_given(restless, &given); }) == "steps is 1 where a run would have 2");
}

void test_reads_what_was_derived() {
    char const whole[] = R"({"sizes":[4,8],"depth":5,"rate":0.0,"steps":50})";
    derived_config const old = read(whole), known = read(whole, R"(["depth","rate"])");
    CHECK(all_equal(sample_of(old), {{4, 8}, 2, 5, 0.0, 50}) && old.given == std::vector<bool>(count_k, true));
    CHECK(old.values == known.values && known.given == std::vector<bool>({false, true, true, false}));
    auto const refusal_of_file = [](char const* values, char const* given = nullptr) {
        return refusal([&] { read(values, given); });
    };
    CHECK(refusal_of_file(R"({"sizes":[4,8],"depth":0,"rate":0.0,"steps":50})") ==
          "plugin.depth is 0, which no run has");
    CHECK(refusal_of_file(R"({"sizes":[],"depth":5,"rate":0.0,"steps":50})") == "plugin.sizes is [], which no run has");
    CHECK(refusal_of_file(R"({"sizes":[4,8],"depth":5,"rate":-2,"steps":50})") ==
          "plugin.rate is -2.0 where a run would have 0.0");
    CHECK(refusal_of_file(R"({"sizes":[4,8],"depth":-5,"rate":1.0,"steps":50})") ==
          "plugin: depth: at least 1, not -5");
    CHECK(refusal_of_file(R"({"depth":5,"rate":0.0,"steps":50})") == "plugin.sizes is missing");
    CHECK(refusal_of_file(whole, R"(["width"])").find("width") != std::string::npos);
    CHECK(refusal_of_file(whole, R"({"depth":1})").starts_with("given.plugin: expected an array"));
    CHECK(refusal_of_file(whole, "[3]").starts_with("given.plugin: expected a string"));
    // Depth derives 3 where it was not given, which the steps that were do not reach.
    CHECK(refusal_of_file(R"({"sizes":[4,8],"depth":1,"rate":1.0,"steps":2})", R"(["steps"])") ==
          "given.plugin: steps: 2 is below depth, 3");
    derived_config const newer = read(R"({"depth":7,"rate":0.0})", nullptr, absent_field_t::derives);
    CHECK(all_equal(sample_of(newer), {{4, 8}, 2, 7, 0.0, 70}));
    CHECK(newer.given == std::vector<bool>({false, true, true, false}));
}

void test_resumes() {
    char const whole[] = R"({"sizes":[4,8],"depth":5,"rate":0.0,"steps":50})";
    derived_config const saved = read(whole, R"(["depth","rate"])");
    auto const resumed = [&](sample_t const& given, derived_config const& from) {
        return derive_resumed(kind, &given, from, derive_sample);
    };
    derived_config const same = resumed({}, saved);
    CHECK(same.values == saved.values && same.given == saved.given);
    derived_config const deeper = resumed({{}, 0, 6, 0, 0}, saved);
    CHECK(all_equal(sample_of(deeper), {{4, 8}, 2, 6, 0.0, 60}) && deeper.given == saved.given);
    derived_config const longer = resumed({{}, 0, 0, 0, 90}, saved);
    CHECK(all_equal(sample_of(longer), {{4, 8}, 2, 5, 0.0, 90}));
    CHECK(longer.given == std::vector<bool>({false, true, true, true}));
    CHECK(all_equal(sample_of(resumed({{}, 0, 6, 0, 0}, longer)), {{4, 8}, 2, 6, 0.0, 90}));
    CHECK(refusal([&] { resumed({{}, 0, 91, 0, 0}, longer); }) ==
          "steps: 90 is below depth, 91 (what was left at zero is the checkpoint's)");
    // A default of another version stays until what it derives from is given anew.
    derived_config const other = read(R"({"sizes":[2],"depth":5,"rate":0.25,"steps":77})", R"(["depth"])");
    CHECK(resumed({}, other).values == other.values);
    CHECK(all_equal(sample_of(resumed({{}, 0, 0, 2.0, 0}, other)), {{2}, 1, 5, 2.0, 77}));
    CHECK(all_equal(sample_of(resumed({{}, 0, 6, 0, 0}, other)), {{2}, 1, 6, 0.25, 60}));
}

void test_bad_counts() {
    sample_t config = sample_k;
    for (std::int32_t count : {-1, 5, std::numeric_limits<std::int32_t>::min()}) {
        config.list_count = count;
        CHECK(refusal([&] { describe_fields(fields_k, count_k, &config); }).starts_with("sizes has "));
    }
}

} // namespace

int main() {
    test_describe();
    test_restore();
    test_restore_refuses();
    test_single_fields();
    test_bad_counts();
    test_derives_what_was_given();
    test_reads_what_was_derived();
    test_resumes();
    return native_test::report();
}
