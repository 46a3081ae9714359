// SPDX-License-Identifier: Apache-2.0
#include "control/state/found/found_disk.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "control/model/names.h"
#include "control/validate/backends.h"
#include "control/validate/spec_rules.h"

namespace cleat::control {
namespace {

// A field that this version does not know may say how the disk's bytes are to be read.
bool HasUnknownFields(const v1::DiskSpec& spec) {
  v1::DiskSpec known = spec;
  known.DiscardUnknownFields();
  return known.ByteSizeLong() != spec.ByteSizeLong();
}

// Why a disk of that spec, which is complete but for its extents, does not fit what the map gives it; empty: it does.
std::string WhyNotIn(const v1::DiskSpec& spec, const pool::MapDisk& disk, const pool::Label& label) {
  if (PoolOf(spec) != PoolName(label.name)) return "its description is of a disk that is not in this pool";
  const uint64_t bytes = pool::CountOf(disk.extents) * label.extent_bytes;
  if (disk.extents.empty()) return "it has no extents";
  if (spec.size_bytes() > bytes)
    return fmt::format("its size is {} bytes, and its extents have {}", spec.size_bytes(), bytes);
  if (!spec.has_encryption()) return {};
  return "it is encrypted, and its key was in the lost store alone: only a backup of that brings it back, "
         "which is to be "
         "restored before the pool is made from its drive (cleatctl store restore)";
}

}  // namespace

std::string ProblemText(const std::string& message) {
  std::string text = message.substr(0, kProblemBytesMax);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

FoundDisk ReadFoundDisk(const pool::MapDisk& disk, const pool::Label& label) {
  FoundDisk found;
  v1::Disk described;
  if (!described.ParseFromString(disk.description)) {
    found.problem = "its description can't be read";
    return found;
  }
  const auto id = ParseDiskName(described.name());
  if (!id.ok()) {
    found.problem = "its description has no name of a disk";
    return found;
  }
  found.id = *id;
  if (!described.has_spec()) {
    found.problem = "the map says nothing of it but its name: the rest was too long";
    return found;
  }
  if (HasUnknownFields(described.spec())) {
    found.problem = "it is described by a newer cleatd: upgrade this one";
    return found;
  }
  auto spec = CompleteDiskSpec(found.id, AsDeclared(std::move(*described.mutable_spec())));
  if (!spec.ok()) {
    found.problem = ProblemText(spec.error().message);
    return found;
  }
  found.problem = WhyNotIn(*spec, disk, label);
  if (PoolOf(*spec).empty()) return found;
  SetExtents(disk.extents, *spec);
  found.spec = *std::move(spec);
  return found;
}

}  // namespace cleat::control
