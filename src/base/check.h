// SPDX-License-Identifier: Apache-2.0
// Assertions. A failed one is a programmer's error and stops the process: the engine's state can no longer be
// trusted with a guest's data. Operating errors (bad input, lost peers, full disks) are values: see result.h.
#pragma once

namespace cleat {

[[noreturn]] void CheckFailed(const char* condition, const char* file, int line,
                              const char* function) noexcept;

}  // namespace cleat

// Always compiled in. Cheap enough for the hot path when the condition is a comparison of values at hand.
#define CLEAT_CHECK(condition)                                        \
  do {                                                                \
    if (!(condition)) [[unlikely]]                                    \
      ::cleat::CheckFailed(#condition, __FILE__, __LINE__, __func__); \
  } while (false)

// Compiled in for debug and sanitizer builds only: for conditions that cost more than a comparison.
#if !defined(NDEBUG) || defined(CLEAT_ASAN) || defined(CLEAT_TSAN)
#define CLEAT_DCHECK(condition) CLEAT_CHECK(condition)
#else
#define CLEAT_DCHECK(condition) \
  do {                          \
  } while (false)
#endif
