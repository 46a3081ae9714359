// SPDX-License-Identifier: Apache-2.0
// The programs that a host's daemons run: those of this build tree, or of an older version, which scripts/build_base.sh has built and
// CLEAT_BASE_BIN names. An older version lacks some of the options that the present one is started with.
#pragma once

#include <string>

#include "base/result.h"

namespace cleat::system_test {

struct Product {
  std::string bin_dir = {};    // empty: this build tree's
  bool has_path_lists = true;  // both daemons have the option --paths

  std::string Program(const std::string& name) const;
};

// kNotFound: CLEAT_BASE_BIN is not set. Otherwise an error says what is missing in the folder that it names.
Result<Product> OlderProduct();

}  // namespace cleat::system_test
