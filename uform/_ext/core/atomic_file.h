/** A file that takes another one's place whole, or not at all. */
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include <sys/types.h>

#include "core/file.h"

namespace uform {

/**
 *  Written beside its target under a hidden name, then synchronised and renamed over it; removed on destruction unless
 * it was. Works through the directory's descriptor, so that neither a renamed directory nor a change of the working
 * directory can misplace it. A symbolic link is followed and stays one; the new file takes the old one's permissions.
 *
 *  A process that is killed leaves its file behind. The next one to write the same target on the same host removes it:
 * whoever writes holds a lock on his file, and a lock does not outlive its process.
 */
class atomic_file {
public:
    explicit atomic_file(std::string const& path);
    atomic_file(atomic_file const&) = delete;
    atomic_file& operator=(atomic_file const&) = delete;
    ~atomic_file();

    void create();
    void append(std::span<std::byte const> bytes);
    void rename_over_target();

private:
    void open_directory();
    void remove_abandoned() const;
    void remove_if_abandoned(char const* name) const;
    mode_t inspect_target() const;
    bool open_as(std::string const& name, int flags, mode_t mode);
    void open_unique(mode_t mode);

    std::string path_;
    std::string directory_path_;
    std::string target_; // the name in the directory
    std::string name_;   // the name while it is written, empty while there is none to remove
    file_descriptor directory_;
    file_descriptor file_;
    bool directory_readable_ = false;
};

} // namespace uform
