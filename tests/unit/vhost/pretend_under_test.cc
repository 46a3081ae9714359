// SPDX-License-Identifier: Apache-2.0
#include "host.h"
#include "library_under_test.h"

namespace cleat::vhost::test {

ProtocolLibrary& LibraryUnderTest() {
  static PretendLibrary library;
  return library;
}

}  // namespace cleat::vhost::test
