// SPDX-License-Identifier: Apache-2.0
// The clients of all clusters: which image goes to which, made when they are needed, ended when they are empty. One for
// each engine, on the control reactor.
//
// A client that can't connect or was blocklisted takes no image any more; the next image gets a new one. The images
// that it has stay with it, failing, until they are closed: a write of theirs may not be sent again by another client
// behind their owner's back.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "modules/rbd/owner_record.h"
#include "modules/rbd/rados_client.h"
#include "reactor/sync.h"
#include "reactor/task.h"

namespace cleat::modules {

// How long the monitors keep a dead owner out: its packets are long gone by then.
inline constexpr uint32_t kBlocklistSeconds = 3600;

struct RadosClientStatus {
  std::string cluster;
  std::string id;  // empty: not connected (yet)
  uint32_t images = 0;
  uint64_t busy_ns = 0;  // age of what its thread does at present; long: the cluster hangs
  bool blocklisted = false;
  bool failed = false;
  std::set<std::string> pools = {};  // of its images
};

class ClientPool {
 public:
  // `engine`: its name, for owner records. The reactor outlives the pool.
  ClientPool(Reactor& control, const std::string& engine);
  // Ends what it has, waiting for nobody; see End.
  ~ClientPool();
  ClientPool(const ClientPool&) = delete;
  ClientPool& operator=(const ClientPool&) = delete;

  // A place for one image, until Return. Never waits: the client connects when it is first used.
  std::shared_ptr<RadosClient> Take(const std::shared_ptr<const ClusterOptions>& cluster);
  void Return(const std::shared_ptr<RadosClient>& client);

  // `client` heard that it was blocklisted. Once and again.
  void Blocklisted(RadosClient& client);
  // Whether `id` ("client.4123") was one of ours that was blocklisted: what it locked is nobody's.
  bool WasOurs(const std::string& id) const { return blocklisted_ids_.contains(id); }

  // Shuts the owner of locks out: a dead process' client, with all its images, at `address`. Done once, however many
  // ask at the same time, by `by`'s thread. Who breaks a lock then waits for the latest map on its own client first.
  Task<Status> ShutOut(std::shared_ptr<RadosClient> by, std::string address);

  // Waits until every client's thread has ended, at most so long; no image is open. False: some hang in Ceph. Then the
  // process must leave by _exit, since exit() destroys what their threads use.
  Task<bool> End(uint64_t wait_ns);

  // A client of the cluster that is connected and not blocklisted; null: there is none.
  std::shared_ptr<RadosClient> FindConnected(const std::string& cluster) const;

  const Result<OwnerRecord>& self() const { return self_; }
  std::vector<RadosClientStatus> status() const;
  uint64_t shut_out_count() const { return shut_out_count_; }  // blocklistings done, since the start

 private:
  struct Member {
    std::shared_ptr<RadosClient> client;
    uint32_t images = 0;
  };
  struct ShuttingOut {
    explicit ShuttingOut(Reactor& reactor) : done(reactor) {}
    Event done;
    Status status;
    uint64_t done_ns = 0;
  };
  void ForgetOld();

  Reactor& control_;
  const std::shared_ptr<ControlLink> link_;
  const Result<OwnerRecord> self_;
  uint32_t next_number_ = 0;
  std::vector<Member> members_;
  std::set<std::string> blocklisted_ids_;
  std::map<std::string, std::shared_ptr<ShuttingOut>> shut_out_;  // by cluster and address
  uint64_t shut_out_count_ = 0;
};

}  // namespace cleat::modules
