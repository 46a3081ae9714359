// SPDX-License-Identifier: Apache-2.0
// cleatd in the simulated world: its store on real files, its state, its link on a real socket and its reconciler, with each call of the
// API, the link and the watch over the store's health on a thread of their own (sim_threads.h). One life after the other: a life ends at
// any point at which a thread takes a mutex, waits or syncs, and the next one finds the store's files as they were then, or, after a power
// failure, as they were last synced.
//
// The store's syncs (sync_hook.h) take their time, and may fail. Owned by the test; one in a program.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "base/random.h"
#include "control/link/engine_link.h"
#include "control/reconcile/reconciler.h"
#include "control/state/disks/memfd_keeper.h"
#include "control/state/host_state.h"
#include "control/store/store.h"
#include "engine_host.h"
#include "sim_threads.h"
#include "tests/support/temp_dir.h"

namespace cleat::sim {

class CleatdProcess {
 public:
  struct Parts {  // all of it outlives cleatd
    World& world;
    SimThreads& threads;
    Connecting& connecting;
    std::string socket_path;
    // What a life finds in its store; called on a thread of its.
    std::function<void(const control::Rows&)> on_loaded;
    // The store was written to; called on the thread that wrote.
    std::function<void()> on_stored;
    // A life has ended, and nothing of it is left.
    std::function<void()> on_dead;
  };
  explicit CleatdProcess(Parts parts);
  ~CleatdProcess();  // not running

  void Start();
  bool running() const { return life_ != nullptr; }
  bool up() const { return running() && life_->up; }  // calls may come
  // The life could not start, for its syncs failed, and has ended.
  bool failed() const { return running() && life_->failed; }
  control::HostState& state() { return *life_->state; }
  // On a thread of its own; up. What it finds when cleatd is dead is nobody's.
  void Call(const std::string& name, std::function<void(control::HostState&)> call);
  bool dead() const { return threads_.dead(); }
  // At its point of that number from now.
  void DieAt(uint64_t point);
  // What was written and not synced is lost if the host's power fails. Its engines die as well, which is the caller's to see to.
  enum class End : uint8_t { kKilled, kPowerFailed };
  void DieNow(End end = End::kKilled);
  uint64_t deaths() const { return deaths_; }

  // ---- The disk under the store
  void SetSyncs(uint64_t ns_max, uint32_t fail_percent);
  // The disk says that all is synced, and has synced nothing.
  void LetDiskLie() { disk_lies_ = true; }
  uint64_t syncs() const { return syncs_; }

 private:
  struct Life {
    std::filesystem::path folder;
    std::filesystem::path synced;  // a folder with its files as they were last synced
    control::MemfdKeeper memory;
    std::unique_ptr<control::Store> store;
    std::unique_ptr<control::HostState> state;
    std::unique_ptr<control::EngineLink> link;
    std::unique_ptr<control::Reconciler> reconciler;
    bool write_failed = false;  // and nobody has looked since
    bool up = false;
    bool failed = false;
    bool sync_failed = false;
  };

  bool Sync(int fd);
  void KeepSynced(const std::filesystem::path& file);
  void Run(Life& life);
  Status Open(Life& life);
  void WatchHealth(Life& life);
  void Die(End end);
  UniqueFd TakeConnecting();

  const Parts parts_;
  World& world_;
  SimThreads& threads_;
  Random random_;
  test::TempDir dir_{test::FolderInMemory()};
  std::unique_ptr<Life> life_;
  uint64_t lives_ = 0;
  uint64_t deaths_ = 0;
  uint64_t syncs_ = 0;
  uint64_t sync_ns_max_ = 0;
  uint32_t sync_fail_percent_ = 0;
  bool disk_lies_ = false;
};

}  // namespace cleat::sim
