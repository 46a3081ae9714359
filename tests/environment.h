// SPDX-License-Identifier: Apache-2.0
// What whoever runs a test may ask for: more of it, or another seed.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace cleat::test {

inline uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nobody writes the environment
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

}  // namespace cleat::test
