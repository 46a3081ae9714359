// SPDX-License-Identifier: Apache-2.0
#include "control/store/stored_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "control/model/names.h"

namespace cleat::control {
namespace {

// "FIRST+COUNT,FIRST+COUNT".
std::string JoinRuns(const pool::ExtentRuns& runs) {
  std::string text;
  for (const pool::ExtentRun& run : runs)
    text += fmt::format("{}{}+{}", text.empty() ? "" : ",", run.first, run.count);
  return text;
}

// False: that is no such text.
bool SplitRuns(std::string_view text, pool::ExtentRuns& runs) {
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    if (!runs.empty() && *at++ != ',') return false;
    pool::ExtentRun& run = runs.emplace_back();
    const auto first = std::from_chars(at, end, run.first);
    if (first.ec != std::errc() || first.ptr == end || *first.ptr != '+') return false;
    const auto count = std::from_chars(first.ptr + 1, end, run.count);
    if (count.ec != std::errc()) return false;
    at = count.ptr;
  }
  return true;
}

// A map of their own, in hexadecimal digits.
std::string JoinUnknown(const PoolRow& row) {
  if (row.unknown.empty()) return {};
  const auto bytes = pool::Encode(pool::Map{.pool = row.uid, .generation = 1, .disks = row.unknown});
  CLEAT_CHECK(bytes.ok());  // they came from a map that was read, which has limits
  return fmt::format("{:02x}", fmt::join(*bytes, ""));
}

bool SplitUnknown(const std::string& text, PoolRow& row) {
  if (text.empty()) return true;
  std::vector<uint8_t> bytes(text.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const char* const digits = text.data() + 2 * i;
    if (std::from_chars(digits, digits + 2, bytes[i], 16).ptr != digits + 2) return false;
  }
  const pool::Label label{.pool = row.uid,
                          .host = {},
                          .extent_bytes = row.spec.extent_bytes(),
                          .extents = row.extents,
                          .name = row.id};
  auto map = pool::DecodeMap(bytes, label);
  if (map.ok()) row.unknown = std::move(map->disks);
  return map.ok();
}

}  // namespace

// ---- Writing ----

std::vector<SqlValue> ValuesOf(const DiskRow& row) {
  return {row.id,
          row.spec,
          row.revision,
          uint64_t{row.deleting},
          uint64_t{row.reached_engine},
          JoinIds(row.held_by),
          JoinLabels(row.labels),
          row.intent_revision,
          row.limits_revision,
          row.image_bytes};
}

std::vector<SqlValue> ValuesOf(const DeletedDiskRow& row) {
  std::vector<SqlValue> values = ValuesOf(row.disk);
  values.emplace_back(row.delete_time_s);
  values.emplace_back(row.purge_time_s);
  return values;
}

std::vector<SqlValue> ValuesOf(const GroupRow& row) {
  return {row.id,
          row.spec,
          row.revision,
          uint64_t{row.slot},
          JoinLabels(row.labels),
          row.intent_revision,
          row.limits_revision};
}

std::vector<SqlValue> ValuesOf(const ClusterRow& row) {
  return {row.id, row.spec, row.revision, JoinLabels(row.labels), row.intent_revision, row.spec_revision};
}

std::vector<SqlValue> ValuesOf(const SubsystemRow& row) {
  return {
      row.id, row.spec, row.revision, JoinLabels(row.labels), row.intent_revision, row.reservation_family};
}

std::vector<SqlValue> ValuesOf(const PoolRow& row) {
  return {row.id,
          row.spec,
          row.revision,
          JoinLabels(row.labels),
          row.intent_revision,
          pool::TextOf(row.uid),
          uint64_t{row.extents},
          uint64_t{row.labelled},
          JoinRuns(row.to_erase),
          JoinUnknown(row)};
}

std::vector<SqlValue> ValuesOf(const ControllerRow& row) {
  return {row.id,
          row.spec,
          row.revision,
          uint64_t{row.deleting},
          row.engine,
          JoinLabels(row.labels),
          row.intent_revision,
          row.last_disk.value(),
          row.last_disk_name,
          row.hosts_revision};
}

std::vector<SqlValue> ValuesOf(const AttachmentRow& row) {
  return {row.controller, row.id, row.spec, row.revision, uint64_t{row.deleting}, row.intent_revision};
}

std::vector<SqlValue> ValuesOf(const UpgradeRow& row) {
  return {row.engine, row.status};
}

std::vector<SqlValue> ValuesOf(const LostRevisions& row) {
  return {row.first, row.until};
}

// ---- Reading ----

bool ReadRow(SqlRun& run, DiskRow& row) {
  row.id = run.Bytes(0);
  row.revision = run.Number(2);
  row.deleting = run.Number(3) != 0;
  row.reached_engine = run.Number(4) != 0;
  row.held_by = SplitIds(run.Bytes(5));
  row.labels = SplitLabels(run.Bytes(6));
  row.intent_revision = run.Number(7);
  row.limits_revision = run.Number(8);
  row.image_bytes = run.Number(9);
  return row.spec.ParseFromString(run.Bytes(1)) && IsId(row.id);
}

bool ReadRow(SqlRun& run, DeletedDiskRow& row) {
  row.delete_time_s = run.Number(10);
  row.purge_time_s = run.Number(11);
  return ReadRow(run, row.disk);  // the columns before are those of a disk
}

bool ReadRow(SqlRun& run, GroupRow& row) {
  row.id = run.Bytes(0);
  row.revision = run.Number(2);
  row.slot = static_cast<uint32_t>(run.Number(3));
  row.labels = SplitLabels(run.Bytes(4));
  row.intent_revision = run.Number(5);
  row.limits_revision = run.Number(6);
  return row.spec.ParseFromString(run.Bytes(1)) && IsId(row.id) && run.Number(3) < kGroupsMax;
}

bool ReadRow(SqlRun& run, ClusterRow& row) {
  row.id = run.Bytes(0);
  row.revision = run.Number(2);
  row.labels = SplitLabels(run.Bytes(3));
  row.intent_revision = run.Number(4);
  row.spec_revision = run.Number(5);
  return row.spec.ParseFromString(run.Bytes(1)) && IsId(row.id);
}

bool ReadRow(SqlRun& run, SubsystemRow& row) {
  row.id = run.Bytes(0);
  row.revision = run.Number(2);
  row.labels = SplitLabels(run.Bytes(3));
  row.intent_revision = run.Number(4);
  row.reservation_family = run.Number(5);
  return row.spec.ParseFromString(run.Bytes(1)) && IsId(row.id);
}

bool ReadRow(SqlRun& run, PoolRow& row) {
  row.id = run.Bytes(0);
  row.revision = run.Number(2);
  row.labels = SplitLabels(run.Bytes(3));
  row.intent_revision = run.Number(4);
  const auto uid = pool::UidOf(run.Bytes(5));
  row.uid = uid.value_or(pool::Uid());
  row.extents = static_cast<uint32_t>(std::min<uint64_t>(run.Number(6), pool::kExtentsMax));
  row.labelled = run.Number(7) != 0;
  const bool runs = SplitRuns(run.Bytes(8), row.to_erase) && pool::AreWithin(row.to_erase, row.extents);
  return row.spec.ParseFromString(run.Bytes(1)) && IsId(row.id) && uid && runs && row.extents > 0 &&
         SplitUnknown(run.Bytes(9), row);
}

bool ReadRow(SqlRun& run, ControllerRow& row) {
  row.id = run.Bytes(0);
  row.revision = run.Number(2);
  row.deleting = run.Number(3) != 0;
  row.engine = run.Bytes(4);
  row.labels = SplitLabels(run.Bytes(5));
  row.intent_revision = run.Number(6);
  row.last_disk = DiskIdentity(run.Number(7));
  row.last_disk_name = run.Bytes(8);
  row.hosts_revision = run.Number(9);
  return row.spec.ParseFromString(run.Bytes(1)) && IsId(row.id);
}

bool ReadRow(SqlRun& run, AttachmentRow& row) {
  row.controller = run.Bytes(0);
  row.id = run.Bytes(1);
  row.revision = run.Number(3);
  row.deleting = run.Number(4) != 0;
  row.intent_revision = run.Number(5);
  return row.spec.ParseFromString(run.Bytes(2)) && IsId(row.id);
}

bool ReadRow(SqlRun& run, UpgradeRow& row) {
  row.engine = run.Bytes(0);
  return row.status.ParseFromString(run.Bytes(1)) && IsId(row.engine);
}

bool ReadRow(SqlRun& run, LostRevisions& row) {
  row.first = run.Number(0);
  row.until = run.Number(1);
  return row.first < row.until;
}

// ---- For people ----

std::string Describe(const DiskRow& row) {
  return fmt::format("disk '{}'", row.id);
}
std::string Describe(const DeletedDiskRow& row) {
  return fmt::format("deleted disk '{}'", row.disk.id);
}
std::string Describe(const GroupRow& row) {
  return fmt::format("group '{}'", row.id);
}
std::string Describe(const ClusterRow& row) {
  return fmt::format("cluster '{}'", row.id);
}
std::string Describe(const SubsystemRow& row) {
  return fmt::format("subsystem '{}'", row.id);
}
std::string Describe(const PoolRow& row) {
  return fmt::format("pool '{}'", row.id);
}
std::string Describe(const ControllerRow& row) {
  return fmt::format("controller '{}'", row.id);
}
std::string Describe(const AttachmentRow& row) {
  return fmt::format("attachment '{}' of controller '{}'", row.id, row.controller);
}
std::string Describe(const UpgradeRow& row) {
  return fmt::format("the upgrade of engine '{}'", row.engine);
}
std::string Describe(const LostRevisions& /*row*/) {
  return "lost revisions";
}

}  // namespace cleat::control
