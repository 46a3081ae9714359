// SPDX-License-Identifier: Apache-2.0
// A Ceph user's key from the command line: a file, never the key itself, which other users could see there.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"

namespace cleat::ctl {

// A keyring, with the key of the spec's user, or the key alone. Errors name the file, and nothing of what is in it.
Status ReadCephKey(const std::string& file, v1::ClusterSpec* spec);
void WipeCephKey(v1::ClusterSpec* spec);

// The part of the text that is the user's key; empty when there is none.
std::string_view FindCephKey(std::string_view text, std::string_view user);

}  // namespace cleat::ctl
