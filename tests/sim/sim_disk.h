// SPDX-License-Identifier: Apache-2.0
// A disk of the simulation. The Medium is its content, which outlives every attachment, with the model of what it may
// hold; a SimDisk is the medium, opened: a memory device that completes at once and watches that the rules of
// block/device.h are kept - one writer or many readers, no request without ownership, channels used where they were
// opened and closed before the disk. Delays, reordering, failures and hangs come from the fault filter above it.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "block/device.h"
#include "defect.h"
#include "disk_model.h"
#include "modules/fault/fault.h"

namespace cleat::sim {

using ReportFn = std::function<void(const std::string& violation)>;  // any thread that the disk is used on

class SimDisk;

struct Medium {
  Medium(const std::string& name, uint64_t blocks) : model(name, blocks), bytes(blocks * kBlockBytes) {}

  DiskModel model;
  std::vector<uint8_t> bytes;
  // Who has it open, by name of the attachment; touched on control only.
  std::map<const SimDisk*, modules::FaultDevice*> open;
  std::map<const SimDisk*, block::AccessMode> owners;
  bool held = false;

  bool HeldByOthers(block::AccessMode mode) const;
  void Hold();
  void LetGo();
};

class SimDisk final : public block::Device {
 public:
  SimDisk(Medium& medium, const block::Geometry& geometry, std::string user, Defect defect, ReportFn report);
  ~SimDisk() override;

  const std::string& user() const { return user_; }  // the attachment's serial: whom it was opened for

  uint32_t frames() const override { return 0; }
  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& reactor) override;
  Task<Status> Acquire(block::AccessMode mode) override;
  Task<Status> Release() override;
  Task<Status> Close() override;

 private:
  class SimChannel;
  block::IoStatus Execute(const block::Request& request);
  void Write(const block::Request& request);
  void Read(const block::Request& request);
  bool Strikes();  // the planted defect, now and then

  Medium& medium_;
  const std::string user_;
  const Defect defect_;
  const ReportFn report_;
  std::atomic<bool> owned_{false};
  std::atomic<bool> writable_{false};
  std::atomic<uint32_t> channels_{0};
  std::atomic<uint32_t> strikes_{0};
  std::vector<uint8_t> before_;  // stale reads: the content before the last write
  bool closed_ = false;
};

}  // namespace cleat::sim
