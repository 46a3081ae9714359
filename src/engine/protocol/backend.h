// SPDX-License-Identifier: Apache-2.0
// What stores a disk's blocks, as cleatd has said it: a kind of back end with what that kind has to know. Which kinds there are,
// backends.cc alone knows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "pool/extents.h"

namespace cleat::engine {

// A value that never changes; copies share it, on any thread.
class Backend {
 public:
  struct Kind;  // backends.cc

  Backend();  // a null disk's, whose reads give zeroes
  explicit Backend(std::shared_ptr<const Kind> kind);

  // The same storage. How its path is followed, or how large it is known to be, does not say which storage it is.
  bool operator==(const Backend& other) const;

  const Kind& kind() const { return *kind_; }

 private:
  std::shared_ptr<const Kind> kind_;  // never null
};

// A pool's disk with these extents, which are as many as it takes; any other one, or without any, as it is.
Backend WithExtents(const Backend& backend, const pool::ExtentRuns& extents);

// File descriptors that are open at most for a disk of this kind which is used on that many reactors.
uint32_t FilesOf(const Backend& backend, size_t reactors);
uint32_t FilesOfFileDisk();  // those of a disk on a file or a block device

// What people are told to see to when a disk's storage does not answer: "clusters/x", "subsystems/x", a path, or "its storage".
std::string StorageOf(const Backend& backend);

}  // namespace cleat::engine
