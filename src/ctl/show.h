// SPDX-License-Identifier: Apache-2.0
// Resources as tables, and as lines of `watch`, for people. Pure functions.
#pragma once

#include <string>

#include "cleat/v1/cleat.pb.h"
#include "ctl/client.h"
#include "ctl/table.h"

namespace cleat::ctl {

template <typename Resource>
using Repeated = google::protobuf::RepeatedPtrField<Resource>;

// A column that lists leave out, and one resource's details have (Column).
inline constexpr bool kDetailsOnly = true;

Table TableOf(const Repeated<v1::Disk>& disks);
// The deleted disks among these, and a table of deleted disks.
Repeated<v1::Disk> DeletedOf(const Repeated<v1::Disk>& disks);
Table TableOfDeleted(const Repeated<v1::Disk>& disks);
Table TableOf(const Repeated<v1::Cluster>& clusters);
Table TableOf(const Repeated<v1::Subsystem>& subsystems);
Table TableOf(const Repeated<v1::Pool>& pools);
// Disks that a drive has.
Table TableOf(const Repeated<v1::ScannedDisk>& disks);
Table TableOf(const Repeated<v1::Group>& groups);
Table TableOf(const Repeated<v1::Controller>& controllers);
// NQNs; "nobody" of an export that lets nobody in, and nothing of a virtio device.
std::string HostsOf(const v1::ControllerSpec& spec);
// Nothing of a virtio device.
std::string DscpOf(const v1::ControllerSpec& spec);
// The exports among these, and a table of exports.
Repeated<v1::Controller> ExportsOf(const Repeated<v1::Controller>& controllers);
Table TableOfExports(const Repeated<v1::Controller>& controllers);
Table TableOfHosts(const v1::ExportSpec& spec);
Table TableOf(const Repeated<v1::Attachment>& attachments);
Table TableOf(const Repeated<v1::Engine>& engines);
Table TableOf(const v1::ApplyHostResponse& report, bool dry_run);

// "KEY=VALUE,...", in the keys' order.
std::string Labels(const google::protobuf::Map<std::string, std::string>& labels);

// A line of `watch`, however long.
std::string LineOf(const v1::WatchResponse& event);

// One resource, after it was made (a line) or asked for (all of it).
enum class Detail { kLine, kAll };
template <typename Resource>
ExitCode ShowOne(const Client& client, const Resource& resource, Detail detail) {
  client.Show(resource, [&] {
    Repeated<Resource> list;
    *list.Add() = resource;
    return detail == Detail::kAll ? TableOf(list).Details() : TableOf(list).Rows();
  });
  return kOk;
}

}  // namespace cleat::ctl
