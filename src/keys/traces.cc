// SPDX-License-Identifier: Apache-2.0
#include "keys/traces.h"

#include <cstdint>
#include <cstring>

namespace cleat::keys {
namespace {

[[gnu::noinline]] void WipeStack() {
  uint8_t
      below[kTraceBytes];  // NOLINT(modernize-avoid-c-arrays): never to be initialised by anything but this
  explicit_bzero(below, sizeof(below));
}

#if defined(__x86_64__)
[[gnu::noinline, gnu::target("avx")]] void WipeRegisters() {
  asm volatile("vzeroall" ::
                   : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                     "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}

// glibc copies with the upper sixteen, which vzeroall leaves as they are.
[[gnu::noinline, gnu::target("avx512f")]] void WipeUpperRegisters() {
  asm volatile(
      "vpxord %%zmm16, %%zmm16, %%zmm16\n\tvpxord %%zmm17, %%zmm17, %%zmm17\n\t"
      "vpxord %%zmm18, %%zmm18, %%zmm18\n\tvpxord %%zmm19, %%zmm19, %%zmm19\n\t"
      "vpxord %%zmm20, %%zmm20, %%zmm20\n\tvpxord %%zmm21, %%zmm21, %%zmm21\n\t"
      "vpxord %%zmm22, %%zmm22, %%zmm22\n\tvpxord %%zmm23, %%zmm23, %%zmm23\n\t"
      "vpxord %%zmm24, %%zmm24, %%zmm24\n\tvpxord %%zmm25, %%zmm25, %%zmm25\n\t"
      "vpxord %%zmm26, %%zmm26, %%zmm26\n\tvpxord %%zmm27, %%zmm27, %%zmm27\n\t"
      "vpxord %%zmm28, %%zmm28, %%zmm28\n\tvpxord %%zmm29, %%zmm29, %%zmm29\n\t"
      "vpxord %%zmm30, %%zmm30, %%zmm30\n\tvpxord %%zmm31, %%zmm31, %%zmm31" ::
          : "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26",
            "xmm27", "xmm28", "xmm29", "xmm30", "xmm31");
}
#endif

}  // namespace

void WipeTraces() {
  // Registers first: the dynamic linker saves them on the stack, below, when it looks up what is called here.
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx")) WipeRegisters();
  if (__builtin_cpu_supports("avx512f")) WipeUpperRegisters();
#endif
  WipeStack();
}

}  // namespace cleat::keys
