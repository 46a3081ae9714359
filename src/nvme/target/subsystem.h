// SPDX-License-Identifier: Apache-2.0
// An NVM subsystem: its names, who is let in, its namespaces, and how good this engine's way to each of them is (ANA). Each namespace is its own
// ANA group, whose identifier is the NSID, so that disks may become inaccessible one by one. Two engines may show one subsystem at a time: the one
// that serves it, and one that stands by, whose way to all namespaces is inaccessible until it serves them.
//
// Source: NVM Express Base Specification 2.0 ("base"), 3.1, 8.1 (ANA), 8.9 (namespaces). Of the control reactor; pure. Owned by Target, which
// changes it; others read it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "nvme/fabrics/commands.h"
#include "nvme/fabrics/log_pages.h"
#include "nvme/fabrics/names.h"
#include "nvme/target/access/host_access.h"
#include "nvme/target/namespace_shape.h"

namespace cleat::nvme::target {

struct SubsystemConfig {
  std::string nqn;              // not the discovery service's
  std::string serial;           // SN: 1 to 20 printable bytes
  std::string model = "Cleat";  // MN: 1 to 40
  std::vector<fabrics::TransportAddress>
      addresses;  // where the engine that serves it listens: 1 to kAddressesMax, wildcards too
  std::vector<fabrics::TransportAddress>
      standby_addresses;          // where one that stands by does: at most kAddressesMax, none of `addresses`
  std::vector<HostAccess> hosts;  // that are let in, at most kHostsMax, each NQN once; none: nobody
  uint32_t io_queues_max = 8;     // of one controller, from 1 on
  // Marks the packets to its hosts over TCP, from the moment that they have said whose they are: 0 to fabrics::kDscpMax. Over RDMA the host's choice
  // holds for both ways.
  uint8_t dscp = 0;
  // The identifier of its first controller, 1 to kControllerIdLast; the others follow in turn. Hosts refuse a controller that has the identifier of
  // another one of the subsystem, which may be another engine's: so each engine begins at random. The next try of a host that was unlucky gets
  // the next identifier.
  uint16_t controller_id_begin = 1;
};
// kInvalidArgument, with the field's name.
cleat::Status CheckConfig(const SubsystemConfig& config);
cleat::Status CheckHosts(const std::vector<HostAccess>& hosts);

class Subsystem {
 public:
  // `config` has passed CheckConfig.
  explicit Subsystem(SubsystemConfig config);

  const SubsystemConfig& config() const { return config_; }
  bool Admits(std::string_view host_nqn) const { return FindHost(host_nqn) != nullptr; }
  // nullptr: it is not let in.
  const HostAccess* FindHost(std::string_view host_nqn) const;

  // nullptr: there is none.
  const NamespaceShape* Find(uint32_t nsid) const;
  // The NSIDs above `after`, in order.
  std::vector<uint32_t> Active(uint32_t after) const;
  // Of a namespace that is there. I/O commands for one that is not usable are answered with PathStatusOf.
  fabrics::AnaState ana_state(uint32_t nsid) const;
  // Another engine serves it: namespaces that come are inaccessible.
  bool stands_by() const { return ana_of_new_ == fabrics::AnaState::kInaccessible; }
  // Of a namespace that is there: whether its registrations outlive the power, as Register has it (PTPL).
  bool reservation_persists(uint32_t nsid) const;
  uint64_t ana_changes(uint32_t nsid) const;             // of one group, and
  uint64_t ana_changes() const { return ana_changes_; }  // of all

  // What the controller says of all namespaces together.
  bool any_write_zeroes() const;
  bool any_discard() const;
  uint64_t write_zeroes_bytes_max() const;  // the least of those that have a limit; 0: none has
  uint64_t discard_blocks_max() const;      // likewise

 private:
  friend class Target;
  struct Entry {
    NamespaceShape shape;
    fabrics::AnaState ana = fabrics::AnaState::kOptimized;
    uint64_t changes = 0;
    bool reservation_persists = false;
  };
  void SetHosts(std::vector<HostAccess> hosts);
  void Put(uint32_t nsid, const NamespaceShape& shape);
  void Remove(uint32_t nsid);
  bool SetAna(uint32_t nsid, fabrics::AnaState state);  // whether it is another
  bool SetAna(fabrics::AnaState state);  // of all, those that are to come too; whether any was another

  SubsystemConfig config_;
  std::map<std::string, HostAccess, std::less<>> hosts_;             // by NQN
  std::array<std::optional<Entry>, kNamespacesMax + 1> namespaces_;  // by NSID
  fabrics::AnaState ana_of_new_ = fabrics::AnaState::kOptimized;
  uint64_t ana_changes_ = 0;
};

// All addresses at which a host that came by `local` finds the subsystem, each once: of the engine that serves it and of one that stands by,
// whichever is asked, so that hosts have a path to either before they need it.
std::vector<fabrics::TransportAddress> WhereIs(const Subsystem& subsystem,
                                               const fabrics::TransportAddress& local);
// Whether a host that came by `local` may mean the subsystem: one that stands by is reached by its standby addresses alone, whoever else listens in
// this process for others, as the engine that serves it may share the other addresses.
bool IsReachedBy(const Subsystem& subsystem, const fabrics::TransportAddress& local);

// How an I/O command ends for a namespace whose group is in `state`: path related, so that hosts go on elsewhere. 0: it is executed.
uint16_t PathStatusOf(fabrics::AnaState state);

}  // namespace cleat::nvme::target
