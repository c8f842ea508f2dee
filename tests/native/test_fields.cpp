// Configuration structures through their description: out to JSON, back, completed, compared.
#include "core/fields.h"

#include <cstddef>
#include <limits>
#include <string>

#include "check.h"
#include "core/error.h"

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
    restore_fields(fields_k, count_k, &sample, describe_fields(fields_k, count_k, &sample_k), "plugin");
    CHECK(!first_difference(fields_k, count_k, &sample, &sample_k));
    CHECK(sample.list[2] == 0 && sample.list[3] == 0);
    restore_fields(fields_k, count_k, &sample, json::parse(R"({"rate":2})"), "plugin");
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

void test_fill_zeros() {
    sample_t config = {{}, 0, 0, -1.0, 0};
    fill_zeros_from(fields_k, count_k, &config, &sample_k);
    CHECK(config.list_count == 2 && config.list[1] == 128 && config.depth == -3 && config.rate == -1.0 &&
          config.steps == sample_k.steps);
    sample_t given = {{32}, 1, 8, 0.0, 9};
    fill_zeros_from(fields_k, count_k, &given, &sample_k);
    CHECK(given.list_count == 1 && given.list[0] == 32 && given.depth == 8 && given.rate == 0.1 && given.steps == 9);
}

void test_first_difference() {
    sample_t other = sample_k;
    CHECK(!first_difference(fields_k, count_k, &sample_k, &other));
    other.list[3] = 9; // past the count
    CHECK(!first_difference(fields_k, count_k, &sample_k, &other));
    other.steps = 1;
    auto difference = first_difference(fields_k, count_k, &sample_k, &other);
    CHECK(difference && difference->name == "steps" && difference->left == "9007199254740992" &&
          difference->right == "1");
    other.list_count = 1;
    difference = first_difference(fields_k, count_k, &sample_k, &other);
    CHECK(difference && difference->name == "sizes" && difference->left == "[64,128]" && difference->right == "[64]");
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
    test_fill_zeros();
    test_first_difference();
    test_bad_counts();
    return native_test::report();
}
