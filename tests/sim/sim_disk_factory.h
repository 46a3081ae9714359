// SPDX-License-Identifier: Apache-2.0
// The simulation's engine::DiskFactory: media by name, opened with delays and failures from the seed, behind the fault
// filter. On control.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "engine/disks/disk_factory.h"
#include "reactor/sync.h"
#include "sim_disk.h"
#include "world.h"

namespace cleat::sim {

struct StoragePlan {
  uint64_t delay_ns_max = 200 * kNsPerUs;  // of a request
  uint32_t fail_per_million = 0;           // requests
  uint64_t open_ns_max = 5 * kNsPerMs;     // open, acquire, release and close, each
  uint32_t open_fails_percent = 0;
  uint32_t acquire_fails_percent = 0;
};

class SimDiskFactory final : public engine::DiskFactory {
 public:
  SimDiskFactory(World& world, const StoragePlan& plan, Defect defect = Defect::kNone);
  ~SimDiskFactory() override;

  Medium& AddMedium(const std::string& disk, uint64_t blocks);
  Medium* Find(const std::string& disk);

  Task<Result<engine::OpenDisk>> Open(const engine::DiskSpec& disk, block::AccessMode mode,
                                      std::shared_ptr<qos::Group> group, engine::DiskEvents events) override;

  // The storage of one disk hangs: requests, and opening it.
  void Hold(const std::string& disk);
  void LetGoAll();

  // What is still open for this attachment: 0 when nothing is left.
  size_t OpenFor(const std::string& user_suffix) const;
  size_t OpenAll() const;
  // Every medium holds what its users may expect. Nobody is writing.
  void CheckContent();

 private:
  class DelayedDisk;
  Task<void> Delay(Medium& medium);

  World& world_;
  const StoragePlan plan_;
  const Defect defect_;
  Random random_;
  std::map<std::string, std::unique_ptr<Medium>> media_;
  Event let_go_;
};

}  // namespace cleat::sim
