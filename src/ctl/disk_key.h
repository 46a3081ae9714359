// SPDX-License-Identifier: Apache-2.0
// A disk's key from the command line: a file, never the key itself, which other users could see there.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"

namespace cleat::ctl {

struct KeyArguments {
  std::string file;
  std::string format = "raw";
  std::string cipher;
  uint32_t data_unit_bytes = 0;
};

void AddKey(CLI::App& command, KeyArguments& arguments);
// Nothing when no file was given. Errors name the file, and nothing of what is in it.
Status ReadKey(const KeyArguments& arguments, v1::DiskSpec* spec);
void WipeKey(v1::DiskSpec* spec);

}  // namespace cleat::ctl
