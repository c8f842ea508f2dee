#include "core/atomic_file.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string_view>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace uform {

namespace {

constexpr mode_t no_mode_k = std::numeric_limits<mode_t>::max();
constexpr std::string_view suffix_k = ".tmp";

struct directory_and_name {
    std::string directory;
    std::string name;
};

directory_and_name split_path(std::string const& path) {
    auto const slash = path.rfind('/');
    if (slash == std::string::npos)
        return {".", path};
    return {path.substr(0, slash + 1), path.substr(slash + 1)};
}

/** Where the bytes of `path` belong once symbolic links in its last part are followed, a dangling one too. */
std::string follow_links(std::string const& path) {
    constexpr int max_links = 40;
    std::string target = path;
    for (int links = 0; links != max_links; ++links) {
        struct stat status;
        if (::lstat(target.c_str(), &status) < 0) {
            if (errno == ENOENT)
                return target;
            fail_system(path, "inspect", errno);
        }
        if (!S_ISLNK(status.st_mode))
            return target;
        std::array<char, 4096> content;
        auto const length = ::readlink(target.c_str(), content.data(), content.size());
        if (length < 0)
            fail_system(path, "follow the link", errno);
        std::string const next(content.data(), static_cast<std::size_t>(length));
        target = next.starts_with('/') ? next : split_path(target).directory + "/" + next;
    }
    fail_system(path, "follow the link", ELOOP);
}

/** What every hidden name for a target begins with on this host: locks are sure to be seen by its own processes. */
std::string hidden_prefix(std::string const& target) {
    constexpr std::size_t most_kept = 120; // so that the whole fits what a file system allows of a name, 255 bytes
    std::array<char, 65> host = {};
    ::gethostname(host.data(), host.size() - 1);
    return "." + target.substr(0, most_kept) + "." + host.data() + ".";
}

/** Unlike any other's: of this process (number), of this call (counter), of a process in another namespace (random). */
std::string unique_name(std::string const& target) {
    static std::atomic<std::uint64_t> counter = 0;
    std::random_device random;
    std::string result = hidden_prefix(target);
    result.append(std::to_string(::getpid())).append("-");
    result.append(std::to_string(counter.fetch_add(1, std::memory_order_relaxed))).append("-");
    result.append(std::to_string(random())).append(suffix_k);
    return result;
}

/** Whether a name is one that `unique_name` makes. */
bool is_hidden_name(std::string_view name, std::string_view prefix) {
    if (!name.starts_with(prefix) || !name.ends_with(suffix_k) || name.size() < prefix.size() + suffix_k.size())
        return false;
    std::string_view const numbers = name.substr(prefix.size(), name.size() - prefix.size() - suffix_k.size());
    return std::count(numbers.begin(), numbers.end(), '-') == 2 &&
           std::all_of(numbers.begin(), numbers.end(),
                       [](char digit) { return digit == '-' || std::isdigit(static_cast<unsigned char>(digit)); });
}

} // namespace

atomic_file::atomic_file(std::string const& path) : path_(path) {
    auto target = split_path(follow_links(path));
    directory_path_ = std::move(target.directory);
    target_ = std::move(target.name);
}

atomic_file::~atomic_file() {
    if (!name_.empty())
        ::unlinkat(directory_.get(), name_.c_str(), 0);
}

void atomic_file::create() {
    if (target_.empty())
        fail_system(path_, "write", EISDIR);
    open_directory();
    mode_t const mode = inspect_target();
    remove_abandoned();
    open_unique(mode == no_mode_k ? 0666 : 0600);
    // File systems without permissions refuse to set them; that is no reason to lose the data.
    if (mode != no_mode_k && ::fchmod(file_.get(), mode) < 0 && errno != EPERM && errno != ENOTSUP)
        fail_system(path_, "set the permissions", errno);
}

void atomic_file::append(std::span<std::byte const> bytes) {
    while (!bytes.empty()) {
        auto const put = uninterrupted([&] { return ::write(file_.get(), bytes.data(), bytes.size()); });
        if (put < 0)
            fail_system(path_, "write", errno);
        bytes = bytes.subspan(static_cast<std::size_t>(put));
    }
}

void atomic_file::rename_over_target() {
    if (uninterrupted([&] { return ::fsync(file_.get()); }) < 0)
        fail_system(path_, "synchronise", errno);
    // A second descriptor keeps the lock until the file has its name.
    file_descriptor const locked(::fcntl(file_.get(), F_DUPFD_CLOEXEC, 0));
    if (int const code = file_.close())
        fail_system(path_, "close", code);
    if (::renameat(directory_.get(), name_.c_str(), directory_.get(), target_.c_str()) < 0)
        fail_system(path_, "replace", errno);
    name_.clear();
    // From here on the new file is in place, whole and synchronised; only its name might not survive a power cut.
    if (!directory_readable_ || uninterrupted([&] { return ::fsync(directory_.get()); }) == 0)
        return;
    if (errno != EINVAL && errno != ENOTSUP)
        fail_system(path_, "synchronise the directory (the file is written)", errno);
}

void atomic_file::open_directory() {
    int const flags = O_DIRECTORY | O_CLOEXEC;
    directory_ = file_descriptor(::open(directory_path_.c_str(), O_RDONLY | flags));
    // A directory may be writable and yet not readable: then it cannot be synchronised, but the file can be saved.
    directory_readable_ = static_cast<bool>(directory_);
    if (!directory_ && errno == EACCES)
        directory_ = file_descriptor(::open(directory_path_.c_str(), O_PATH | flags));
    if (!directory_)
        fail_system(path_, "open the directory", errno);
}

/** Makes room before it takes any: what cannot be removed is left. */
void atomic_file::remove_abandoned() const {
    int const handle = ::openat(directory_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    std::unique_ptr<DIR, int (*)(DIR*)> const listing(handle < 0 ? nullptr : ::fdopendir(handle), ::closedir);
    if (!listing) {
        file_descriptor(handle).close();
        return;
    }
    std::string const prefix = hidden_prefix(target_);
    while (dirent const* const entry = ::readdir(listing.get()))
        if (is_hidden_name(entry->d_name, prefix))
            remove_if_abandoned(entry->d_name);
}

void atomic_file::remove_if_abandoned(char const* name) const {
    constexpr int flags = O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    file_descriptor const file(uninterrupted([&] { return ::openat(directory_.get(), name, flags); }));
    struct stat status;
    if (!file || ::fstat(file.get(), &status) < 0 || !S_ISREG(status.st_mode))
        return;
    if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0)
        ::unlinkat(directory_.get(), name, 0);
}

/** The permissions of the file to replace, or `no_mode_k` where there is none. */
mode_t atomic_file::inspect_target() const {
    struct stat status;
    if (::fstatat(directory_.get(), target_.c_str(), &status, AT_SYMLINK_NOFOLLOW) < 0) {
        if (errno == ENOENT)
            return no_mode_k;
        fail_system(path_, "inspect", errno);
    }
    if (S_ISDIR(status.st_mode))
        fail_system(path_, "write", EISDIR);
    if (!S_ISREG(status.st_mode))
        fail_file(path_, "not a regular file, so not replaced");
    // Renaming needs no right to the file itself, but one who took it away meant it.
    if (::faccessat(directory_.get(), target_.c_str(), W_OK, AT_EACCESS) < 0)
        fail_system(path_, "write", errno);
    return status.st_mode & 0777;
}

/** Answers false, with `errno`, where the name is taken or a file that looked abandoned was removed just now. */
bool atomic_file::open_as(std::string const& name, int flags, mode_t mode) {
    file_descriptor file(uninterrupted([&] { return ::openat(directory_.get(), name.c_str(), flags, mode); }));
    if (!file)
        return false;
    // A file system without locks is written without: nobody can take one there and think the file abandoned.
    bool const taken = ::flock(file.get(), LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK;
    struct stat status;
    if (taken || ::fstat(file.get(), &status) < 0 || status.st_nlink == 0) {
        ::unlinkat(directory_.get(), name.c_str(), 0);
        errno = EEXIST;
        return false;
    }
    file_ = std::move(file);
    return true;
}

void atomic_file::open_unique(mode_t mode) {
    constexpr int max_attempts = 16;
    constexpr int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    int code = EEXIST;
    for (int attempt = 0; code == EEXIST && attempt != max_attempts; ++attempt) {
        std::string name = unique_name(target_);
        if (open_as(name, flags, mode)) {
            name_ = std::move(name);
            return;
        }
        code = errno;
    }
    fail_system(path_, "create a file beside it", code);
}

} // namespace uform
