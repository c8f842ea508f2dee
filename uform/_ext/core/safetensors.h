/** The safetensors file format: a strict reader, and a writer that replaces a file atomically.
 *
 *  A file is the length of its header (8 bytes, little-endian), the header (JSON: each tensor's dtype, shape and byte
 *  range, and a `__metadata__` of strings), then the tensors' bytes without a gap.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/atomic_file.h"
#include "core/file.h"
#include "core/json.h"

namespace uform {

enum class safetensors_dtype_t : std::uint8_t { f64, f32, f16, bf16, i64, i32, i16, i8, u64, u32, u16, u8, boolean };

/** The name in the header, such as "F32". */
char const* safetensors_dtype_name(safetensors_dtype_t dtype) noexcept;

/** Bytes of one element. */
std::size_t safetensors_dtype_bytes(safetensors_dtype_t dtype) noexcept;

/** What the header says of one tensor. `begin` and `end` count bytes from the first byte after the header. */
struct safetensors_tensor_t {
    std::string name;
    safetensors_dtype_t dtype = safetensors_dtype_t::f32;
    std::vector<std::uint64_t> shape;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;

    std::uint64_t bytes() const noexcept { return end - begin; }
};

/** An open file whose header has been checked whole. Every failure raises `uform_status_file_k` and names the file, and
 *  the tensor where one is at fault. The open file stays the same one when another takes its path. */
class safetensors_file {
public:
    /** Opens and checks. `path` is taken as bytes, in whatever encoding the file system has. */
    static safetensors_file open(std::string path);

    std::string const& path() const noexcept { return path_; }

    /** All tensors, in the order of their bytes. */
    std::span<safetensors_tensor_t const> tensors() const noexcept { return tensors_; }

    /** The tensor of that name, or null. */
    safetensors_tensor_t const* find(std::string_view name) const noexcept;

    /** The metadata entry of that key, or null. */
    std::string const* find_metadata(std::string_view key) const noexcept;

    std::span<std::pair<std::string, std::string> const> metadata() const noexcept { return metadata_; }

    /** Reads a whole tensor into a destination of exactly its size, which is left untouched when the read fails. */
    void read(std::string_view name, std::span<std::byte> destination) const;

private:
    safetensors_file(std::string path, file_descriptor file) noexcept
        : path_(std::move(path)), file_(std::move(file)) {}

    void parse(std::string_view header, std::uint64_t data_bytes);
    void parse_metadata(json const& members);
    void check_coverage(std::uint64_t data_bytes) const;

    std::string path_;
    file_descriptor file_;
    std::uint64_t data_start_ = 0;
    std::vector<safetensors_tensor_t> tensors_;
    std::map<std::string, std::size_t, std::less<>> index_;
    std::vector<std::pair<std::string, std::string>> metadata_;
};

/** Writes one file: declare everything, `begin`, `write` the tensors' bytes in the declared order, `commit`.
 *
 *  The path always holds the old file whole or the new one whole (`atomic_file`). After any failure, a cancelling or
 *  throwing callback, or without a `commit`, the old file is as it was and the writer refuses to go on.
 *
 *  Failures of the file system raise `uform_status_file_k` with the path and the system's reason, a cancelling callback
 *  `uform_status_cancelled_k`, and a wrong use `uform_status_invalid_argument_k`.
 */
class safetensors_writer {
public:
    /** Called after each chunk with the bytes of the whole file done and to do; false cancels. */
    using progress_t = std::function<bool(std::uint64_t done, std::uint64_t total)>;

    /** Touches no file yet. */
    explicit safetensors_writer(std::string path);
    safetensors_writer(safetensors_writer const&) = delete;
    safetensors_writer& operator=(safetensors_writer const&) = delete;
    ~safetensors_writer();

    /** Adds a tensor after those declared so far. Its bytes must start at a multiple of its element's size, as views
     *  onto a mapped file need: declare wider types first. */
    void declare(std::string name, safetensors_dtype_t dtype, std::vector<std::uint64_t> shape);

    void add_metadata(std::string key, std::string value);

    /** Creates the file and writes the header. */
    void begin(progress_t progress = {});

    /** Appends to the named tensor, which must be the next one in declared order that still lacks bytes. */
    void write(std::string_view name, std::span<std::byte const> bytes);

    /** Checks that every tensor is whole, synchronises and renames. */
    void commit();

private:
    enum class stage_t : std::uint8_t { declaring, writing, committed, failed };

    void expect(stage_t stage, char const* verb) const;
    std::string make_header() const;
    void append(std::span<std::byte const> bytes);
    safetensors_tensor_t const* next_incomplete() noexcept;
    template <typename body_at> void or_discard(body_at&& body);

    std::string path_;
    stage_t stage_ = stage_t::declaring;
    std::vector<safetensors_tensor_t> tensors_;
    std::set<std::string, std::less<>> names_;
    json metadata_ = json::make_object();
    progress_t progress_;
    std::unique_ptr<atomic_file> file_;
    std::uint64_t data_bytes_ = 0;
    std::uint64_t total_bytes_ = 0;
    std::uint64_t done_bytes_ = 0;
    std::size_t current_ = 0;
    std::uint64_t current_done_ = 0;
};

} // namespace uform
