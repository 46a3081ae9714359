// SPDX-License-Identifier: Apache-2.0
// cleatctl: Cleat's API on the command line.
#include <csignal>
#include <cstdlib>

#include "ctl/app.h"

int main(int argc, char** argv) {
  // A peer that hangs up is an error of that call; a reader that does ends the process (output.h).
  std::signal(SIGPIPE, SIG_IGN);
  // gRPC's own log would mix with the messages; who looks for it sets the variable.
  setenv("GRPC_VERBOSITY", "NONE", 0);
  return cleat::ctl::Run(argc, argv);
}
