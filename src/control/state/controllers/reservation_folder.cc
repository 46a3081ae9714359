// SPDX-License-Identifier: Apache-2.0
#include "control/state/controllers/reservation_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "base/unique_fd.h"

namespace cleat::control {

Status ReservationFolder::Remove(const nvme::fabrics::Uuid& namespace_uuid) const {
  const UniqueFd folder(open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder && errno == ENOENT) return Ok{};
  if (!folder) return ErrnoError(errno, fmt::format("folder '{}' can't be opened", folder_));
  const std::string file = nvme::fabrics::TextOfUuid(namespace_uuid);
  bool removed = false;
  for (const std::string& name : {file, file + ".new"}) {
    if (unlinkat(folder.get(), name.c_str(), 0) == 0) {
      removed = true;
    } else if (errno != ENOENT) {
      return ErrnoError(errno, fmt::format("file '{}/{}' can't be removed", folder_, name));
    }
  }
  if (removed && fsync(folder.get()) != 0)
    return ErrnoError(errno, fmt::format("folder '{}' can't be made durable", folder_));
  return Ok{};
}

}  // namespace cleat::control
