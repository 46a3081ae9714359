// SPDX-License-Identifier: Apache-2.0
// A program of the host, run to its end. Blocks, for a bounded time.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/result.h"

namespace cleat::ctl {

struct ProgramEnd {
  int status = 0;      // 128 and the number, when a signal ended it
  std::string output;  // of both of its streams, unless one went to output_fd
};

struct ProgramLimits {
  std::chrono::seconds time{20};
  size_t output_bytes_max = size_t{8} << 20;  // the end of it is kept
  int output_fd = -1;                         // where its standard output goes instead
};

// By PATH, with nothing on its standard input. kNotFound: there is no such program. kDeadlineExceeded: it was killed, having
// taken too long.
Result<ProgramEnd> RunProgram(const std::vector<std::string>& command, const ProgramLimits& limits);

}  // namespace cleat::ctl
