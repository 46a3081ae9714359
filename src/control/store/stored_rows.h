// SPDX-License-Identifier: Apache-2.0
// How the rows of each kind lie in the store: the statements that write and read them, and what each column holds. The last
// column of a row is the checksum of those before it (RowSum). The tables themselves are made in migrations.cc; the store runs
// the statements. Plain functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "control/model/model.h"
#include "control/store/sqlite_row.h"

namespace cleat::control {

// For a Row, `kPut`, which inserts or replaces one; `kLoad`, which reads all; and `kColumns`, how many there are besides the
// checksum. The store knows prepared statements by the address of their text, which these have only one of.
template <typename Row>
struct StoredAs;

template <>
struct StoredAs<DiskRow> {
  static constexpr char kPut[] = "REPLACE INTO disks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
  static constexpr char kLoad[] =
      "SELECT id, spec, revision, deleting, reached_engine, kept_by, labels, intent_revision, "
      "limits_revision, image_bytes, sum FROM disks";
  static constexpr int kColumns = 10;
};
template <>
struct StoredAs<DeletedDiskRow> {
  static constexpr char kPut[] = "REPLACE INTO deleted_disks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
  static constexpr char kLoad[] =
      "SELECT id, spec, revision, deleting, reached_engine, kept_by, labels, intent_revision, "
      "limits_revision, image_bytes, delete_time, purge_time, sum FROM deleted_disks";
  static constexpr int kColumns = 12;
};
template <>
struct StoredAs<GroupRow> {
  static constexpr char kPut[] = "REPLACE INTO groups VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
  static constexpr char kLoad[] =
      "SELECT id, spec, revision, slot, labels, intent_revision, limits_revision, sum FROM groups";
  static constexpr int kColumns = 7;
};
template <>
struct StoredAs<ClusterRow> {
  static constexpr char kPut[] = "REPLACE INTO clusters VALUES (?, ?, ?, ?, ?, ?, ?)";
  static constexpr char kLoad[] =
      "SELECT id, spec, revision, labels, intent_revision, spec_revision, sum FROM clusters";
  static constexpr int kColumns = 6;
};
template <>
struct StoredAs<SubsystemRow> {
  static constexpr char kPut[] = "REPLACE INTO subsystems VALUES (?, ?, ?, ?, ?, ?, ?)";
  static constexpr char kLoad[] =
      "SELECT id, spec, revision, labels, intent_revision, reservation_family, sum FROM subsystems";
  static constexpr int kColumns = 6;
};
template <>
struct StoredAs<PoolRow> {
  static constexpr char kPut[] = "REPLACE INTO pools VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
  static constexpr char kLoad[] =
      "SELECT id, spec, revision, labels, intent_revision, uid, extents, labelled, to_erase, unknown, sum "
      "FROM pools";
  static constexpr int kColumns = 10;
};
template <>
struct StoredAs<ControllerRow> {
  static constexpr char kPut[] = "REPLACE INTO controllers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
  static constexpr char kLoad[] =
      "SELECT id, spec, revision, deleting, engine, labels, intent_revision, last_disk, last_disk_name, "
      "hosts_revision, sum FROM controllers";
  static constexpr int kColumns = 10;
};
template <>
struct StoredAs<AttachmentRow> {
  static constexpr char kPut[] = "REPLACE INTO attachments VALUES (?, ?, ?, ?, ?, ?, ?)";
  static constexpr char kLoad[] =
      "SELECT controller, id, spec, revision, deleting, intent_revision, sum FROM attachments";
  static constexpr int kColumns = 6;
};
template <>
struct StoredAs<UpgradeRow> {
  static constexpr char kPut[] = "REPLACE INTO upgrades VALUES (?, ?, ?)";
  static constexpr char kLoad[] = "SELECT engine, status, sum FROM upgrades";
  static constexpr int kColumns = 2;
};
template <>
struct StoredAs<LostRevisions> {
  static constexpr char kPut[] = "INSERT INTO lost_revisions VALUES (?, ?, ?)";
  static constexpr char kLoad[] = "SELECT first, until, sum FROM lost_revisions ORDER BY first";
  static constexpr int kColumns = 2;
};

// The columns of a row, all but the checksum.
std::vector<SqlValue> ValuesOf(const DiskRow& row);
std::vector<SqlValue> ValuesOf(const DeletedDiskRow& row);
std::vector<SqlValue> ValuesOf(const GroupRow& row);
std::vector<SqlValue> ValuesOf(const ClusterRow& row);
std::vector<SqlValue> ValuesOf(const SubsystemRow& row);
std::vector<SqlValue> ValuesOf(const PoolRow& row);
std::vector<SqlValue> ValuesOf(const ControllerRow& row);
std::vector<SqlValue> ValuesOf(const AttachmentRow& row);
std::vector<SqlValue> ValuesOf(const UpgradeRow& row);
std::vector<SqlValue> ValuesOf(const LostRevisions& row);

// The row that a run of kLoad has stepped to; the checksum is not looked at. False: a column can't be right, and `row` has what
// was read.
bool ReadRow(SqlRun& run, DiskRow& row);
bool ReadRow(SqlRun& run, DeletedDiskRow& row);
bool ReadRow(SqlRun& run, GroupRow& row);
bool ReadRow(SqlRun& run, ClusterRow& row);
bool ReadRow(SqlRun& run, SubsystemRow& row);
bool ReadRow(SqlRun& run, PoolRow& row);
bool ReadRow(SqlRun& run, ControllerRow& row);
bool ReadRow(SqlRun& run, AttachmentRow& row);
bool ReadRow(SqlRun& run, UpgradeRow& row);
bool ReadRow(SqlRun& run, LostRevisions& row);

// For people: "disk 'a'".
std::string Describe(const DiskRow& row);
std::string Describe(const DeletedDiskRow& row);
std::string Describe(const GroupRow& row);
std::string Describe(const ClusterRow& row);
std::string Describe(const SubsystemRow& row);
std::string Describe(const PoolRow& row);
std::string Describe(const ControllerRow& row);
std::string Describe(const AttachmentRow& row);
std::string Describe(const UpgradeRow& row);
std::string Describe(const LostRevisions& row);

}  // namespace cleat::control
