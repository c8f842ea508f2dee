#include "core/json.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <system_error>

#include "core/error.h"

namespace uform {

namespace {

/** Bytes of the well-formed UTF-8 sequence that the text starts with, 0 where it starts with none (Unicode, table 3-7).
 */
std::size_t utf8_sequence_length(std::string_view text) noexcept {
    auto const byte = [&](std::size_t index) { return static_cast<unsigned char>(text[index]); };
    auto const continues = [&](std::size_t index, unsigned low = 0x80, unsigned high = 0xBF) {
        return index < text.size() && byte(index) >= low && byte(index) <= high;
    };
    if (text.empty())
        return 0;
    unsigned const lead = byte(0);
    if (lead < 0x80)
        return 1;
    if (lead >= 0xC2 && lead <= 0xDF)
        return continues(1) ? 2 : 0;
    if (lead >= 0xE0 && lead <= 0xEF) {
        unsigned const low = lead == 0xE0 ? 0xA0 : 0x80, high = lead == 0xED ? 0x9F : 0xBF;
        return continues(1, low, high) && continues(2) ? 3 : 0;
    }
    if (lead >= 0xF0 && lead <= 0xF4) {
        unsigned const low = lead == 0xF0 ? 0x90 : 0x80, high = lead == 0xF4 ? 0x8F : 0xBF;
        return continues(1, low, high) && continues(2) && continues(3) ? 4 : 0;
    }
    return 0;
}

void append_utf8(std::string& output, unsigned code) {
    if (code < 0x80) {
        output += static_cast<char>(code);
        return;
    }
    if (code < 0x800) {
        output += static_cast<char>(0xC0 | code >> 6);
    } else {
        if (code < 0x10000) {
            output += static_cast<char>(0xE0 | code >> 12);
        } else {
            output += static_cast<char>(0xF0 | code >> 18);
            output += static_cast<char>(0x80 | (code >> 12 & 0x3F));
        }
        output += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    }
    output += static_cast<char>(0x80 | (code & 0x3F));
}

void append_escaped(std::string& output, char symbol) {
    constexpr char digits[] = "0123456789abcdef";
    switch (symbol) {
    case '"':
        output += "\\\"";
        return;
    case '\\':
        output += "\\\\";
        return;
    case '\b':
        output += "\\b";
        return;
    case '\f':
        output += "\\f";
        return;
    case '\n':
        output += "\\n";
        return;
    case '\r':
        output += "\\r";
        return;
    case '\t':
        output += "\\t";
        return;
    default:
        break;
    }
    auto const byte = static_cast<unsigned char>(symbol);
    if (byte >= 0x20) {
        output += symbol;
        return;
    }
    output += "\\u00";
    output += digits[byte >> 4];
    output += digits[byte & 15];
}

void append_double(std::string& output, double value) {
    if (!std::isfinite(value))
        fail(uform_status_invalid_argument_k, "JSON has no number for ", value);
    char buffer[32];
    auto const end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
    std::string_view const digits(buffer, static_cast<std::size_t>(end - buffer));
    output += digits;
    // Without a point or an exponent it would read back as an integer, and -0.0 as 0.
    if (digits.find_first_of(".e") == std::string_view::npos)
        output += ".0";
}

} // namespace

/** Writes a value and what it holds, one overload a kind. */
class json_writer {
public:
    void write(json const& value) {
        std::visit([this](auto const& held) { write_held(held); }, value.value_);
    }

    std::string take() { return std::move(output_); }

private:
    void write_held(std::nullptr_t) { output_ += "null"; }
    void write_held(bool value) { output_ += value ? "true" : "false"; }
    void write_held(std::int64_t value) { output_ += std::to_string(value); }
    void write_held(std::uint64_t value) { output_ += std::to_string(value); }
    void write_held(double value) { append_double(output_, value); }
    void write_held(std::string const& value) { append_json_string(output_, value); }

    void write_held(json::array const& items) {
        enter('[');
        for (std::size_t index = 0; index != items.size(); ++index) {
            if (index)
                output_ += ',';
            write(items[index]);
        }
        leave(']');
    }

    void write_held(json::object const& members) {
        enter('{');
        for (std::size_t index = 0; index != members.size(); ++index) {
            if (index)
                output_ += ',';
            append_json_string(output_, members[index].first);
            output_ += ':';
            write(members[index].second);
        }
        leave('}');
    }

    void enter(char open) {
        if (++depth_ > json::max_depth)
            fail(uform_status_invalid_argument_k, "JSON nested deeper than ", json::max_depth);
        output_ += open;
    }

    void leave(char close) {
        --depth_;
        output_ += close;
    }

    std::string output_;
    std::size_t depth_ = 0;
};

/** Recursive descent over the text, one function a production of the grammar. Depth is bounded by `json::max_depth`. */
class json_parser {
public:
    explicit json_parser(std::string_view text) : text_(text) {}

    json parse_document() {
        json value = parse_value();
        skip_space();
        if (position_ != text_.size())
            refuse("expected the end");
        return value;
    }

private:
    [[noreturn]] void refuse(std::string_view reason) const { refuse_at(position_, reason); }

    [[noreturn]] static void refuse_at(std::size_t position, std::string_view reason) {
        fail(uform_status_invalid_argument_k, "JSON at byte ", position, ": ", reason);
    }

    bool at_end() const { return position_ == text_.size(); }
    char peek() const { return at_end() ? '\0' : text_[position_]; }
    bool peek_digit() const { return peek() >= '0' && peek() <= '9'; }

    bool take(char symbol) {
        if (at_end() || text_[position_] != symbol)
            return false;
        ++position_;
        return true;
    }

    void skip_space() {
        while (take(' ') || take('\n') || take('\r') || take('\t')) {
        }
    }

    json parse_value() {
        skip_space();
        if (at_end())
            refuse("expected a value, found the end");
        switch (peek()) {
        case '{':
            return parse_object();
        case '[':
            return parse_array();
        case '"':
            return json(parse_string());
        case 't':
            return parse_word("true", json(true));
        case 'f':
            return parse_word("false", json(false));
        case 'n':
            return parse_word("null", json());
        default:
            return parse_number();
        }
    }

    json parse_word(std::string_view word, json value) {
        if (text_.substr(position_, word.size()) != word)
            refuse("expected a value");
        position_ += word.size();
        return value;
    }

    void enter() {
        if (++depth_ > json::max_depth)
            refuse("nested deeper than " + std::to_string(json::max_depth));
        ++position_;
        skip_space();
    }

    /** After a member or an item: true where another follows, false where the closing symbol was taken. */
    bool continues(char close) {
        skip_space();
        if (take(',')) {
            skip_space();
            return true;
        }
        if (!take(close))
            refuse(std::string("expected ',' or '") + close + "'");
        --depth_;
        return false;
    }

    json parse_array() {
        enter();
        json::array items;
        if (take(']')) {
            --depth_;
            return json(std::move(items));
        }
        do {
            items.push_back(parse_value());
        } while (continues(']'));
        return json(std::move(items));
    }

    json parse_object() {
        std::size_t const start = position_;
        enter();
        json::object members;
        if (take('}')) {
            --depth_;
            return json(json::value_t(std::move(members)));
        }
        do {
            if (peek() != '"')
                refuse("expected a string as the key");
            std::string key = parse_string();
            skip_space();
            if (!take(':'))
                refuse("expected ':'");
            members.emplace_back(std::move(key), parse_value());
        } while (continues('}'));
        refuse_duplicates(members, start);
        return json(json::value_t(std::move(members)));
    }

    /** Sorts instead of comparing all pairs, since the text may be hostile and long. */
    static void refuse_duplicates(json::object const& members, std::size_t start) {
        std::vector<std::string_view> keys;
        keys.reserve(members.size());
        for (auto const& member : members)
            keys.push_back(member.first);
        std::sort(keys.begin(), keys.end());
        auto const twice = std::adjacent_find(keys.begin(), keys.end());
        if (twice != keys.end())
            refuse_at(start, "the object has the key " + quoted_name(*twice) + " twice");
    }

    std::string parse_string() {
        std::size_t const start = position_++;
        std::string result;
        while (true) {
            if (at_end())
                refuse_at(start, "the string has no end");
            char const symbol = text_[position_];
            if (take('"'))
                return result;
            if (static_cast<unsigned char>(symbol) < 0x20)
                refuse("unescaped control character in a string");
            if (symbol == '\\') {
                parse_escape(result);
                continue;
            }
            std::size_t const length = utf8_sequence_length(text_.substr(position_, 4));
            if (!length)
                refuse("not UTF-8");
            result.append(text_, position_, length);
            position_ += length;
        }
    }

    void parse_escape(std::string& result) {
        std::size_t const start = position_++;
        char const symbol = peek();
        if (!at_end())
            ++position_;
        switch (symbol) {
        case '"':
        case '\\':
        case '/':
            result += symbol;
            return;
        case 'b':
            result += '\b';
            return;
        case 'f':
            result += '\f';
            return;
        case 'n':
            result += '\n';
            return;
        case 'r':
            result += '\r';
            return;
        case 't':
            result += '\t';
            return;
        case 'u':
            append_utf8(result, parse_escaped_code(start));
            return;
        default:
            refuse_at(start, "unknown escape");
        }
    }

    /** The code point of one \u escape, or of the two that make a surrogate pair. */
    unsigned parse_escaped_code(std::size_t start) {
        unsigned const first = parse_hex4(start);
        if (first < 0xD800 || first > 0xDFFF)
            return first;
        if (first > 0xDBFF || !take('\\') || !take('u'))
            refuse_at(start, "lone surrogate");
        unsigned const second = parse_hex4(start);
        if (second < 0xDC00 || second > 0xDFFF)
            refuse_at(start, "lone surrogate");
        return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
    }

    unsigned parse_hex4(std::size_t start) {
        unsigned code = 0;
        auto const digits = text_.substr(position_, 4);
        auto const parsed = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
        if (digits.size() != 4 || parsed.ec != std::errc() || parsed.ptr != digits.data() + 4)
            refuse_at(start, "expected four hexadecimal digits after \\u");
        position_ += 4;
        return code;
    }

    void skip_digits() {
        if (!peek_digit())
            refuse("expected a digit");
        while (peek_digit())
            ++position_;
    }

    json parse_number() {
        std::size_t const start = position_;
        bool const negative = take('-');
        if (!peek_digit())
            refuse(negative ? "expected a digit" : "expected a value");
        if (!take('0'))
            skip_digits();
        bool whole = true;
        if (take('.'))
            whole = false, skip_digits();
        if (take('e') || take('E')) {
            whole = false;
            if (!take('-'))
                take('+');
            skip_digits();
        }
        auto const token = text_.substr(start, position_ - start);
        if (!whole || token == "-0")
            return json(convert<double>(token, start));
        return negative ? json(convert<std::int64_t>(token, start)) : json(convert<std::uint64_t>(token, start));
    }

    template <typename number_at> static number_at convert(std::string_view token, std::size_t start) {
        number_at value = 0;
        auto const parsed = std::from_chars(token.data(), token.data() + token.size(), value);
        if (parsed.ec != std::errc() || parsed.ptr != token.data() + token.size())
            refuse_at(start, "the number " + quoted_name(token) + " is out of range");
        return value;
    }

    std::string_view text_;
    std::size_t position_ = 0;
    std::size_t depth_ = 0;
};

namespace {

[[noreturn]] void refuse_kind(std::string_view field, char const* expected, json const& found) {
    fail(uform_status_invalid_argument_k, field, ": expected ", expected, ", found ", found.kind(),
         found.is_null() ? "" : " ", found.is_null() ? "" : shortened(found));
}

} // namespace

std::string shortened(json const& value) {
    constexpr std::size_t max_bytes = 256;
    std::string text = value.dump();
    if (text.size() <= max_bytes)
        return text;
    std::size_t kept = max_bytes;
    while (kept && (static_cast<unsigned char>(text[kept]) & 0xC0) == 0x80)
        --kept;
    return text.substr(0, kept) + "...";
}

json json::parse(std::string_view text) { return json_parser(text).parse_document(); }

std::string json::dump() const {
    json_writer writer;
    writer.write(*this);
    return writer.take();
}

char const* json::kind() const noexcept {
    constexpr char const* kinds[] = {"null", "boolean", "integer", "integer", "number", "string", "array", "object"};
    static_assert(std::size(kinds) == std::variant_size_v<value_t>);
    return kinds[value_.index()];
}

bool json::as_bool(std::string_view field) const {
    if (auto const value = std::get_if<bool>(&value_))
        return *value;
    refuse_kind(field, "a boolean", *this);
}

std::int64_t json::as_int64(std::string_view field) const {
    if (auto const value = std::get_if<std::int64_t>(&value_))
        return *value;
    auto const value = std::get_if<std::uint64_t>(&value_);
    if (!value)
        refuse_kind(field, "an integer", *this);
    if (*value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        fail(uform_status_invalid_argument_k, field, ": ", *value, " does not fit a signed 64-bit integer");
    return static_cast<std::int64_t>(*value);
}

std::uint64_t json::as_uint64(std::string_view field) const {
    if (auto const value = std::get_if<std::uint64_t>(&value_))
        return *value;
    auto const value = std::get_if<std::int64_t>(&value_);
    if (!value)
        refuse_kind(field, "a non-negative integer", *this);
    fail(uform_status_invalid_argument_k, field, ": expected a non-negative integer, found ", *value);
}

double json::as_double(std::string_view field) const {
    if (auto const value = std::get_if<double>(&value_))
        return *value;
    auto const exact = [&](auto integer) {
        auto const value = static_cast<double>(integer);
        auto const magnitude =
            integer < 0 ? 0 - static_cast<std::uint64_t>(integer) : static_cast<std::uint64_t>(integer);
        // A double holds an integer exactly where the integer's odd part has at most 53 bits.
        if (magnitude && magnitude >> std::countr_zero(magnitude) >> 53)
            fail(uform_status_invalid_argument_k, field, ": no double equals ", integer);
        return value;
    };
    if (auto const value = std::get_if<std::uint64_t>(&value_))
        return exact(*value);
    if (auto const value = std::get_if<std::int64_t>(&value_))
        return exact(*value);
    refuse_kind(field, "a number", *this);
}

std::string const& json::as_string(std::string_view field) const {
    if (auto const value = std::get_if<std::string>(&value_))
        return *value;
    refuse_kind(field, "a string", *this);
}

json::array const& json::as_array(std::string_view field) const {
    if (auto const value = std::get_if<array>(&value_))
        return *value;
    refuse_kind(field, "an array", *this);
}

json::object const& json::as_object(std::string_view field) const {
    if (auto const value = std::get_if<object>(&value_))
        return *value;
    refuse_kind(field, "an object", *this);
}

json const* json::find(std::string_view key) const {
    for (auto const& [name, value] : as_object(quoted_name(key)))
        if (name == key)
            return &value;
    return nullptr;
}

json const& json::at(std::string_view key) const {
    if (auto const value = find(key))
        return *value;
    fail(uform_status_invalid_argument_k, "the object has no key ", quoted_name(key));
}

void json::set(std::string key, json value) {
    auto const members = std::get_if<object>(&value_);
    if (!members)
        refuse_kind(quoted_name(key), "an object to set it in", *this);
    if (find(key))
        fail(uform_status_invalid_argument_k, "the object has the key ", quoted_name(key), " already");
    members->emplace_back(std::move(key), std::move(value));
}

void json::push_back(json value) {
    auto const items = std::get_if<array>(&value_);
    if (!items)
        refuse_kind("push_back", "an array", *this);
    items->push_back(std::move(value));
}

bool is_utf8(std::string_view text) noexcept {
    while (!text.empty()) {
        std::size_t const length = utf8_sequence_length(text);
        if (!length)
            return false;
        text.remove_prefix(length);
    }
    return true;
}

void append_json_string(std::string& output, std::string_view text) {
    if (!is_utf8(text))
        fail(uform_status_invalid_argument_k, "not UTF-8: ", quoted_name(text));
    output += '"';
    for (char const symbol : text)
        append_escaped(output, symbol);
    output += '"';
}

std::string quoted_name(std::string_view name) {
    constexpr std::size_t max_bytes = 128;
    std::string result = "\"";
    while (!name.empty() && result.size() < max_bytes) {
        std::size_t const length = utf8_sequence_length(name);
        if (length < 2) {
            length ? append_escaped(result, name.front()) : append_utf8(result, 0xFFFD);
            name.remove_prefix(1);
            continue;
        }
        result += name.substr(0, length);
        name.remove_prefix(length);
    }
    result += name.empty() ? "\"" : "...\"";
    return result;
}
} // namespace uform
