// SPDX-License-Identifier: Apache-2.0
// Memory that an adapter may use: registrations, and the windows by which a peer sees parts of them.
//
// A device makes both (rdma/device.h), which outlives them. Any thread; an object is used by one at a time. Sources: InfiniBand Architecture
// Specification 1.4, volume 1, 10.6 (memory management); ibv_reg_mr(3), ibv_alloc_mw(3), ibv_bind_mw(3).
#pragma once

#include <cstdint>

namespace cleat::rdma {

// What registered memory is for, beside being sent from. `local_write`: the adapter writes there what is received and what READs bring.
struct MemoryAccess {
  bool local_write = false;
  bool peer_may_read = false;   // by the registration's own remote key, all of it
  bool peer_may_write = false;  // the same; takes local_write as well
  bool windows =
      false;  // windows may show parts of it; where the peer is to write there, local_write as well
};

// The memory is the adapter's as long as this lives: its pages are pinned, and stay where they are. Destroyed when no work refers to it and no window
// is bound to it.
class Registration {
 public:
  virtual ~Registration() = default;
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  uint32_t local_key() const { return local_key_; }
  uint32_t remote_key() const { return remote_key_; }

 protected:
  Registration(uint32_t local_key, uint32_t remote_key) : local_key_(local_key), remote_key_(remote_key) {}

 private:
  const uint32_t local_key_;
  const uint32_t remote_key_;
};

// A window of type 2: work of a queue pair binds it (SendOp::kBindWindow), and it is that queue pair's until it is invalid again. Its key is changed with
// each binding, so that a key that the peer kept opens nothing. Destroyed after the work that refers to it, bound or not; before the registration.
class MemoryWindow {
 public:
  virtual ~MemoryWindow() = default;
  MemoryWindow(const MemoryWindow&) = delete;
  MemoryWindow& operator=(const MemoryWindow&) = delete;

  // The key for the next binding; differs from those of the last 255. The peer is told it.
  uint32_t NextKey() {
    key_ = (key_ & ~kChangingBits) | ((key_ + 1) & kChangingBits);
    return key_;
  }
  // What NextKey gave last.
  uint32_t key() const { return key_; }

 protected:
  explicit MemoryWindow(uint32_t first_key) : key_(first_key) {}

 private:
  // The rest of a key is the adapter's index of the window.
  static constexpr uint32_t kChangingBits = 0xff;
  uint32_t key_;
};

}  // namespace cleat::rdma
