// SPDX-License-Identifier: Apache-2.0
// Registrations and windows (rdma/memory.h) of an adapter. Made by AdapterDevice.
#pragma once

#include "rdma/ibverbs/library.h"
#include "rdma/memory.h"

namespace cleat::rdma {

class AdapterRegistration final : public Registration {
 public:
  AdapterRegistration(const Library& library, ibv_mr& region)
      : Registration(region.lkey, region.rkey), library_(library), region_(region) {}
  ~AdapterRegistration() override { library_.dereg_mr(&region_); }

  ibv_mr* region() const { return &region_; }

 private:
  const Library& library_;
  ibv_mr& region_;
};

class AdapterWindow final : public MemoryWindow {
 public:
  explicit AdapterWindow(ibv_mw& window) : MemoryWindow(window.rkey), window_(window) {}
  ~AdapterWindow() override { ibv_dealloc_mw(&window_); }

  ibv_mw* window() const { return &window_; }
  // Work that binds it with that key was posted: adapters want the last one with the next binding.
  void BoundAs(uint32_t key) { window_.rkey = key; }

 private:
  ibv_mw& window_;
};

}  // namespace cleat::rdma
