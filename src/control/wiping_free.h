// SPDX-License-Identifier: Apache-2.0
// In cleatd, memory is wiped when it is freed: plain keys come through buffers of gRPC and messages of protobuf, which are
// freed in many places, none of them ours, and would lie there for days. The C library's functions are replaced for the
// whole process (its manual, "Replacing malloc": the allocator stays the same, reached by the names that it exports for
// this). The engine has no such thing: no plain key reaches it but through keys/secret_arena.h.
//
// Not under sanitizers, which replace the same functions.
#pragma once

namespace cleat::control {

// Before there are threads. For the test that must find keys in cleatd's memory then.
void StopWipingFreedMemory();

}  // namespace cleat::control
