// SPDX-License-Identifier: Apache-2.0
// What the engine has: controllers, their disks, kept memory. Takes cleatd's requests and reports every
// change; knows nothing of sockets or protobuf, so the simulation drives it as the command link does. On the
// control reactor.
//
// Requests on one target of a controller happen in the order in which they came, all others side by side.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/descriptor_budget.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "engine/controller/controller.h"
#include "engine/protocol/discovery.h"
#include "engine/protocol/spec.h"
#include "engine/stores/cluster_store.h"
#include "engine/stores/group_store.h"
#include "engine/stores/memory_store.h"
#include "reactor/cancel.h"
#include "reactor/sync.h"
#include "reactor/task.h"

namespace cleat::engine {

class Engine {
 public:
  // Asks a discovery service, and ends at once when it is cancelled (discovery/discover.h).
  using DiscoverFunction =
      std::function<Task<Result<DiscoveryReport>>(DiscoverySpec, DiscoverySeen, CancelToken& cancel)>;

  struct Parts {  // all of it outlives the engine
    Reactor& control;
    const std::vector<Reactor*>& io_reactors;
    DiskFactory& disks;
    vhost::EndpointFactory& endpoints;
    MemoryStore& memories;
    GroupStore& groups;
    ClusterStore& clusters;
    observe::EngineCounters* counters = nullptr;  // where requests are counted, if anywhere
    BlockingPool* reading = nullptr;  // for reading other engines' counters; nullptr: it is done inline
    DescriptorBudget* descriptors = nullptr;       // nullptr: nobody counts
    virtio::EarlierIo* earlier_io = nullptr;       // of engines that were killed; nullptr: none was before
    DiscoverFunction discover = {};                // empty: this engine can't
    nvmf_target::TargetService* target = nullptr;  // nullptr: it has no exports
    // Of exports' hosts: with them secrets are unwrapped, and there; nullptr: hosts that have secrets are not let in.
    keys::Keyring* keyring = nullptr;
    BlockingPool* unwrapping = nullptr;
  };

  // Hears of changes (the command link), and asks for the present report by name.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void ControllerChanged(const std::string& controller) = 0;
    virtual void AttachmentChanged(const std::string& controller, uint32_t target) = 0;
  };

  explicit Engine(const Parts& parts);
  ~Engine();  // after Shutdown

  void SetListener(Listener* listener) { listener_ = listener; }

  // ---- What is
  std::vector<ControllerReport> Controllers() const;
  std::vector<AttachmentReport> Attachments() const;
  std::vector<MemoryReport> Memories() const { return parts_.memories.Report(); }
  std::vector<GroupSpec> Groups() const { return parts_.groups.Report(); }
  std::vector<ClusterSpec> Clusters() const { return parts_.clusters.Report(); }
  std::optional<ControllerReport> ControllerByName(const std::string& name) const;
  std::optional<AttachmentReport> AttachmentByKey(const std::string& controller, uint32_t target) const;

  // ---- Requests (proto/cleat/engine/v1/engine.proto says what each promises). By value: the coroutine keeps
  // them.
  Status PutController(const ControllerSpec& spec, Controller::Role role = Controller::Role::kServe);
  // Returns when the secrets of its hosts are unwrapped, or could not be. At once where there is no such controller, or no hosts.
  Task<void> AwaitHosts(std::string name);
  Status ServeController(const std::string& name);
  Task<Result<Yielded>> YieldController(std::string name, uint64_t drain_ns);
  // `counters`: of the engine that has yielded it, or invalid.
  Task<Status> TakeController(std::string name, Yielded yielded, UniqueFd counters);
  Task<Status> DeleteController(std::string name);
  Task<Status> Attach(AttachmentSpec attachment);
  Task<Status> Detach(std::string controller, uint32_t target);
  Status KeepMemory(const MemoryReport& memory, UniqueFd fd);
  Status DropMemory(const std::string& disk);
  Task<Status> ResizeDisk(ResizeSpec resize);
  Status ShareGroups(UniqueFd memory);
  Status PutGroup(const GroupSpec& group);
  Status DropGroup(const std::string& name);
  Status PutCluster(const ClusterSpec& cluster);
  Status DropCluster(const std::string& name);
  Status LimitDisk(const LimitSpec& limit);
  // `seen`: of a service that is watched. `cancel` outlives the task, and ends it; so does Shutdown, by `cancel`.
  Task<Result<DiscoveryReport>> Discover(DiscoverySpec discovery, DiscoverySeen seen, CancelToken& cancel);
  Result<UniqueFd> FetchMemory(const std::string& disk) const { return parts_.memories.Duplicate(disk); }

  // Detaches everything, all controllers at once; refuses requests from then on. As long as the storage
  // takes.
  Task<void> Shutdown();

 private:
  std::shared_ptr<Controller> Find(const std::string& name) const;
  Status CheckPlace(const ControllerSpec& spec) const;
  Task<void> OnDiskGrew(std::string controller, ResizeSpec resize);

  Parts parts_;
  Listener* listener_ = nullptr;
  Placement placement_;
  ControllerContext context_;
  std::map<std::string, std::shared_ptr<Controller>> controllers_;
  std::map<std::string, DescriptorBudget::Reservation> memory_descriptors_;  // by the disk's name
  Gate requests_;
  CancelToken ending_;  // what nobody needs any more
};

}  // namespace cleat::engine
