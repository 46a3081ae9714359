// SPDX-License-Identifier: Apache-2.0
// CLEAT_NO_STACK_BUFFER stands before a function that each request of a guest passes and that keeps no array on its stack. The
// compiler guards it all the same, since it takes addresses of locals or may make the text of an error, and the guards of these few
// functions would cost more than all other hardening together (docs/operations.md). One with an array is never given this.
// clang's builds, those with sanitizers, have no guards.
#pragma once

#if defined(__clang__)
#define CLEAT_NO_STACK_BUFFER
#else
#define CLEAT_NO_STACK_BUFFER [[gnu::no_stack_protector]]
#endif
