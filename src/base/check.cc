// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace cleat {

void CheckFailed(const char* condition, const char* file, int line, const char* function) noexcept {
  // stderr and not the log: the log may be what is broken.
  std::fprintf(stderr, "cleat: check failed: %s in %s at %s:%d\n", condition, function, file, line);
  std::fflush(stderr);
  std::abort();
}

}  // namespace cleat
