// SPDX-License-Identifier: Apache-2.0
// NVMe-oF subsystems. cleatd never speaks to one: it keeps how they are reached, and tells an engine with each disk that is a namespace of
// one, when that is attached. So a subsystem's spec stays as it is while it has disks; its addresses, reservations and secrets only while one
// of these is attached. Any thread; what needs the state's mutex says so.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/model/model.h"
#include "control/state/keys/spec_keys.h"
#include "control/state/publish/state_core.h"
#include "nvme/fabrics/names.h"
#include "pool/layout.h"

namespace cleat::control {

class Subsystems {
 public:
  using NameSet = std::set<std::string>;

  // `core` and `keys` outlive it. `host`: which host this is, 16 bytes that are no other's; all zeroes where that is not known.
  Subsystems(StateCore& core, const SpecKeys& keys, const pool::Uid& host)
      : core_(core), keys_(keys), host_(host) {}

  void Fill(std::vector<SubsystemRow> rows) CLEAT_REQUIRES(holds_state);  // from the store

  // ---- The API
  Result<v1::Subsystem> Create(const v1::CreateSubsystemRequest& request);
  Result<v1::Subsystem> Get(const v1::GetSubsystemRequest& request);
  Result<v1::ListSubsystemsResponse> List(const v1::ListSubsystemsRequest& request);
  Result<v1::Subsystem> Update(const v1::UpdateSubsystemRequest& request);
  // Whether Update would do it now if these disks and attachments were gone, by their full names.
  Status CheckUpdate(const v1::UpdateSubsystemRequest& request, const NameSet& gone = {});
  Result<v1::DeleteSubsystemResponse> Delete(const v1::DeleteSubsystemRequest& request);
  // For ApplyHost: whether the subsystem has the secrets that the spec asks for, or there is none. An error: the spec's can't be.
  Result<bool> AreSameSecrets(const std::string& id, const v1::SubsystemSpec& spec);
  // As DiskKeys'.
  Status RewrapKeys();
  // Says who this host is, in a subsystem's spec or a request to discover, unless that is said already.
  template <typename Message>
  Status SetHost(Message& message) const {
    if (!message.host_id().empty()) return Ok{};
    CLEAT_ASSIGN(const auto host, ThisHost());
    message.set_host_nqn(host.nqn);
    message.set_host_id(nvme::fabrics::TextOfUuid(host.id));
    return Ok{};
  }

  // ---- For disks
  // Whether the subsystem that the disk's spec names is there.
  Status CheckSubsystemOf(const std::string& disk_id, const v1::DiskSpec& spec) CLEAT_REQUIRES(holds_state);
  // A stored disk's: an error when the subsystem that its spec names is not there.
  Status Fill(const DiskRow& row) CLEAT_REQUIRES(holds_state);
  // Puts a disk into the subsystem that its spec names, or takes it out.
  void Join(const DiskRow& row) CLEAT_REQUIRES(holds_state);
  void Leave(const DiskRow& row) CLEAT_REQUIRES(holds_state);

 private:
  // What a request says, complete, with its secrets apart.
  struct Asked {
    std::optional<v1::SubsystemSpec> spec;
    AskedSecrets secrets;
    std::optional<Labels> labels;
  };
  Result<Asked> AskedBy(const std::string& id, const v1::Subsystem& subsystem) const;
  // Only what the mask names.
  Result<Asked> AskedBy(const std::string& id, const v1::UpdateSubsystemRequest& request) const;
  // The subsystem that is there already, as it is asked for; nullptr when there is none.
  Result<const SubsystemEntry*> CheckExisting(const std::string& id, const Asked& asked) const
      CLEAT_REQUIRES(holds_state);
  // Whether there is room for another one, of that NQN.
  Status CheckRoom(const std::string& name, const std::string& nqn) const CLEAT_REQUIRES(holds_state);
  // The row as Update makes it; an error when it may not.
  Result<SubsystemRow> RowAfter(const SubsystemEntry& entry, const Asked& asked, std::string_view etag,
                                const NameSet& gone) const CLEAT_REQUIRES(holds_state);
  Status CheckChange(const SubsystemEntry& entry, const v1::SubsystemSpec& spec, const NameSet& gone) const
      CLEAT_REQUIRES(holds_state);
  // Whether no engine has been told where the subsystem is, or is to be told. `disks`: ids of the subsystem's.
  Status CheckDetached(const std::string& name, const NameSet& disks, const NameSet& gone) const
      CLEAT_REQUIRES(holds_state);
  // Made of which host this is; drawn, where that is not known.
  Result<nvme::fabrics::HostIdentity> ThisHost() const;
  // Draws a family for a row that needs one. `host_before`: the host identifier that the present one goes with.
  static Status SetFamily(SubsystemRow& row, std::string_view host_before);
  Status RewrapKeysOf(const std::string& id) CLEAT_REQUIRES(holds_state);

  StateCore& core_;
  const SpecKeys& keys_;
  const pool::Uid host_;
};

}  // namespace cleat::control
