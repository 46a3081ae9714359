// SPDX-License-Identifier: Apache-2.0
// What a support bundle has, from where it is on a host. Each part that can't be had is named in the bundle, and the others are there:
// without cleatd its half is missing, and the engines' counters are read from their memory.
#pragma once

#include <string>

#include "ctl/client.h"
#include "ctl/support/bundle.h"

namespace cleat::ctl {

struct SupportSources {
  std::string config_folder = "/etc/cleat";  // of its *.conf alone
  std::string processes = "/proc";
  std::string journalctl = "journalctl";
};

// Asks cleatd, reads files and processes, and runs programs that say their versions or the journal. Takes seconds; a minute or two where
// everything hangs.
Bundle CollectBundle(const Globals& globals, const SupportSources& sources);

}  // namespace cleat::ctl
