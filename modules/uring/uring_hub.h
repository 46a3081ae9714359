// SPDX-License-Identifier: Apache-2.0
// The io_urings: of each I/O reactor one for files and one for devices' commands, shared by all disks on it; and what is known of the drives
// of pools, shared by their disks. Owned by the engine, beside the reactors.
//
// Life: AddReactor for each I/O reactor before its thread starts (or on it), and before the first disk is opened; destroyed after the threads have
// ended and before the reactors, with no disk open. OpenUring and the channels only look rings up, from any
// thread.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "modules/uring/memory_registrar.h"
#include "pool/map_cache.h"
#include "reactor/reactor.h"

namespace cleat::modules {

class IoLifetime;
class UringRing;

class UringHub {
 public:
  // `lifetime` is told by each ring how long its I/O lasts, and outlives the hub; nullptr: nobody asks.
  explicit UringHub(const IoLifetime* lifetime = nullptr);
  ~UringHub();
  UringHub(const UringHub&) = delete;
  UringHub& operator=(const UringHub&) = delete;

  // Makes the reactor's ring. An error says why io_uring can't be had and what to do; it is kept and given to
  // whoever opens a disk later, so that an engine without io_uring can still serve disks of other kinds.
  Status AddReactor(Reactor& reactor);

  // Ok when every reactor that was added has its ring.
  Status status() const;
  UringRing* Find(const Reactor& reactor) const;  // nullptr when it has none

  // The same for the rings for commands, which older kernels have not.
  Status commands_status() const;
  UringRing* FindForCommands(const Reactor& reactor) const;
  // Keeps both files, `commands` the one that takes the commands, open in every ring for commands as long as it has I/O, also when this
  // process is killed: their locks are free no sooner. Returns the place that commands name. Wait for the reactors' present system calls.
  // kResourceExhausted: all places are taken, half of as many as the process might have files open when the hub was made, or as a ring has.
  Result<uint32_t> KeepFiles(int commands, int other);
  void DropFiles(uint32_t place);

  // For commands on guests' memory.
  MemoryRegistrar& registrar() { return registrar_; }
  uint64_t registered_commands() const;  // whose memory was registered, since the start. Any thread

  // From any thread that may block.
  pool::MapCache& maps() { return maps_; }

 private:
  Status KeepInAll(uint32_t place, int fd);
  void DropFromAll(uint32_t place);

  const IoLifetime* const lifetime_;
  const uint32_t kept_files_;  // of each ring for commands
  std::vector<std::unique_ptr<UringRing>> rings_;
  std::vector<std::unique_ptr<UringRing>> command_rings_;
  MemoryRegistrar registrar_;  // its thread uses the rings, and ends before them
  std::optional<Error> error_;
  std::optional<Error> commands_error_;
  pool::MapCache maps_;
  Mutex mutex_;
  std::vector<uint32_t> free_places_ CLEAT_GUARDED_BY(mutex_);  // each the first of two
};

}  // namespace cleat::modules
