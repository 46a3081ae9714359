// SPDX-License-Identifier: Apache-2.0
// What functions that handled a key leave behind besides what they free: their stack frames, and vector registers, which a
// copy of 64 bytes goes through and which signals, core dumps and the dynamic linker write to memory.
#pragma once

#include <cstddef>

namespace cleat::keys {

inline constexpr size_t kTraceBytes = size_t{16}
                                      << 10;  // of stack below the caller: deeper than OpenSSL goes

// By whoever has just finished with a key, on the same thread. About half a microsecond.
void WipeTraces();

}  // namespace cleat::keys
