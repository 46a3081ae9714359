// SPDX-License-Identifier: Apache-2.0
// Resources as tables for people, or as JSON for programs.
#pragma once

#include <google/protobuf/message.h>

#include <string>

#include "cleat/v1/cleat.pb.h"
#include "ctl/client.h"
#include "ctl/table.h"

namespace cleat::ctl {

Table TableOf(const google::protobuf::RepeatedPtrField<v1::Disk>& disks);
Table TableOf(const google::protobuf::RepeatedPtrField<v1::Controller>& controllers);
Table TableOf(const google::protobuf::RepeatedPtrField<v1::Attachment>& attachments);
Table TableOf(const google::protobuf::RepeatedPtrField<v1::Engine>& engines);

// "READY" of DISK_STATE_READY
std::string StateOf(const v1::Disk& disk);
std::string StateOf(const v1::Controller& controller);
std::string StateOf(const v1::Attachment& attachment);
std::string StateOf(const v1::Engine& engine);

// Field names as in the .proto; every field is there, also those with default values.
std::string ToJson(const google::protobuf::Message& message, bool pretty);

// One resource, after it was made or asked for.
template <typename Resource>
std::string Show(const Globals& globals, const Resource& resource, bool details) {
  if (globals.json) return ToJson(resource, true);
  google::protobuf::RepeatedPtrField<Resource> list;
  *list.Add() = resource;
  return details ? TableOf(list).Details() : TableOf(list).Rows();
}

// A line of `watch`.
std::string Show(const Globals& globals, const v1::WatchResponse& event);

}  // namespace cleat::ctl
