#include "core/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <tuple>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"

namespace uform {

namespace {

static_assert(std::endian::native == std::endian::little, "tensors are stored little-endian, as they lie in memory");

constexpr std::size_t length_bytes = 8;
/** Under the format's own limit on the header, since parsed it takes some thirty times as much memory: a run of the
 * most blocks has a header of 3 MB. */
constexpr std::uint64_t max_header_bytes = std::uint64_t(16) << 20;
/** Between two calls of the progress callback, and at most what one system call moves. */
constexpr std::size_t chunk_bytes = std::size_t(4) << 20;
constexpr std::string_view metadata_key = "__metadata__";

struct dtype_row_t {
    char const* name;
    std::size_t bytes;
};

/** In the order of `safetensors_dtype_t`. */
constexpr std::array<dtype_row_t, 13> dtypes = {{
    {"F64", 8},
    {"F32", 4},
    {"F16", 2},
    {"BF16", 2},
    {"I64", 8},
    {"I32", 4},
    {"I16", 2},
    {"I8", 1},
    {"U64", 8},
    {"U32", 4},
    {"U16", 2},
    {"U8", 1},
    {"BOOL", 1},
}};

template <typename... parts_at>
[[noreturn]] void fail_tensor(std::string const& path, std::string_view name, parts_at const&... parts) {
    fail_file(path, "tensor ", quoted_name(name), ": ", parts...);
}

/** a * b, or nothing where 64 bits cannot hold it. */
std::optional<std::uint64_t> multiply(std::uint64_t first, std::uint64_t second) noexcept {
    std::uint64_t product;
    if (__builtin_mul_overflow(first, second, &product))
        return std::nullopt;
    return product;
}

std::optional<std::uint64_t> tensor_bytes(std::span<std::uint64_t const> shape, safetensors_dtype_t dtype) noexcept {
    std::optional<std::uint64_t> product = 1;
    for (std::uint64_t const extent : shape)
        if (product)
            product = multiply(*product, extent);
    return product ? multiply(*product, safetensors_dtype_bytes(dtype)) : std::nullopt;
}

std::string shape_text(std::span<std::uint64_t const> shape) {
    json items{json::array()};
    for (std::uint64_t const extent : shape)
        items.push_back(extent);
    return items.dump();
}

} // namespace

char const* safetensors_dtype_name(safetensors_dtype_t dtype) noexcept {
    return dtypes[static_cast<std::size_t>(dtype)].name;
}

std::size_t safetensors_dtype_bytes(safetensors_dtype_t dtype) noexcept {
    return dtypes[static_cast<std::size_t>(dtype)].bytes;
}

/* ----------------------------------------------------------------------------------------------------------- reader */

namespace {

/** Fills the destination from the file's bytes at `offset`. `what` completes "cut while reading ...". */
void read_exactly(std::string const& path, file_descriptor const& file, std::uint64_t offset,
                  std::span<std::byte> destination, std::string const& what) {
    while (!destination.empty()) {
        std::size_t const wanted = std::min(destination.size(), chunk_bytes);
        auto const got =
            uninterrupted([&] { return ::pread(file.get(), destination.data(), wanted, static_cast<off_t>(offset)); });
        if (got < 0)
            fail_system(path, ("read " + what).c_str(), errno);
        if (got == 0)
            fail_file(path, "the file ends at byte ", offset, ", inside ", what);
        offset += static_cast<std::uint64_t>(got);
        destination = destination.subspan(static_cast<std::size_t>(got));
    }
}

safetensors_dtype_t parse_dtype(std::string const& name) {
    for (std::size_t index = 0; index != dtypes.size(); ++index)
        if (name == dtypes[index].name)
            return static_cast<safetensors_dtype_t>(index);
    fail(uform_status_file_k, "the dtype ", quoted_name(name), " is not supported");
}

/** One entry of the header. Its errors need the file's and the tensor's name in front. */
safetensors_tensor_t parse_tensor(std::string const& name, json const& entry, std::uint64_t data_bytes) {
    safetensors_tensor_t tensor;
    tensor.name = name;
    for (auto const& [key, value] : entry.as_object("the entry"))
        if (key != "dtype" && key != "shape" && key != "data_offsets")
            fail(uform_status_file_k, "unknown key ", quoted_name(key));
    tensor.dtype = parse_dtype(entry.at("dtype").as_string("dtype"));
    for (auto const& extent : entry.at("shape").as_array("shape"))
        tensor.shape.push_back(extent.as_uint64("shape"));

    auto const& offsets = entry.at("data_offsets").as_array("data_offsets");
    if (offsets.size() != 2)
        fail(uform_status_file_k, "data_offsets: expected 2 integers, found ", offsets.size());
    tensor.begin = offsets[0].as_uint64("data_offsets");
    tensor.end = offsets[1].as_uint64("data_offsets");
    if (tensor.begin > tensor.end)
        fail(uform_status_file_k, "data_offsets: begins at ", tensor.begin, " after its end at ", tensor.end);
    if (tensor.end > data_bytes)
        fail(uform_status_file_k, "data_offsets: ends at ", tensor.end, ", but the file has ", data_bytes,
             " bytes of data (a cut file?)");

    auto const expected = tensor_bytes(tensor.shape, tensor.dtype);
    if (!expected)
        fail(uform_status_file_k, "shape ", shape_text(tensor.shape), " has more bytes than 64 bits can count");
    if (*expected != tensor.bytes())
        fail(uform_status_file_k, "shape ", shape_text(tensor.shape), " of ", safetensors_dtype_name(tensor.dtype),
             " needs ", *expected, " bytes, data_offsets give ", tensor.bytes());
    return tensor;
}

} // namespace

safetensors_file safetensors_file::open(std::string path) {
    check_path(path);
    // Without O_NONBLOCK a named pipe would wait for a writer; regular files do not know the flag.
    file_descriptor descriptor(
        uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); }));
    if (!descriptor)
        fail_system(path, "open", errno);
    struct stat status;
    if (::fstat(descriptor.get(), &status) < 0)
        fail_system(path, "inspect", errno);
    if (S_ISDIR(status.st_mode))
        fail_system(path, "read", EISDIR);
    if (!S_ISREG(status.st_mode))
        fail_file(path, "not a regular file");

    safetensors_file file(std::move(path), std::move(descriptor));
    auto const file_bytes = static_cast<std::uint64_t>(status.st_size);
    if (file_bytes < length_bytes)
        fail_file(file.path_, "not a safetensors file: it has ", file_bytes, " bytes, the header's length alone takes ",
                  length_bytes);
    std::uint64_t header_bytes = 0;
    read_exactly(file.path_, file.file_, 0, std::as_writable_bytes(std::span(&header_bytes, 1)), "the header's length");
    if (header_bytes > max_header_bytes)
        fail_file(file.path_, "not a safetensors file of ours: a header of ", header_bytes, " bytes, at most ",
                  max_header_bytes, " are read");
    if (header_bytes > file_bytes - length_bytes)
        fail_file(file.path_, "the header takes ", header_bytes, " bytes, the file has ", file_bytes - length_bytes,
                  " after the header's length (a cut file?)");

    std::string header(header_bytes, '\0');
    read_exactly(file.path_, file.file_, length_bytes, std::as_writable_bytes(std::span(header)), "the header");
    file.data_start_ = length_bytes + header_bytes;
    file.parse(header, file_bytes - file.data_start_);
    return file;
}

void safetensors_file::parse(std::string_view header, std::uint64_t data_bytes) {
    // The format wants the brace first and allows padding by spaces after the object only.
    if (!header.starts_with('{'))
        fail_file(path_, "the header does not begin with '{'");
    json entries;
    try {
        entries = json::parse(header);
    } catch (error const& refused) {
        fail_file(path_, "the header is not valid: ", refused.what());
    } catch (std::bad_alloc const&) {
        fail(uform_status_out_of_memory_k, "'", path_, "': the host has no memory left for its header");
    }
    for (auto const& [name, entry] : entries.as_object("the header")) {
        try {
            if (name == metadata_key)
                parse_metadata(entry);
            else
                tensors_.push_back(parse_tensor(name, entry, data_bytes));
        } catch (error const& refused) {
            if (name == metadata_key)
                fail_file(path_, metadata_key, ": ", refused.what());
            fail_tensor(path_, name, refused.what());
        }
    }
    std::sort(tensors_.begin(), tensors_.end(), [](auto const& first, auto const& second) {
        return std::tie(first.begin, first.end, first.name) < std::tie(second.begin, second.end, second.name);
    });
    check_coverage(data_bytes);
    for (std::size_t index = 0; index != tensors_.size(); ++index)
        index_.emplace(tensors_[index].name, index);
}

void safetensors_file::parse_metadata(json const& members) {
    for (auto const& [key, value] : members.as_object("the entry"))
        metadata_.emplace_back(key, value.as_string(quoted_name(key)));
}

/** In the order of their bytes each tensor must begin where the one before ended, and the last end with the file. */
void safetensors_file::check_coverage(std::uint64_t data_bytes) const {
    std::uint64_t covered = 0;
    for (auto const& tensor : tensors_) {
        if (tensor.begin < covered)
            fail_tensor(path_, tensor.name, "overlaps the tensor before it: begins at ", tensor.begin, ", before ",
                        covered);
        if (tensor.begin > covered)
            fail_tensor(path_, tensor.name, "bytes ", covered, " to ", tensor.begin, " before it belong to no tensor");
        covered = tensor.end;
    }
    if (covered != data_bytes)
        fail_file(path_, "bytes ", covered, " to ", data_bytes, " of the data belong to no tensor");
}

safetensors_tensor_t const* safetensors_file::find(std::string_view name) const noexcept {
    auto const found = index_.find(name);
    return found == index_.end() ? nullptr : &tensors_[found->second];
}

std::string const* safetensors_file::find_metadata(std::string_view key) const noexcept {
    for (auto const& [name, value] : metadata_)
        if (name == key)
            return &value;
    return nullptr;
}

void safetensors_file::read(std::string_view name, std::span<std::byte> destination) const {
    auto const tensor = find(name);
    if (!tensor)
        fail_tensor(path_, name, "not in the file");
    if (destination.size() != tensor->bytes())
        fail_tensor(path_, name, "has ", tensor->bytes(), " bytes, the destination ", destination.size());
    if (destination.empty())
        return;
    // Through a buffer of our own, so that a file cut meanwhile cannot leave the destination half old and half new.
    auto const staging = std::make_unique_for_overwrite<std::byte[]>(destination.size());
    read_exactly(path_, file_, data_start_ + tensor->begin, {staging.get(), destination.size()},
                 "tensor " + quoted_name(name));
    std::memcpy(destination.data(), staging.get(), destination.size());
}

/* ----------------------------------------------------------------------------------------------------------- writer */

safetensors_writer::safetensors_writer(std::string path) : path_(std::move(path)) { check_path(path_); }

safetensors_writer::~safetensors_writer() = default;

void safetensors_writer::expect(stage_t stage, char const* verb) const {
    if (stage_ == stage)
        return;
    constexpr char const* states[] = {"has not begun", "has begun", "is committed", "has failed"};
    fail(uform_status_invalid_argument_k, "'", path_, "': cannot ", verb, ": the writing ",
         states[static_cast<std::size_t>(stage_)]);
}

void safetensors_writer::declare(std::string name, safetensors_dtype_t dtype, std::vector<std::uint64_t> shape) {
    expect(stage_t::declaring, "declare a tensor");
    auto const refuse = [&](auto const&... parts) {
        fail(uform_status_invalid_argument_k, "tensor ", quoted_name(name), ": ", parts...);
    };
    if (!is_utf8(name))
        refuse("the name is not UTF-8");
    if (name == metadata_key)
        refuse("the format keeps this name for itself");
    auto const bytes = tensor_bytes(shape, dtype);
    auto const max_bytes =
        static_cast<std::uint64_t>(std::numeric_limits<off_t>::max()) - max_header_bytes - length_bytes;
    if (!bytes || *bytes > max_bytes - data_bytes_)
        refuse("shape ", shape_text(shape), " is larger than a file can be");
    if (data_bytes_ % safetensors_dtype_bytes(dtype))
        refuse(safetensors_dtype_name(dtype), " would begin at byte ", data_bytes_, ", not a multiple of its ",
               safetensors_dtype_bytes(dtype), " bytes: declare wider types first");
    if (!names_.insert(name).second)
        refuse("declared twice");
    tensors_.push_back({std::move(name), dtype, std::move(shape), data_bytes_, data_bytes_ + *bytes});
    data_bytes_ += *bytes;
}

void safetensors_writer::add_metadata(std::string key, std::string value) {
    expect(stage_t::declaring, "add metadata");
    if (!is_utf8(key))
        fail(uform_status_invalid_argument_k, "metadata ", quoted_name(key), ": the key is not UTF-8");
    if (!is_utf8(value))
        fail(uform_status_invalid_argument_k, "metadata ", quoted_name(key), ": not UTF-8");
    metadata_.set(std::move(key), std::move(value));
}

/** The length and the JSON, padded by spaces so that the data begin at a multiple of 8. */
std::string safetensors_writer::make_header() const {
    json entries = json::make_object();
    std::string text = "{";
    auto const add = [&](std::string_view key, json const& value) {
        if (text.size() > 1)
            text += ',';
        append_json_string(text, key);
        text += ':';
        text += value.dump();
    };
    if (!metadata_.as_object(metadata_key).empty())
        add(metadata_key, metadata_);
    for (auto const& tensor : tensors_) {
        json entry = json::make_object();
        entry.set("dtype", safetensors_dtype_name(tensor.dtype));
        entry.set("shape", json::array(tensor.shape.begin(), tensor.shape.end()));
        entry.set("data_offsets", json::array{tensor.begin, tensor.end});
        add(tensor.name, entry);
    }
    text += '}';
    text.resize((text.size() + 7) / 8 * 8, ' ');
    if (text.size() > max_header_bytes)
        fail(uform_status_invalid_argument_k, "'", path_, "': a header of ", text.size(), " bytes, at most ",
             max_header_bytes, " are read again");
    std::uint64_t const length = text.size();
    text.insert(0, reinterpret_cast<char const*>(&length), length_bytes);
    return text;
}

/** Whatever leaves the body as an exception also removes the temporary file, at once and not only on destruction. */
template <typename body_at> void safetensors_writer::or_discard(body_at&& body) {
    try {
        body();
    } catch (...) {
        file_.reset();
        stage_ = stage_t::failed;
        throw;
    }
}

void safetensors_writer::begin(progress_t progress) {
    expect(stage_t::declaring, "begin");
    or_discard([&] {
        std::string const header = make_header();
        total_bytes_ = header.size() + data_bytes_;
        progress_ = std::move(progress);
        stage_ = stage_t::writing;
        file_ = std::make_unique<atomic_file>(path_);
        file_->create();
        append(std::as_bytes(std::span(header)));
    });
}

void safetensors_writer::append(std::span<std::byte const> bytes) {
    while (!bytes.empty()) {
        auto const chunk = bytes.first(std::min(bytes.size(), chunk_bytes));
        file_->append(chunk);
        done_bytes_ += chunk.size();
        bytes = bytes.subspan(chunk.size());
        if (progress_ && !progress_(done_bytes_, total_bytes_))
            fail(uform_status_cancelled_k, "'", path_, "': cancelled after ", done_bytes_, " of ", total_bytes_,
                 " bytes");
    }
}

safetensors_tensor_t const* safetensors_writer::next_incomplete() noexcept {
    while (current_ != tensors_.size() && current_done_ == tensors_[current_].bytes())
        ++current_, current_done_ = 0;
    return current_ == tensors_.size() ? nullptr : &tensors_[current_];
}

void safetensors_writer::write(std::string_view name, std::span<std::byte const> bytes) {
    expect(stage_t::writing, "write");
    or_discard([&] {
        auto const refuse = [&](auto const&... parts) {
            fail(uform_status_invalid_argument_k, "'", path_, "': tensor ", quoted_name(name), ": ", parts...);
        };
        if (!names_.contains(name))
            refuse("not declared");
        if (bytes.empty())
            return;
        auto const tensor = next_incomplete();
        if (!tensor)
            refuse(bytes.size(), " bytes more than declared");
        if (tensor->name != name)
            refuse("written out of turn: tensor ", quoted_name(tensor->name), " is next");
        std::uint64_t const missing = tensor->bytes() - current_done_;
        if (bytes.size() > missing)
            refuse(bytes.size() - missing, " bytes more than declared");
        current_done_ += bytes.size();
        append(bytes);
    });
}

void safetensors_writer::commit() {
    expect(stage_t::writing, "commit");
    or_discard([&] {
        if (auto const tensor = next_incomplete())
            fail(uform_status_invalid_argument_k, "'", path_, "': tensor ", quoted_name(tensor->name), ": ",
                 tensor->bytes() - current_done_, " bytes were not written");
        file_->rename_over_target();
        file_.reset();
        stage_ = stage_t::committed;
    });
}

} // namespace uform
