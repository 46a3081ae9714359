// SPDX-License-Identifier: Apache-2.0
// Where a test's server may listen.
#pragma once

#include <string>

namespace cleat::test {

// "127.0.0.1:PORT", with a port that nobody has now. "" where there is none.
std::string FreeAddress();

}  // namespace cleat::test
