// SPDX-License-Identifier: Apache-2.0
// Opens what a caller named, only if the operator's lists allow it: files below a listed folder, without following links, and devices by a
// listed name, which may be a link. What is returned is what was looked at, whatever becomes of the path. Blocks on the file system. With
// `/` as an entry, whatever open(2) finds is allowed.
//
// Errors: kInvalidArgument when the lists do not allow it, or a link leads through what they allow; else as open(2) says. `what` begins
// the message: "disks/a: file '/srv/a'".
#pragma once

#include <string>

#include "base/path_lists.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace cleat {

// A disk's regular file or block device, examined without any effect on it (O_PATH): open it by ReopenAs. kFailedPrecondition for
// what is neither.
Result<UniqueFd> FindListedDisk(const PathLists& lists, const std::string& path, const std::string& what);
// A regular file with keys, O_RDONLY.
Result<UniqueFd> OpenListedKeys(const PathLists& lists, const std::string& path, const std::string& what);
// The folder of a path below a listed folder, O_PATH; the path's last name need not be there. For files that are made, and for sockets.
Result<UniqueFd> OpenListedFolder(const PathLists& lists, PathKind kind, const std::string& path,
                                  const std::string& what);

// What a path leads to, O_PATH, whatever the lists say: for disks whose paths are listed no more or were never checked, and for sockets and
// conf files that are served already. A link on the way is followed only if root or this process' user owns it: others who may write to a
// folder on the way can't make it lead elsewhere. The path is absolute.
Result<UniqueFd> FindByTrustedLinks(const std::string& path, const std::string& what);

// The same file, opened with these flags (open(2)); O_CLOEXEC is added. Invalid, with errno set, when that fails.
UniqueFd ReopenAs(const UniqueFd& found, int flags);
// "/proc/self/fd/N", by which calls that take a path reach exactly that file, or that folder's NAME.
std::string PathOf(const UniqueFd& fd);

}  // namespace cleat
