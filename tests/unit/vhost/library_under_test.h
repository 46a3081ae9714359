// SPDX-License-Identifier: Apache-2.0
// The endpoint's tests run twice: with the pretend library, under ThreadSanitizer too, and with librte_vhost.
#pragma once

#include "vhost/protocol_library.h"

namespace cleat::vhost::test {

ProtocolLibrary& LibraryUnderTest();

}  // namespace cleat::vhost::test
