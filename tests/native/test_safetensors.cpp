/** JSON and safetensors without Python: round trips, cut and damaged files, hostile headers, failing saves. */
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <csignal>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "core/error.h"
#include "core/json.h"
#include "core/safetensors.h"

namespace {

namespace fs = std::filesystem;
using namespace std::string_view_literals;
using uform::json;
using uform::safetensors_dtype_t;
using uform::safetensors_file;
using uform::safetensors_writer;

struct failure_t {
    bool raised = false;
    uform_status_t status = uform_status_success_k;
    std::string message;
};

template <typename body_at> failure_t failure_of(body_at&& body) {
    try {
        body();
        return {};
    } catch (uform::error const& raised) {
        return {true, raised.status, raised.what()};
    }
}

/** Checks that the body fails with this status and a message that has all the given parts. */
void check_fails(int line, uform_status_t status, std::vector<std::string> const& parts,
                 std::function<void()> const& body) {
    auto const failure = failure_of(body);
    bool holds = failure.raised && failure.status == status;
    for (auto const& part : parts)
        holds = holds && failure.message.find(part) != std::string::npos;
    native_test::record(holds, __FILE__, line,
                        "fails with " + (parts.empty() ? "" : parts.front()) + "; status " +
                            std::to_string(failure.status) + ", message: " + failure.message);
}

#define CHECK_FAILS(status, parts, ...)                                                                                \
    check_fails(__LINE__, status, std::vector<std::string> parts, [&] { __VA_ARGS__; })
#define PARTS(...) {__VA_ARGS__}

/** A directory of its own, removed with what is in it. */
struct scratch_t {
    fs::path root;

    scratch_t() {
        std::string pattern = (fs::temp_directory_path() / "uform-test-XXXXXX").string();
        if (!::mkdtemp(pattern.data()))
            throw std::runtime_error("no temporary directory");
        root = pattern;
    }
    ~scratch_t() { fs::remove_all(root); }

    std::string path(std::string const& name) const { return (root / name).string(); }
    std::size_t entries() const {
        return static_cast<std::size_t>(std::distance(fs::directory_iterator(root), fs::directory_iterator()));
    }
};

std::string slurp(std::string const& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

void spill(std::string const& path, std::string const& bytes) {
    std::ofstream stream(path, std::ios::binary | std::ios::trunc);
    stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/** The bytes of a file with this header and so many bytes of data. */
std::string with_header(std::string const& header, std::size_t data_bytes) {
    std::uint64_t const length = header.size();
    return std::string(reinterpret_cast<char const*>(&length), 8) + header + std::string(data_bytes, '\7');
}

template <typename value_at> std::span<std::byte const> bytes_of(std::vector<value_at> const& values) {
    return std::as_bytes(std::span(values));
}

std::vector<float> const weights = {1.5f, -2.25f, 0.1f, 3e38f, -0.0f, 1e-45f};
std::vector<std::uint8_t> const flags = {0, 1, 255};

void write_small(std::string const& path, safetensors_writer::progress_t progress = {}) {
    safetensors_writer writer(path);
    writer.add_metadata("config", R"({"depth":3})");
    writer.add_metadata("note", "zwölf \"Boxkämpfer\"\n");
    writer.declare("weights", safetensors_dtype_t::f32, {2, 3});
    writer.declare("empty", safetensors_dtype_t::i64, {0, 7});
    writer.declare("flags", safetensors_dtype_t::u8, {3});
    writer.begin(std::move(progress));
    writer.write("weights", bytes_of(weights).first(7));
    writer.write("weights", bytes_of(weights).subspan(7));
    writer.write("flags", bytes_of(flags));
    writer.commit();
}

/** Reads every tensor, so that whatever a header claims is also tried. */
void read_all(safetensors_file const& file) {
    for (auto const& tensor : file.tensors()) {
        std::vector<std::byte> destination(tensor.bytes());
        file.read(tensor.name, destination);
    }
}

void test_json_values() {
    auto const text =
        R"({"a":[1,-1,18446744073709551615,-9223372036854775808,1.0,-0.0,1e300,null,true,false],"b":{},"c":[]})";
    auto const value = json::parse(text);
    auto const& items = value.at("a").as_array("a");
    CHECK(items[2].as_uint64("a") == std::numeric_limits<std::uint64_t>::max());
    CHECK(items[3].as_int64("a") == std::numeric_limits<std::int64_t>::min());
    CHECK(items[3].as_double("a") == -9223372036854775808.0);
    CHECK(std::signbit(items[5].as_double("a")));
    CHECK(json::parse(value.dump()) == value);
    CHECK(
        value.dump().starts_with(R"({"a":[1,-1,18446744073709551615,-9223372036854775808,1.0,-0.0,1e+300,null,true)"));
    CHECK(json(-3).as_int64("x") == -3 && json(3).as_int64("x") == 3 && json(true).as_bool("x"));
    CHECK(std::signbit(json::parse("-0").as_double("x")));
    CHECK(json::parse(" \n\t\r 7 ").as_uint64("x") == 7);
    CHECK(value.find("missing") == nullptr);
    CHECK_FAILS(uform_status_invalid_argument_k, PARTS("depth", "non-negative", "-3"), json(-3).as_uint64("depth"));
    CHECK_FAILS(uform_status_invalid_argument_k, PARTS("depth", "string"), json("3").as_uint64("depth"));
    CHECK_FAILS(uform_status_invalid_argument_k, PARTS("seed", "18446744073709551615"), items[2].as_int64("seed"));
    CHECK_FAILS(uform_status_invalid_argument_k, PARTS("rate"), items[2].as_double("rate"));
    CHECK_FAILS(uform_status_invalid_argument_k, PARTS("\"missing\""), value.at("missing"));
    CHECK_FAILS(uform_status_invalid_argument_k, PARTS("nan"), json(std::nan("")).dump());
    auto twice = json::make_object();
    twice.set("key", 1);
    CHECK_FAILS(uform_status_invalid_argument_k, PARTS("\"key\"", "already"), twice.set("key", 2));
}

void test_json_doubles_are_bit_equal() {
    std::mt19937_64 random(7);
    bool all_equal = true;
    for (int trial = 0; trial != 20000; ++trial) {
        auto const value = std::bit_cast<double>(random());
        if (!std::isfinite(value))
            continue;
        auto const back = json::parse(json(value).dump()).as_double("value");
        all_equal = all_equal && std::bit_cast<std::uint64_t>(back) == std::bit_cast<std::uint64_t>(value);
    }
    CHECK(all_equal);
    for (double const value : {0.0, -0.0, 5e-324, 1.7976931348623157e308, 1e22, 123456789.0, 0.1})
        CHECK(std::bit_cast<std::uint64_t>(json::parse(json(value).dump()).as_double("value")) ==
              std::bit_cast<std::uint64_t>(value));
}

void test_json_strings() {
    CHECK(json::parse(R"("\u0041\u00e9\u20ac\ud83d\ude00\"\\\/\b\f\n\r\t")").as_string("x") ==
          "A\u00e9\u20ac\U0001F600\"\\/\b\f\n\r\t");
    CHECK(json::parse(R"("\u0000")").as_string("x") == std::string(1, '\0'));
    for (std::string const& text : {std::string("\0\1\x1f\x7f", 4), std::string("\"\\/"), std::string("Ü€😀")})
        CHECK(json::parse(json(text).dump()).as_string("x") == text);
    for (auto const bad : {"\"\\ud83d\"", "\"\\ude00\"", "\"\\ud83d\\u0041\"", "\"\\ud83dx\"", "\"\\u12g4\"", "\"\\u12",
                           "\"\\x\"", "\"\\", "\"\xff\"", "\"\xc0\xaf\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"",
                           "\"\xe2\x82\"", "\"\n\"", "\"abc"})
        CHECK_FAILS(uform_status_invalid_argument_k, PARTS("JSON at byte "), json::parse(bad));
    CHECK_FAILS(uform_status_invalid_argument_k, PARTS("not UTF-8"), json("\xff").dump());
}

void test_json_refuses() {
    for (auto const bad : {"",
                           " ",
                           "{",
                           "[",
                           "[1",
                           "[1,",
                           "[1,]",
                           "{\"a\"",
                           "{\"a\":",
                           "{\"a\":1",
                           "{\"a\":1,}",
                           "{a:1}",
                           "tru",
                           "nul",
                           "True",
                           "NaN",
                           "Infinity",
                           "-",
                           "+1",
                           "01",
                           "1.",
                           ".5",
                           "1e",
                           "1e+",
                           "-a",
                           "1 2",
                           "[1]]",
                           "'a'",
                           "[1 2]",
                           "{\"a\" 1}",
                           "\xef\xbb\xbf{}",
                           "18446744073709551616",
                           "-9223372036854775809",
                           "1e999",
                           "//",
                           "{\"a\":1,\"b\":2,\"a\":3}"})
        CHECK_FAILS(uform_status_invalid_argument_k, PARTS("JSON at byte "), json::parse(bad));
    CHECK_FAILS(uform_status_invalid_argument_k, PARTS("byte 3"), json::parse("[1,x]"));
    std::string const just(json::max_depth, '['), deeper(json::max_depth + 1, '['), deep(1000000, '[');
    CHECK(json::parse(just + std::string(json::max_depth, ']')).is_array());
    CHECK_FAILS(uform_status_invalid_argument_k, PARTS("deeper"), json::parse(deeper));
    CHECK_FAILS(uform_status_invalid_argument_k, PARTS("deeper"), json::parse(deep));
    json nested = json::array();
    for (std::size_t depth = 1; depth != json::max_depth; ++depth)
        nested = json(json::array{nested});
    CHECK(json::parse(nested.dump()) == nested);
    CHECK_FAILS(uform_status_invalid_argument_k, PARTS("deeper"), json(json::array{nested}).dump());
}

void test_round_trip() {
    scratch_t const scratch;
    auto const path = scratch.path("small.safetensors");
    write_small(path);
    auto const file = safetensors_file::open(path);
    CHECK(file.tensors().size() == 3);
    CHECK(file.find("weights")->shape == std::vector<std::uint64_t>({2, 3}));
    CHECK(file.find("weights")->dtype == safetensors_dtype_t::f32);
    CHECK(file.find("empty")->bytes() == 0);
    CHECK(file.find("nothing") == nullptr);
    CHECK(*file.find_metadata("config") == R"({"depth":3})");
    CHECK(*file.find_metadata("note") == "zwölf \"Boxkämpfer\"\n");
    CHECK(file.find_metadata("nothing") == nullptr);
    std::vector<float> read_weights(6);
    file.read("weights", std::as_writable_bytes(std::span(read_weights)));
    CHECK(std::memcmp(read_weights.data(), weights.data(), sizeof(float) * 6) == 0);
    std::vector<std::uint8_t> read_flags(3);
    file.read("flags", std::as_writable_bytes(std::span(read_flags)));
    CHECK(read_flags == flags);
    file.read("empty", {});
    CHECK_FAILS(uform_status_file_k, PARTS(path, "\"nothing\"", "not in the file"), file.read("nothing", {}));
    CHECK_FAILS(uform_status_file_k, PARTS(path, "\"weights\"", "24", "3"),
                file.read("weights", std::as_writable_bytes(std::span(read_flags))));
    auto const bytes = slurp(path);
    CHECK((bytes.size() - 27) % 8 == 0);
    write_small(path);
    CHECK(slurp(path) == bytes);
    CHECK(scratch.entries() == 1);

    safetensors_writer(scratch.path("none")).begin();
    CHECK(!fs::exists(scratch.path("none")));
    safetensors_writer none(scratch.path("none"));
    none.begin();
    none.commit();
    CHECK(safetensors_file::open(scratch.path("none")).tensors().empty());
}

void test_every_dtype() {
    scratch_t const scratch;
    auto const path = scratch.path("dtypes");
    std::vector<safetensors_dtype_t> const dtypes = {
        safetensors_dtype_t::f64,    safetensors_dtype_t::i64, safetensors_dtype_t::u64, safetensors_dtype_t::f32,
        safetensors_dtype_t::i32,    safetensors_dtype_t::u32, safetensors_dtype_t::f16, safetensors_dtype_t::bf16,
        safetensors_dtype_t::i16,    safetensors_dtype_t::u16, safetensors_dtype_t::i8,  safetensors_dtype_t::u8,
        safetensors_dtype_t::boolean};
    safetensors_writer writer(path);
    for (auto const dtype : dtypes)
        writer.declare(safetensors_dtype_name(dtype), dtype, {});
    writer.begin();
    std::array<std::byte, 8> const ones = {std::byte(1)};
    for (auto const dtype : dtypes)
        writer.write(safetensors_dtype_name(dtype), std::span(ones).first(safetensors_dtype_bytes(dtype)));
    writer.commit();
    auto const file = safetensors_file::open(path);
    for (auto const dtype : dtypes) {
        auto const tensor = file.find(safetensors_dtype_name(dtype));
        CHECK(tensor && tensor->dtype == dtype && tensor->bytes() == safetensors_dtype_bytes(dtype));
    }
}

void test_every_cut() {
    scratch_t const scratch;
    auto const path = scratch.path("cut");
    write_small(path);
    auto const whole = slurp(path);
    for (std::size_t size = 0; size != whole.size(); ++size) {
        spill(path, whole.substr(0, size));
        CHECK_FAILS(uform_status_file_k, PARTS(path), safetensors_file::open(path));
    }
    spill(path, whole + '\0');
    CHECK_FAILS(uform_status_file_k, PARTS(path, "belong to no tensor"), safetensors_file::open(path));
}

void test_cut_while_open() {
    scratch_t const scratch;
    auto const path = scratch.path("cut");
    write_small(path);
    auto const file = safetensors_file::open(path);
    fs::resize_file(path, fs::file_size(path) - 3 - 4);
    std::vector<float> destination(6, 42.f);
    CHECK_FAILS(uform_status_file_k, PARTS(path, "\"weights\"", "ends at byte"),
                file.read("weights", std::as_writable_bytes(std::span(destination))));
    CHECK(destination == std::vector<float>(6, 42.f));
}

/** Opens a damaged file, which must be refused as a bad file or be read to the end. */
bool refused_or_valid(std::string const& path) {
    auto const failure = failure_of([&] { read_all(safetensors_file::open(path)); });
    return !failure.raised ||
           (failure.status == uform_status_file_k && failure.message.find(path) != std::string::npos);
}

void test_damaged_headers() {
    scratch_t const scratch;
    auto const path = scratch.path("damaged");
    write_small(path);
    auto const whole = slurp(path);
    std::size_t const header_end = whole.size() - 27;
    bool all_hold = true;
    for (std::size_t bit = 0; bit != header_end * 8; ++bit) {
        auto damaged = whole;
        damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
        spill(path, damaged);
        all_hold = all_hold && refused_or_valid(path);
    }
    CHECK(all_hold);

    // Symbols of the grammar and bytes at random, put in, taken out, written over and copied about.
    std::string_view const alphabet("{}[]\":,0123456789-+.eE\\u dtypeshaF\x80\xff\0"sv);
    std::mt19937_64 random(11);
    auto const below = [&](std::size_t bound) { return static_cast<std::size_t>(random() % bound); };
    for (int trial = 0; trial != 6000; ++trial) {
        auto header = whole.substr(8, header_end - 8);
        for (std::size_t change = 0, changes = 1 + below(4); change != changes; ++change) {
            auto const at = below(header.size());
            switch (below(4)) {
            case 0:
                header[at] = alphabet[below(alphabet.size())];
                break;
            case 1:
                header.insert(at, 1, alphabet[below(alphabet.size())]);
                break;
            case 2:
                header.erase(at, 1 + below(8));
                break;
            default:
                header.insert(at, header.substr(below(header.size()), 1 + below(40)));
                break;
            }
            if (header.empty())
                header = "{";
        }
        spill(path, with_header(header, 27));
        all_hold = all_hold && refused_or_valid(path);
    }
    CHECK(all_hold);
}

void test_hostile_headers() {
    scratch_t const scratch;
    auto const path = scratch.path("hostile");
    auto const refuses = [&](int line, std::string const& header, std::size_t data_bytes,
                             std::vector<std::string> parts) {
        spill(path, with_header(header, data_bytes));
        parts.push_back(path);
        check_fails(line, uform_status_file_k, parts, [&] { safetensors_file::open(path); });
    };
    auto const tensor = [](std::string const& dtype, std::string const& shape, std::string const& offsets) {
        return "{\"w\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}";
    };
    for (std::uint64_t const length : {(std::uint64_t(16) << 20) + 1, std::uint64_t(1) << 40, ~std::uint64_t(0),
                                       ~std::uint64_t(0) - 7, std::uint64_t(3)}) {
        spill(path, std::string(reinterpret_cast<char const*>(&length), 8) + "{}");
        CHECK_FAILS(uform_status_file_k, PARTS(path, std::to_string(length)), safetensors_file::open(path));
    }
    refuses(__LINE__, "", 0, {"'{'"});
    refuses(__LINE__, "[]", 0, {"'{'"});
    refuses(__LINE__, " {}", 0, {"'{'"});
    refuses(__LINE__, "{}x", 0, {"byte 2"});
    refuses(__LINE__, "{\"w\":1}", 0, {"\"w\"", "object"});
    refuses(__LINE__, "{\"w\":{}}", 0, {"\"w\"", "\"dtype\""});
    refuses(__LINE__, "{\"__metadata__\":{\"a\":1}}", 0, {"__metadata__", "\"a\"", "string"});
    refuses(__LINE__, "{\"__metadata__\":null}", 0, {"__metadata__", "object"});
    refuses(__LINE__, "{\"__metadata__\":{\"a\":\"b\",\"a\":\"c\"}}", 0, {"\"a\" twice"});
    refuses(__LINE__, tensor("F8_E4M3", "[4]", "[0,4]"), 4, {"\"w\"", "\"F8_E4M3\""});
    refuses(__LINE__, tensor("f32", "[1]", "[0,4]"), 4, {"\"w\"", "\"f32\""});
    refuses(__LINE__, tensor("F32", "[-1]", "[0,4]"), 4, {"\"w\"", "shape", "-1"});
    refuses(__LINE__, tensor("F32", "[1.0]", "[0,4]"), 4, {"\"w\"", "shape", "number"});
    refuses(__LINE__, tensor("F32", "[\"1\"]", "[0,4]"), 4, {"\"w\"", "shape", "string"});
    refuses(__LINE__, tensor("F32", "[2]", "[0,4]"), 4, {"\"w\"", "[2]", "8", "4"});
    refuses(__LINE__, tensor("F32", "[4294967296,4294967296]", "[0,0]"), 0, {"\"w\"", "64 bits"});
    refuses(__LINE__, tensor("F32", "[4611686018427387904]", "[0,0]"), 0, {"\"w\"", "64 bits"});
    refuses(__LINE__, tensor("F32", "[18446744073709551616]", "[0,4]"), 4, {"out of range"});
    refuses(__LINE__, tensor("F32", "[1]", "[-4,0]"), 4, {"\"w\"", "data_offsets", "-4"});
    refuses(__LINE__, tensor("F32", "[1]", "[4,0]"), 4, {"\"w\"", "begins at 4"});
    refuses(__LINE__, tensor("F32", "[1]", "[0]"), 4, {"\"w\"", "data_offsets"});
    refuses(__LINE__, tensor("F32", "[1]", "[0,4,8]"), 8, {"\"w\"", "data_offsets"});
    refuses(__LINE__, tensor("F32", "[1]", "[0,18446744073709551615]"), 4, {"\"w\"", "18446744073709551615"});
    refuses(__LINE__, tensor("F32", "[1]", "[18446744073709551612,18446744073709551615]"), 4, {"\"w\""});
    refuses(__LINE__, tensor("F32", "[1]", "[4,8]"), 8, {"\"w\"", "0 to 4"});
    refuses(__LINE__, tensor("F32", "[1]", "[0,4]"), 8, {"4 to 8"});
    refuses(__LINE__, "{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"more\":1}}", 1,
            {"\"w\"", "\"more\""});
    std::string const one = "{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}";
    std::string const overlapping = "{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}";
    refuses(__LINE__, "{\"v\":" + one + ",\"w\":" + overlapping + "}", 3, {"\"w\"", "overlaps"});
    refuses(__LINE__, "{\"v\":" + one + ",\"w\":" + one + "}", 2, {"\"w\"", "overlaps"});
    refuses(__LINE__, "{\"v\":" + one + ",\"v\":" + one + "}", 2, {"\"v\" twice"});
    refuses(__LINE__, "{\"w\":" + std::string(500000, '[') + "}", 0, {"deeper"});
    refuses(__LINE__, "{\"" + std::string(100000, 'n') + "\":1}", 0, {"nnn..."});

    std::string const padded = tensor("F32", "[]", "[0,4]") + std::string(9, ' ');
    spill(path, with_header(padded, 4));
    CHECK(safetensors_file::open(path).find("w")->shape.empty());
}

void test_paths() {
    scratch_t const scratch;
    CHECK_FAILS(uform_status_file_k, PARTS(scratch.path("absent"), "No such file"),
                safetensors_file::open(scratch.path("absent")));
    CHECK_FAILS(uform_status_file_k, PARTS("Is a directory"), safetensors_file::open(scratch.root.string()));
    CHECK_FAILS(uform_status_file_k, PARTS("empty"), safetensors_file::open(""));
    CHECK_FAILS(uform_status_file_k, PARTS("zero byte"), safetensors_file::open(std::string("a\0b", 3)));
    CHECK_FAILS(uform_status_file_k, PARTS("empty"), safetensors_writer(""));
    ::mkfifo(scratch.path("pipe").c_str(), 0600);
    CHECK_FAILS(uform_status_file_k, PARTS("not a regular file"), safetensors_file::open(scratch.path("pipe")));
    CHECK_FAILS(uform_status_file_k, PARTS("pipe", "not a regular file"), write_small(scratch.path("pipe")));
    CHECK_FAILS(uform_status_file_k, PARTS(scratch.root.string()), write_small(scratch.root.string()));
    CHECK_FAILS(uform_status_file_k, PARTS("Is a directory"), write_small(scratch.root.string() + "/"));
    CHECK_FAILS(uform_status_file_k, PARTS("No such file"), write_small(scratch.path("absent/file")));
    CHECK_FAILS(uform_status_file_k, PARTS("Not a directory"), write_small(scratch.path("pipe/file")));
    CHECK(scratch.entries() == 1);
    // Bytes that are no text in any encoding are fine in a path, and so is the longest name there can be.
    for (auto const& name : {std::string("\xff\xfe name"), std::string(255, 'n')}) {
        write_small(scratch.path(name));
        CHECK(safetensors_file::open(scratch.path(name)).tensors().size() == 3);
    }
}

void test_links_and_permissions() {
    scratch_t const scratch;
    fs::create_directory(scratch.root / "real");
    fs::create_symlink("real/weights", scratch.root / "link");
    fs::create_symlink("link", scratch.root / "link-to-link");
    fs::create_symlink("loop", scratch.root / "loop");
    mode_t const old_mask = ::umask(027);
    write_small(scratch.path("link-to-link"));
    ::umask(old_mask);
    auto const mode = [&] { return static_cast<unsigned>(fs::status(scratch.root / "real/weights").permissions()); };
    CHECK(fs::is_symlink(scratch.root / "link") && fs::is_symlink(scratch.root / "link-to-link"));
    CHECK(fs::is_regular_file(fs::symlink_status(scratch.root / "real/weights")));
    CHECK(mode() == 0640);
    ::chmod(scratch.path("real/weights").c_str(), 0604);
    write_small(scratch.path("link"));
    CHECK(mode() == 0604);
    CHECK_FAILS(uform_status_file_k, PARTS(scratch.path("loop")), write_small(scratch.path("loop")));

    // Root may write anywhere, so root tries this part as another user.
    ::chmod(scratch.root.c_str(), 0755);
    ::chmod(scratch.path("real/weights").c_str(), 0444);
    bool const was_root = ::geteuid() == 0;
    if (was_root && ::seteuid(65534) != 0)
        return;
    auto const protected_file = failure_of([&] { write_small(scratch.path("link")); });
    if (was_root && ::seteuid(0) != 0)
        throw std::runtime_error("cannot become root again");
    ::chmod(scratch.path("real").c_str(), 0555);
    if (was_root && ::seteuid(65534) != 0)
        return;
    auto const protected_directory = failure_of([&] { write_small(scratch.path("real/new")); });
    if (was_root && ::seteuid(0) != 0)
        throw std::runtime_error("cannot become root again");
    ::chmod(scratch.path("real").c_str(), 0755);
    for (auto const& failure : {protected_file, protected_directory}) {
        CHECK(failure.status == uform_status_file_k);
        CHECK(failure.message.find("Permission denied") != std::string::npos);
    }
    CHECK(std::distance(fs::directory_iterator(scratch.root / "real"), fs::directory_iterator()) == 1);
    CHECK(safetensors_file::open(scratch.path("link")).tensors().size() == 3);
}

void test_cancel_and_throw() {
    scratch_t const scratch;
    auto const path = scratch.path("kept");
    spill(path, "the old file");
    int calls = 0;
    write_small(scratch.path("counted"), [&](std::uint64_t done, std::uint64_t total) {
        ++calls;
        CHECK(done <= total);
        return true;
    });
    CHECK(calls == 4);
    for (int stop = 1; stop <= calls; ++stop) {
        int left = stop;
        CHECK_FAILS(uform_status_cancelled_k, PARTS(path), write_small(path, [&](auto, auto) { return --left != 0; }));
        left = stop;
        bool passed_through = false;
        try {
            write_small(path, [&](auto, auto) { return --left != 0 ? true : throw std::domain_error("stop"); });
        } catch (std::domain_error const&) {
            passed_through = true;
        }
        CHECK(passed_through);
        CHECK(slurp(path) == "the old file" && scratch.entries() == 2);
    }

    safetensors_writer writer(path);
    writer.declare("a", safetensors_dtype_t::u8, {16u << 20});
    std::vector<std::uint8_t> const large(16u << 20, 9);
    CHECK_FAILS(uform_status_cancelled_k, PARTS(path, "cancelled"), {
        writer.begin([](std::uint64_t done, std::uint64_t) { return done < 5'000'000; });
        writer.write("a", bytes_of(large));
    });
    CHECK(scratch.entries() == 2);
    CHECK_FAILS(uform_status_invalid_argument_k, PARTS("has failed"), writer.write("a", bytes_of(large)));
    CHECK_FAILS(uform_status_invalid_argument_k, PARTS("has failed"), writer.commit());
}

/** What a process leaves beside `path` that is killed in the middle of writing it. */
void write_and_be_killed(std::string const& path) {
    pid_t const child = ::fork();
    if (child == 0) {
        safetensors_writer writer(path);
        writer.declare("a", safetensors_dtype_t::u8, {8});
        writer.begin();
        ::raise(SIGKILL);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

std::vector<std::string> names_beside(scratch_t const& scratch, std::string const& name) {
    std::vector<std::string> names;
    for (auto const& entry : fs::directory_iterator(scratch.root))
        if (entry.path().filename() != name)
            names.push_back(entry.path().filename());
    return names;
}

void test_abandoned_files() {
    scratch_t const scratch;
    auto const path = scratch.path("file");
    write_and_be_killed(path);
    write_and_be_killed(path);
    auto const left = names_beside(scratch, "file");
    CHECK(left.size() == 1); // the second one removed the first one's
    write_small(path);
    CHECK(names_beside(scratch, "file").empty());

    // Of another target, another host or another form, still being written, or no file: none of ours to remove.
    std::string const abandoned = left.empty() ? "" : left.front();
    std::string const of_another_target = ".file.more" + abandoned.substr(std::min(abandoned.size(), std::size_t(5)));
    std::string const of_another_host = ".file.elsewhere.1-2-3.tmp";
    std::string const of_another_form = abandoned + ".tmp";
    for (std::string const& name :
         {of_another_target, of_another_host, of_another_form, std::string(".file.1-2-3.tmp")})
        spill(scratch.path(name), "not abandoned");
    safetensors_writer slow(path);
    slow.declare("a", safetensors_dtype_t::u8, {1});
    slow.begin();
    auto const kept = names_beside(scratch, "file");
    CHECK(kept.size() == 5);
    fs::create_directory(scratch.path(abandoned));
    write_small(path);
    CHECK(names_beside(scratch, "file").size() == 6);
    CHECK(safetensors_file::open(path).tensors().size() == 3);
    slow.write("a", bytes_of(flags).first(1));
    slow.commit();
    CHECK(safetensors_file::open(path).tensors().size() == 1);
    CHECK(names_beside(scratch, "file").size() == 5);

    // A link to a file elsewhere is none of ours, whatever it is called.
    fs::remove(scratch.path(abandoned));
    spill(scratch.path("elsewhere"), "kept");
    fs::create_symlink("elsewhere", scratch.path(abandoned));
    write_small(path);
    CHECK(fs::is_symlink(fs::symlink_status(scratch.path(abandoned))) && slurp(scratch.path("elsewhere")) == "kept");

    std::string const long_name(255, 'n');
    write_and_be_killed(scratch.path(long_name));
    std::size_t const before = scratch.entries();
    write_small(scratch.path(long_name));
    CHECK(scratch.entries() == before);
}

void test_full_disk() {
    scratch_t const scratch;
    auto const path = scratch.path("kept");
    spill(path, "the old file");
    // A limit on the size of files fails a write half-way, just as a full disk does.
    struct rlimit old_limit;
    ::getrlimit(RLIMIT_FSIZE, &old_limit);
    auto const old_handler = std::signal(SIGXFSZ, SIG_IGN);
    struct rlimit const limit = {200, old_limit.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    auto const failure = failure_of([&] { write_small(path); });
    ::setrlimit(RLIMIT_FSIZE, &old_limit);
    std::signal(SIGXFSZ, old_handler);
    CHECK(failure.status == uform_status_file_k);
    CHECK(failure.message.find(path) != std::string::npos &&
          failure.message.find("File too large") != std::string::npos);
    CHECK(slurp(path) == "the old file" && scratch.entries() == 1);
}

void test_wrong_use_of_the_writer() {
    scratch_t const scratch;
    auto const path = scratch.path("file");
    auto const wrong = uform_status_invalid_argument_k;
    safetensors_writer declaring(path);
    declaring.declare("a", safetensors_dtype_t::u8, {1});
    CHECK_FAILS(wrong, PARTS("\"a\"", "twice"), declaring.declare("a", safetensors_dtype_t::u8, {1}));
    CHECK_FAILS(wrong, PARTS("\"b\"", "wider types first"), declaring.declare("b", safetensors_dtype_t::f32, {1}));
    CHECK_FAILS(wrong, PARTS("__metadata__"), declaring.declare("__metadata__", safetensors_dtype_t::u8, {1}));
    CHECK_FAILS(wrong, PARTS("UTF-8"), declaring.declare("\xff", safetensors_dtype_t::u8, {1}));
    CHECK_FAILS(wrong, PARTS("larger"), declaring.declare("c", safetensors_dtype_t::u8, {~std::uint64_t(0)}));
    CHECK_FAILS(wrong, PARTS("larger"), declaring.declare("c", safetensors_dtype_t::u8, {1u << 31, 1u << 31, 8}));
    CHECK_FAILS(wrong, PARTS("UTF-8"), declaring.add_metadata("k", "\xff"));
    declaring.add_metadata("k", "v");
    CHECK_FAILS(wrong, PARTS("\"k\"", "already"), declaring.add_metadata("k", "v"));
    CHECK_FAILS(wrong, PARTS("has not begun"), declaring.commit());

    auto const after_begin = [&](auto&& body) {
        safetensors_writer writer(path);
        writer.declare("a", safetensors_dtype_t::u8, {2});
        writer.declare("b", safetensors_dtype_t::u8, {1});
        writer.begin();
        body(writer);
    };
    CHECK_FAILS(wrong, PARTS("\"c\"", "not declared"),
                after_begin([](auto& writer) { writer.write("c", bytes_of(flags)); }));
    CHECK_FAILS(wrong, PARTS("\"b\"", "\"a\" is next"),
                after_begin([](auto& writer) { writer.write("b", bytes_of(flags)); }));
    CHECK_FAILS(wrong, PARTS("\"a\"", "1 bytes more"),
                after_begin([](auto& writer) { writer.write("a", bytes_of(flags)); }));
    CHECK_FAILS(wrong, PARTS("\"a\"", "2 bytes were not written"), after_begin([](auto& writer) { writer.commit(); }));
    CHECK_FAILS(wrong, PARTS("has begun"), after_begin([](auto& writer) { writer.add_metadata("k", "v"); }));
    CHECK(scratch.entries() == 0);
}

} // namespace

int main() {
    test_json_values();
    test_json_doubles_are_bit_equal();
    test_json_strings();
    test_json_refuses();
    test_round_trip();
    test_every_dtype();
    test_every_cut();
    test_cut_while_open();
    test_damaged_headers();
    test_hostile_headers();
    test_paths();
    test_links_and_permissions();
    test_cancel_and_throw();
    test_abandoned_files();
    test_full_disk();
    test_wrong_use_of_the_writer();
    return native_test::report();
}
