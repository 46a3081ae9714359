// SPDX-License-Identifier: Apache-2.0
// What one kind asks for when a change of it concerns another: that this is reconciled as well, at once. The reconciler implements it, so
// that no kind includes another's header for that. On the link's thread.
#pragma once

#include <string>

namespace cleat::control {

struct EngineView;

class Reconcile {
 public:
  virtual ~Reconcile() = default;

  // In every engine, and the controller's move, if it has one: time may be over for that, though no engine is connected.
  virtual void Controller(const std::string& controller) = 0;
  // In that engine, and the controller's move.
  virtual void ControllerOn(EngineView& engine, const std::string& controller) = 0;

  virtual void Disk(const std::string& disk) = 0;  // the following three
  virtual void DiskMemory(const std::string& disk) = 0;
  virtual void DiskSize(const std::string& disk) = 0;
  virtual void DiskLimits(const std::string& disk) = 0;

  virtual void GroupOn(EngineView& engine, const std::string& group) = 0;
  virtual void ClusterOn(EngineView& engine, const std::string& cluster) = 0;
  virtual void ClustersOn(EngineView& engine) = 0;  // all that the engine has or should have
};

}  // namespace cleat::control
