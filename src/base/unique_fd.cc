// SPDX-License-Identifier: Apache-2.0
#include "base/unique_fd.h"

#include <fcntl.h>
#include <unistd.h>

namespace cleat {

void UniqueFd::Reset(int fd) {
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
}

UniqueFd UniqueFd::Duplicate() const {
  return UniqueFd(fcntl(fd_, F_DUPFD_CLOEXEC, 0));
}

}  // namespace cleat
