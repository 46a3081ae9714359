// SPDX-License-Identifier: Apache-2.0
// CLEAT_AWAIT_SUSPEND stands before each await_suspend that may hand its coroutine to another thread. clang (16 at least)
// keeps the locals of one that it inlines in the coroutine's frame, which that thread may resume, and free, meanwhile
// (llvm/llvm-project, issue 56301). GCC doesn't, so that the product's code is as it would be without.
#pragma once

#if defined(__clang__)
#define CLEAT_AWAIT_SUSPEND [[gnu::noinline]]
#else
#define CLEAT_AWAIT_SUSPEND
#endif
