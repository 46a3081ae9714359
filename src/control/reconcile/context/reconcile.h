// SPDX-License-Identifier: Apache-2.0
// How one kind has another reconciled, at once, when a change of the one concerns the other. The Reconciler implements this interface, so
// that kinds do not include one another's headers. On the link's thread.
#pragma once

#include <string>

namespace cleat::control {

struct EngineView;

class Reconcile {
 public:
  virtual ~Reconcile() = default;

  // The controller in every engine, and its move, if it has one: the time of that may be over though no engine is connected.
  virtual void Controller(const std::string& controller) = 0;
  // The controller in that engine, and its move.
  virtual void ControllerOn(EngineView& engine, const std::string& controller) = 0;

  virtual void Disk(const std::string& disk) = 0;  // the following three
  virtual void DiskMemory(const std::string& disk) = 0;
  virtual void DiskSize(const std::string& disk) = 0;
  virtual void DiskLimits(const std::string& disk) = 0;

  virtual void GroupOn(EngineView& engine, const std::string& group) = 0;
  virtual void ClusterOn(EngineView& engine, const std::string& cluster) = 0;
  virtual void ClustersOn(EngineView& engine) = 0;  // all that the engine has or should have

  // What depends on whether that engine answers: new controllers, who stands by for whom, and who takes a dead engine's controllers.
  virtual void AnsweringOf(EngineView& engine) = 0;
};

}  // namespace cleat::control
