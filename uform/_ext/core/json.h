/** A small strict JSON value (RFC 8259), its parser and its writer: a checkpoint's header and configuration. */
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace uform {

/** One JSON value. Integers are kept exactly in 64 bits, doubles are written so that they read back bit-equal, and an
 *  object keeps the order in which its members were set. Everything refused raises `uform_status_invalid_argument_k`.
 */
class json {
public:
    using array = std::vector<json>;
    using object = std::vector<std::pair<std::string, json>>;

    /** Arrays and objects deeper than this are neither read nor written, which bounds the recursion. */
    static constexpr std::size_t max_depth = 64;

    json() noexcept : value_(nullptr) {}
    json(std::nullptr_t) noexcept : value_(nullptr) {}
    json(std::same_as<bool> auto value) noexcept : value_(value) {}
    json(std::floating_point auto value) noexcept : value_(static_cast<double>(value)) {}
    json(std::string value) noexcept : value_(std::move(value)) {}
    json(std::string_view value) : value_(std::string(value)) {}
    json(char const* value) : value_(std::string(value)) {}
    json(array value) noexcept : value_(std::move(value)) {}

    template <std::integral integer_at>
        requires(!std::same_as<integer_at, bool>)
    json(integer_at value) noexcept : value_(static_cast<std::uint64_t>(value)) {
        // One representation a number: what is not negative is always unsigned, so that equality needs no cases.
        if constexpr (std::signed_integral<integer_at>)
            if (value < 0)
                value_ = static_cast<std::int64_t>(value);
    }

    static json make_object() { return json(value_t(object())); }

    /** Reads one value that fills the whole text. Errors name the position in bytes from the start of the text. */
    static json parse(std::string_view text);

    /** Writes without any white space. Refuses text that is not UTF-8 and numbers that are not finite. */
    std::string dump() const;

    /** The kind in words, for error messages: "null", "boolean", "integer", "number", "string", "array", "object". */
    char const* kind() const noexcept;

    bool is_null() const noexcept { return std::holds_alternative<std::nullptr_t>(value_); }
    bool is_string() const noexcept { return std::holds_alternative<std::string>(value_); }
    bool is_array() const noexcept { return std::holds_alternative<array>(value_); }
    bool is_object() const noexcept { return std::holds_alternative<object>(value_); }

    /** Typed access. `field` is the name that an error mentions. Nothing is rounded or cut to fit: an integer outside
     *  the type is refused, and an integer is taken as a double only where the double equals it. */
    bool as_bool(std::string_view field) const;
    std::int64_t as_int64(std::string_view field) const;
    std::uint64_t as_uint64(std::string_view field) const;
    double as_double(std::string_view field) const;
    std::string const& as_string(std::string_view field) const;
    array const& as_array(std::string_view field) const;
    object const& as_object(std::string_view field) const;

    /** A member of an object, or null where it has none of that name. Linear in the number of members. */
    json const* find(std::string_view key) const;

    /** A member that must be there. */
    json const& at(std::string_view key) const;

    /** Adds a member to an object, which must have none of that name yet. */
    void set(std::string key, json value);

    /** Adds an item to an array. */
    void push_back(json value);

    bool operator==(json const&) const = default;

private:
    friend class json_parser;
    friend class json_writer;
    using value_t = std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double, std::string, array, object>;

    explicit json(value_t value) noexcept : value_(std::move(value)) {}

    value_t value_;
};

/** Whether the bytes are UTF-8: no overlong form, no surrogate, nothing above U+10FFFF. */
bool is_utf8(std::string_view text) noexcept;

/** Appends the text as a JSON string with its quotes. Refuses text that is not UTF-8. */
void append_json_string(std::string& output, std::string_view text);

/** A name taken from a file or a caller, made fit for an error message: quoted, escaped, shortened. */
std::string quoted_name(std::string_view name);

/** The value as written, shortened for an error message. */
std::string shortened(json const& value);

} // namespace uform
