// SPDX-License-Identifier: Apache-2.0
// What a spec may say, whatever the state of the host: fills in the defaults and refuses what can't be. Pure
// functions. Errors are kInvalidArgument and name the resource, the field, the value and the range.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/model/model.h"
#include "control/validate/spec_secrets.h"

namespace cleat::control {

Result<v1::DiskSpec> CompleteDiskSpec(std::string_view id, v1::DiskSpec spec);
Result<v1::ClusterSpec> CompleteClusterSpec(std::string_view id, v1::ClusterSpec spec);
// Whether it can log in: with monitors alone there must be a key.
Status CheckClusterKey(std::string_view cluster, const v1::ClusterSpec& spec);
// Without who this host is, when the spec does not say. `spec` has no secrets any more.
Result<v1::SubsystemSpec> CompleteSubsystemSpec(std::string_view id, v1::SubsystemSpec spec);
// Whether its addresses go with its pre-shared key, which is the one that is asked for, or that is kept.
Status CheckPskTransport(std::string_view id, const v1::SubsystemSpec& spec);
// The same checks of the address, and of the host that asks. In place: a copy would have the plain secrets, too.
Status CompleteDiscovery(v1::DiscoverSubsystemsRequest* request);
// Whether the secrets of a subsystem's spec, or of an export's host, go together, once all are there. `path`: what is before their names,
// as "exported.hosts[0]."
Status CheckSecretsTogether(std::string_view resource, std::string_view path, bool has_dhchap_secret,
                            bool has_dhchap_ctrl_secret);
// Whether disks that are written to take part in reservations.
bool HasReservations(const v1::SubsystemSpec& spec);
// The spec, with who this host is in `present` where it does not say itself.
v1::SubsystemSpec WithHostOf(const v1::SubsystemSpec& present, v1::SubsystemSpec spec);
Result<v1::GroupSpec> CompleteGroupSpec(std::string_view id, v1::GroupSpec spec);
Result<v1::ControllerSpec> CompleteControllerSpec(std::string_view id, v1::ControllerSpec spec);
// The part of it that an NVMF controller alone has; its NQN may still be missing.
Status CompleteExportSpec(std::string_view controller, v1::ControllerSpec* spec);
// In the order of their NQNs, so that there is one way to say the same.
Status CompleteExportHosts(std::string_view controller, v1::ExportSpec* spec);
// Whether that address, of an export, a subsystem or a discovery service, is one over RDMA.
bool IsOverRdma(std::string_view address);
// Whether that address of a subsystem names the one of this host that its connections come from.
bool HasSource(std::string_view address);
// An address of the two exports at which an engine that stands by for one would listen beside an engine that serves the other, so that hosts of one
// reach the engine of the other. Empty: there is none. Both are complete.
std::string StandbyConflictOf(const v1::ExportSpec& one, const v1::ExportSpec& other);
// The spec of an export, with the NQN of `present` where it has none itself.
v1::ControllerSpec WithNqnOf(const v1::ControllerSpec& present, v1::ControllerSpec spec);
// How many disks a controller has at most.
uint32_t TargetsOf(v1::ControllerType type);
Result<v1::AttachmentSpec> CompleteAttachmentSpec(std::string_view name, v1::AttachmentSpec spec,
                                                  v1::ControllerType type);
// Whether that was asked for before. What a migration has made of its mode since is no difference: one that was INCOMING
// may be ACTIVE by now, and an ACTIVE one OUTGOING. `present` is complete.
bool IsSameAttachment(const v1::AttachmentSpec& present, v1::AttachmentSpec asked);
Result<Labels> CheckLabels(std::string_view resource,
                           const google::protobuf::Map<std::string, std::string>& labels);

// The limits of a disk or group. What is said without limiting anything (an empty message) is taken out, so that there is
// one way to say the same.
Status CompleteLimits(std::string_view resource, v1::Limits* limits);

// What callers say of it, but for the key: to be compared.
v1::DiskSpec AsDeclared(v1::DiskSpec spec);

// A locally assigned NAA name (SPC-5, 7.7.6.6.5) made from a disk's id alone: "0x3...".
std::string DefaultWwn(std::string_view disk_id);
// The number in a WWN that CompleteDiskSpec let pass.
uint64_t WwnNumber(std::string_view wwn);

// Whether two complete specs say the same.
bool SameSpec(const google::protobuf::Message& a, const google::protobuf::Message& b);

// kAlreadyExists: `name` is taken by something else; says what differs.
Error AlreadyExists(std::string_view name, const google::protobuf::Message& existing,
                    const google::protobuf::Message& wanted);
Error AlreadyExistsWithOtherLabels(std::string_view name);

// Absolute, of at most `bytes_max`, without a zero byte; returned without "//", "/./" and "/../".
Result<std::string> CompletePath(std::string_view resource, std::string_view field, std::string_view path,
                                 size_t bytes_max);

}  // namespace cleat::control
