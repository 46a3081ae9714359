// SPDX-License-Identifier: Apache-2.0
// The endpoint's tests run on each protocol library that the program has: the pretend one, under ThreadSanitizer too, and
// librte_vhost where it is linked.
#pragma once

#include <string>
#include <vector>

#include "vhost/protocol_library.h"

namespace cleat::vhost::test {

struct LibraryUnderTest {
  std::string name;
  ProtocolLibrary& (*get)();  // one a process, started at the first call
};

// Filled before main.
std::vector<LibraryUnderTest>& LibrariesUnderTest();

}  // namespace cleat::vhost::test
