// SPDX-License-Identifier: Apache-2.0
#include "control/store/migrations.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <cerrno>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/disk_identity.h"
#include "control/store/sqlite_row.h"
#include "control/validate/spec_rules.h"

namespace cleat::control {
namespace {

using Statement = std::unique_ptr<sqlite3_stmt, decltype(&sqlite3_finalize)>;

// `spec` holds the serialized message of cleat.v1. Columns beside it are what cleatd itself decides about the
// row.
constexpr char kCreateSchema1[] = R"(
  CREATE TABLE disks (
    id TEXT PRIMARY KEY, spec BLOB NOT NULL, revision INTEGER NOT NULL, deleting INTEGER NOT NULL,
    reached_engine INTEGER NOT NULL, kept_by TEXT NOT NULL) WITHOUT ROWID;
  CREATE TABLE controllers (
    id TEXT PRIMARY KEY, spec BLOB NOT NULL, revision INTEGER NOT NULL, deleting INTEGER NOT NULL,
    engine TEXT NOT NULL) WITHOUT ROWID;
  CREATE TABLE attachments (
    controller TEXT NOT NULL, id TEXT NOT NULL, spec BLOB NOT NULL, revision INTEGER NOT NULL,
    deleting INTEGER NOT NULL, PRIMARY KEY (controller, id)) WITHOUT ROWID;
  CREATE TABLE revisions (next INTEGER NOT NULL);
  INSERT INTO revisions VALUES (1);)";

constexpr char kAddColumns2[] = R"(
  ALTER TABLE disks ADD COLUMN labels TEXT NOT NULL DEFAULT '';
  ALTER TABLE disks ADD COLUMN intent_revision INTEGER NOT NULL DEFAULT 0;
  ALTER TABLE disks ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
  ALTER TABLE controllers ADD COLUMN labels TEXT NOT NULL DEFAULT '';
  ALTER TABLE controllers ADD COLUMN intent_revision INTEGER NOT NULL DEFAULT 0;
  ALTER TABLE controllers ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
  ALTER TABLE attachments ADD COLUMN intent_revision INTEGER NOT NULL DEFAULT 0;
  ALTER TABLE attachments ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;)";

// The last column of a row stays its checksum, so the table of disks is made anew.
constexpr char kGoTo3[] = R"(
  ALTER TABLE disks RENAME TO disks2;
  CREATE TABLE disks (
    id TEXT PRIMARY KEY, spec BLOB NOT NULL, revision INTEGER NOT NULL, deleting INTEGER NOT NULL,
    reached_engine INTEGER NOT NULL, kept_by TEXT NOT NULL, labels TEXT NOT NULL, intent_revision INTEGER NOT NULL,
    limits_revision INTEGER NOT NULL, sum INTEGER NOT NULL) WITHOUT ROWID;
  CREATE TABLE groups (
    id TEXT PRIMARY KEY, spec BLOB NOT NULL, revision INTEGER NOT NULL, slot INTEGER NOT NULL UNIQUE,
    labels TEXT NOT NULL, intent_revision INTEGER NOT NULL, limits_revision INTEGER NOT NULL,
    sum INTEGER NOT NULL) WITHOUT ROWID;)";

constexpr char kGoTo4[] = R"(
  CREATE TABLE clusters (
    id TEXT PRIMARY KEY, spec BLOB NOT NULL, revision INTEGER NOT NULL, labels TEXT NOT NULL,
    intent_revision INTEGER NOT NULL, spec_revision INTEGER NOT NULL, sum INTEGER NOT NULL) WITHOUT ROWID;)";

constexpr char kGoTo5[] = R"(
  CREATE TABLE upgrades (engine TEXT PRIMARY KEY, status BLOB NOT NULL, sum INTEGER NOT NULL) WITHOUT ROWID;)";

// As for 3.
constexpr char kGoTo6[] = R"(
  ALTER TABLE disks RENAME TO disks5;
  CREATE TABLE disks (
    id TEXT PRIMARY KEY, spec BLOB NOT NULL, revision INTEGER NOT NULL, deleting INTEGER NOT NULL,
    reached_engine INTEGER NOT NULL, kept_by TEXT NOT NULL, labels TEXT NOT NULL, intent_revision INTEGER NOT NULL,
    limits_revision INTEGER NOT NULL, image_bytes INTEGER NOT NULL, sum INTEGER NOT NULL) WITHOUT ROWID;)";

// `number` is drawn when the store is made, and says whose disks' identities are (base/disk_identity.h).
constexpr char kGoTo7[] = R"(
  CREATE TABLE host (number INTEGER NOT NULL);
  ALTER TABLE controllers RENAME TO controllers6;
  CREATE TABLE controllers (
    id TEXT PRIMARY KEY, spec BLOB NOT NULL, revision INTEGER NOT NULL, deleting INTEGER NOT NULL,
    engine TEXT NOT NULL, labels TEXT NOT NULL, intent_revision INTEGER NOT NULL, last_disk INTEGER NOT NULL,
    last_disk_name TEXT NOT NULL, sum INTEGER NOT NULL) WITHOUT ROWID;)";

// The columns of `disks`, by the revision that stays a disk's own: its id may be another one's by now.
constexpr char kGoTo8[] = R"(
  CREATE TABLE deleted_disks (
    id TEXT NOT NULL, spec BLOB NOT NULL, revision INTEGER PRIMARY KEY, deleting INTEGER NOT NULL,
    reached_engine INTEGER NOT NULL, kept_by TEXT NOT NULL, labels TEXT NOT NULL, intent_revision INTEGER NOT NULL,
    limits_revision INTEGER NOT NULL, image_bytes INTEGER NOT NULL, delete_time INTEGER NOT NULL,
    purge_time INTEGER NOT NULL, sum INTEGER NOT NULL);)";

// Of a store that was restored from a backup: LostRevisions. And of disks: those with an older revision than `paths_checked_from` were made
// before anybody looked where their paths lead (Rows::paths_checked_from).
constexpr char kGoTo9[] = R"(
  CREATE TABLE lost_revisions (first INTEGER NOT NULL, until INTEGER NOT NULL, sum INTEGER NOT NULL);
  ALTER TABLE revisions ADD COLUMN paths_checked_from INTEGER NOT NULL DEFAULT 0;
  UPDATE revisions SET paths_checked_from = next;)";

// `to_erase`: "FIRST+COUNT,...". `unknown`: as a map that lies on a drive (pool/layout.h), in hexadecimal digits; empty when there are none.
constexpr char kGoTo10[] = R"(
  CREATE TABLE pools (
    id TEXT PRIMARY KEY, spec BLOB NOT NULL, revision INTEGER NOT NULL, labels TEXT NOT NULL,
    intent_revision INTEGER NOT NULL, uid TEXT NOT NULL, extents INTEGER NOT NULL, labelled INTEGER NOT NULL,
    to_erase TEXT NOT NULL, unknown TEXT NOT NULL, sum INTEGER NOT NULL) WITHOUT ROWID;)";

constexpr char kGoTo11[] = R"(
  CREATE TABLE subsystems (
    id TEXT PRIMARY KEY, spec BLOB NOT NULL, revision INTEGER NOT NULL, labels TEXT NOT NULL,
    intent_revision INTEGER NOT NULL, sum INTEGER NOT NULL) WITHOUT ROWID;)";

// As for 3.
constexpr char kGoTo13[] = R"(
  ALTER TABLE subsystems RENAME TO subsystems12;
  CREATE TABLE subsystems (
    id TEXT PRIMARY KEY, spec BLOB NOT NULL, revision INTEGER NOT NULL, labels TEXT NOT NULL,
    intent_revision INTEGER NOT NULL, reservation_family INTEGER NOT NULL, sum INTEGER NOT NULL) WITHOUT ROWID;)";

// As for 3.
constexpr char kGoTo14[] = R"(
  ALTER TABLE controllers RENAME TO controllers13;
  CREATE TABLE controllers (
    id TEXT PRIMARY KEY, spec BLOB NOT NULL, revision INTEGER NOT NULL, deleting INTEGER NOT NULL,
    engine TEXT NOT NULL, labels TEXT NOT NULL, intent_revision INTEGER NOT NULL, last_disk INTEGER NOT NULL,
    last_disk_name TEXT NOT NULL, hosts_revision INTEGER NOT NULL, sum INTEGER NOT NULL) WITHOUT ROWID;)";

class Migrator {
 public:
  Migrator(sqlite3* db, const std::string& path) : db_(db), path_(path) {}

  Status Execute(const char* sql) {
    if (sqlite3_exec(db_, sql, nullptr, nullptr, nullptr) == SQLITE_OK) return Ok{};
    return SqlError(db_, path_, sql);
  }

  // Reads every row of `select`, and puts what `values` makes of it in its place.
  template <typename Values>
  Status Rewrite(const char* select, const char* replace, Values values) {
    Statement reader = Prepare(select);
    if (reader == nullptr) return SqlError(db_, path_, select);
    std::vector<std::vector<SqlValue>> rows;
    SqlRun run(reader.get());
    int code = SQLITE_OK;
    while ((code = run.Step()) == SQLITE_ROW) {
      CLEAT_ASSIGN(auto row, values(run));
      rows.push_back(std::move(row));
    }
    if (code != SQLITE_DONE) return SqlError(db_, path_, select);
    Statement writer = Prepare(replace);
    if (writer == nullptr) return SqlError(db_, path_, replace);
    for (const std::vector<SqlValue>& row : rows) {
      SqlRun written(writer.get());
      for (size_t i = 0; i < row.size(); ++i) {
        CLEAT_CHECK(written.Bind(static_cast<int>(i) + 1, row[i]) == SQLITE_OK);
      }
      if (written.Step() != SQLITE_DONE) return SqlError(db_, path_, replace);
    }
    return Ok{};
  }

  Error Damaged(const std::string& row) {
    return Error(ErrorCode::kDataLoss, fmt::format("store '{}': the spec of {} is damaged", path_, row));
  }

 private:
  Statement Prepare(const char* sql) {
    sqlite3_stmt* statement = nullptr;
    sqlite3_prepare_v2(db_, sql, -1, &statement, nullptr);
    return {statement, &sqlite3_finalize};
  }

  sqlite3* db_;
  const std::string& path_;
};

Status CreateSchema1(Migrator& migrator) {
  return migrator.Execute(kCreateSchema1);
}

// Version 2: labels, etags, a checksum a row; disks have a world wide name, attachments a target that is said aloud.
Status GoTo2(Migrator& m) {
  CLEAT_TRY(m.Execute(kAddColumns2));
  auto status = m.Rewrite("SELECT id, spec, revision, deleting, reached_engine, kept_by FROM disks",
                          "REPLACE INTO disks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                          [&](SqlRun& run) -> Result<std::vector<SqlValue>> {
                            const std::string id = run.Bytes(0);
                            v1::DiskSpec spec;
                            if (!spec.ParseFromString(run.Bytes(1))) return m.Damaged("disk '" + id + "'");
                            if (spec.wwn().empty()) spec.set_wwn(DefaultWwn(id));
                            std::vector<SqlValue> row = {
                                id,           spec,          run.Number(2), run.Number(3), run.Number(4),
                                run.Bytes(5), std::string(), run.Number(2)};
                            row.emplace_back(RowSum(row));
                            return row;
                          });
  if (!status.ok()) return status;
  status = m.Rewrite("SELECT id, spec, revision, deleting, engine FROM controllers",
                     "REPLACE INTO controllers VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                     [&](SqlRun& run) -> Result<std::vector<SqlValue>> {
                       const std::string id = run.Bytes(0);
                       v1::ControllerSpec spec;
                       if (!spec.ParseFromString(run.Bytes(1))) return m.Damaged("controller '" + id + "'");
                       std::vector<SqlValue> row = {id,           spec,          run.Number(2), run.Number(3),
                                                    run.Bytes(4), std::string(), run.Number(2)};
                       row.emplace_back(RowSum(row));
                       return row;
                     });
  if (!status.ok()) return status;
  return m.Rewrite("SELECT controller, id, spec, revision, deleting FROM attachments",
                   "REPLACE INTO attachments VALUES (?, ?, ?, ?, ?, ?, ?)",
                   [&](SqlRun& run) -> Result<std::vector<SqlValue>> {
                     const std::string controller = run.Bytes(0);
                     const std::string id = run.Bytes(1);
                     v1::AttachmentSpec spec;
                     if (!spec.ParseFromString(run.Bytes(2))) {
                       return m.Damaged("attachment '" + id + "' of controller '" + controller + "'");
                     }
                     spec.set_target(spec.target());
                     std::vector<SqlValue> row = {controller,    id,           spec, run.Number(3),
                                                  run.Number(4), run.Number(3)};
                     row.emplace_back(RowSum(row));
                     return row;
                   });
}

// Rows get a column of zeroes before their checksum: `select` is of the `columns` that they had, and the checksum. A row is
// only taken over when that is right. `kind`: what errors call it.
Status AddColumn(Migrator& m, const char* kind, const char* select, int columns, const char* insert) {
  return m.Rewrite(select, insert, [&m, kind, columns](SqlRun& run) -> Result<std::vector<SqlValue>> {
    std::vector<SqlValue> row = run.Values(columns);
    if (RowSum(row) != run.Number(columns)) return m.Damaged(fmt::format("{} '{}'", kind, run.Bytes(0)));
    row[1].kind = SqlValue::kBlob;
    row.emplace_back(uint64_t{0});
    row.emplace_back(RowSum(row));
    return row;
  });
}

// Version 3: groups, and disks' limits.
Status GoTo3(Migrator& m) {
  CLEAT_TRY(m.Execute(kGoTo3));
  CLEAT_TRY(AddColumn(
      m, "disk",
      "SELECT id, spec, revision, deleting, reached_engine, kept_by, labels, intent_revision, sum FROM "
      "disks2",
      8, "INSERT INTO disks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"));
  return m.Execute("DROP TABLE disks2");
}

// Version 4: clusters.
Status GoTo4(Migrator& m) {
  return m.Execute(kGoTo4);
}

// Version 5: upgrades of engines.
Status GoTo5(Migrator& m) {
  return m.Execute(kGoTo5);
}

// Version 6: what the images of disks that have become larger had before.
Status GoTo6(Migrator& m) {
  CLEAT_TRY(m.Execute(kGoTo6));
  CLEAT_TRY(AddColumn(m, "disk",
                      "SELECT id, spec, revision, deleting, reached_engine, kept_by, labels, "
                      "intent_revision, limits_revision, sum FROM disks5",
                      9, "INSERT INTO disks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"));
  return m.Execute("DROP TABLE disks5");
}

// Version 7: which disk a blk controller served last. Of one that has none now it is not known: none is its last one, so that its guest
// has to show that it has forgotten whatever it had.
Status GoTo7(Migrator& m) {
  CLEAT_TRY(m.Execute(kGoTo7));
  uint64_t drawn = 0;
  if (getrandom(&drawn, sizeof(drawn), 0) != sizeof(drawn))
    return ErrnoError(errno, "drawing a number for the store");
  const uint64_t number = 1 + drawn % DiskIdentity::kStoreMax;
  CLEAT_TRY(m.Execute(fmt::format("INSERT INTO host VALUES ({})", number).c_str()));
  auto status = m.Rewrite(
      "SELECT id, spec, revision, deleting, engine, labels, intent_revision, sum, (SELECT count(*) FROM "
      "attachments "
      "WHERE controller = controllers6.id) FROM controllers6",
      "INSERT INTO controllers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
      [&m, number](SqlRun& run) -> Result<std::vector<SqlValue>> {
        constexpr int kColumns = 7;
        const std::string name = "controller '" + run.Bytes(0) + "'";
        v1::ControllerSpec spec;
        std::vector<SqlValue> row = run.Values(kColumns);
        if (RowSum(row) != run.Number(kColumns) || !spec.ParseFromString(run.Bytes(1)))
          return m.Damaged(name);
        row[1].kind = SqlValue::kBlob;
        const bool unknown = spec.type() == v1::CONTROLLER_TYPE_BLK && run.Number(kColumns + 1) == 0;
        row.emplace_back(unknown ? DiskIdentity::SomeOf(number).value() : uint64_t{0});
        row.emplace_back(std::string());
        row.emplace_back(RowSum(row));
        return row;
      });
  if (!status.ok()) return status;
  return m.Execute("DROP TABLE controllers6");
}

// Version 8: deleted disks that are kept.
Status GoTo8(Migrator& m) {
  return m.Execute(kGoTo8);
}

// Version 9: revisions that were lost when the store was restored, and the first of a disk whose path was checked.
Status GoTo9(Migrator& m) {
  return m.Execute(kGoTo9);
}

// Version 10: pools.
Status GoTo10(Migrator& m) {
  return m.Execute(kGoTo10);
}

// Version 11: NVMe-oF subsystems.
Status GoTo11(Migrator& m) {
  return m.Execute(kGoTo11);
}

// Version 12: subsystems have secrets. No row changes. A cleatd of before would read specs with secrets, have engines connect without
// them, and not wrap them anew with another key-encryption key; so it has to refuse the store.
Status GoTo12(Migrator&) {
  return Ok{};
}

// Version 13: who this host is in reservations of a subsystem's namespaces. Nobody has any before.
Status GoTo13(Migrator& m) {
  CLEAT_TRY(m.Execute(kGoTo13));
  CLEAT_TRY(AddColumn(m, "subsystem",
                      "SELECT id, spec, revision, labels, intent_revision, sum FROM subsystems12", 5,
                      "INSERT INTO subsystems VALUES (?, ?, ?, ?, ?, ?, ?)"));
  return m.Execute("DROP TABLE subsystems12");
}

// Version 14: controllers may be exports, and their hosts have a revision. A cleatd of before would take an export for a virtio-blk device
// without a socket; so it has to refuse the store.
Status GoTo14(Migrator& m) {
  CLEAT_TRY(m.Execute(kGoTo14));
  CLEAT_TRY(AddColumn(m, "controller",
                      "SELECT id, spec, revision, deleting, engine, labels, intent_revision, last_disk, "
                      "last_disk_name, sum FROM controllers13",
                      9, "INSERT INTO controllers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"));
  return m.Execute("DROP TABLE controllers13");
}

// Version 15: hosts of exports have secrets. No row changes. A cleatd of before would read specs with secrets, have engines let the hosts in
// without, and not wrap them anew with another key-encryption key; so it has to refuse the store.
Status GoTo15(Migrator&) {
  return Ok{};
}

struct Step {
  uint64_t to;
  Status (*run)(Migrator&);
};
constexpr Step kSteps[] = {{1, CreateSchema1}, {2, GoTo2},   {3, GoTo3},   {4, GoTo4},   {5, GoTo5},
                           {6, GoTo6},         {7, GoTo7},   {8, GoTo8},   {9, GoTo9},   {10, GoTo10},
                           {11, GoTo11},       {12, GoTo12}, {13, GoTo13}, {14, GoTo14}, {15, GoTo15}};
static_assert(std::size(kSteps) == kSchemaVersion);

Status Take(Migrator& migrator, const Step& step) {
  CLEAT_TRY(migrator.Execute("BEGIN IMMEDIATE"));
  Status status = step.run(migrator);
  if (status.ok()) status = migrator.Execute(fmt::format("PRAGMA user_version = {}", step.to).c_str());
  if (status.ok()) status = migrator.Execute("COMMIT");
  if (!status.ok()) (void)migrator.Execute("ROLLBACK");
  return status;
}

}  // namespace

Status MigrateSchema(sqlite3* db, uint64_t from, const std::string& path) {
  Migrator migrator(db, path);
  for (const Step& step : kSteps) {
    if (step.to <= from) continue;
    CLEAT_TRY(Take(migrator, step));
  }
  return Ok{};
}

}  // namespace cleat::control
