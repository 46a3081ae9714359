// SPDX-License-Identifier: Apache-2.0
// What cleatd reads at its start, from a database that may hold anything. An input is one of
//   0, bytes   the database file as it is
//   1, rows    a database of schema 1 with these rows in it, which is migrated
//   2, rows    one of the present schema, each row with the checksum that belongs to it
// A row is a u8 table, then its columns: texts and blobs with a u16 length, numbers as a byte.
// Loading either works or says what is wrong, and what was loaded can be listed, watched and deleted.
#include <sqlite3.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "control/state/disks/memfd_keeper.h"
#include "control/state/host_state.h"
#include "control/store/sqlite_row.h"
#include "control/store/store.h"
#include "tests/fuzz/input.h"

namespace cleat::control {
namespace {

constexpr uint32_t kRowsMax = 32;
constexpr const char* kTables[] = {"disks", "controllers", "attachments", "groups"};

// As the first version made it, for all time.
constexpr char kSchema1[] = R"(
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
  INSERT INTO revisions VALUES (1);
  PRAGMA user_version = 1;)";

class Database {
 public:
  explicit Database(const std::string& path) { CLEAT_CHECK(sqlite3_open(path.c_str(), &db_) == SQLITE_OK); }
  ~Database() { sqlite3_close(db_); }
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  void Execute(const char* sql) { sqlite3_exec(db_, sql, nullptr, nullptr, nullptr); }

  // The types of a table's columns: "TEXT", "BLOB", "INTEGER".
  std::vector<std::string> Columns(const std::string& table) {
    std::vector<std::string> types;
    sqlite3_stmt* statement = nullptr;
    const std::string sql = "PRAGMA table_info(" + table + ")";
    CLEAT_CHECK(sqlite3_prepare_v2(db_, sql.c_str(), -1, &statement, nullptr) == SQLITE_OK);
    while (sqlite3_step(statement) == SQLITE_ROW) {
      types.emplace_back(reinterpret_cast<const char*>(sqlite3_column_text(statement, 2)));
    }
    sqlite3_finalize(statement);
    return types;
  }

  void Insert(const std::string& table, const std::vector<SqlValue>& values) {
    std::string sql = "INSERT OR REPLACE INTO " + table + " VALUES (?";
    for (size_t i = 1; i < values.size(); ++i) sql += ", ?";
    sqlite3_stmt* statement = nullptr;
    CLEAT_CHECK(sqlite3_prepare_v2(db_, (sql + ")").c_str(), -1, &statement, nullptr) == SQLITE_OK);
    {
      SqlRun run(statement);
      for (size_t i = 0; i < values.size(); ++i) run.Bind(static_cast<int>(i) + 1, values[i]);
      run.Step();
    }
    sqlite3_finalize(statement);
  }

 private:
  sqlite3* db_ = nullptr;
};

// `columns`: their types, of each table.
using Schema = std::array<std::vector<std::string>, std::size(kTables)>;

class Bench {
 public:
  Bench() {
    spdlog::set_level(spdlog::level::off);
    // In memory where there is such a folder: a run writes and reads a database.
    const std::filesystem::path shm = "/dev/shm";
    std::string folder =
        (std::filesystem::exists(shm) ? shm : std::filesystem::temp_directory_path()) / "cleat-fuzz-XXXXXX";
    CLEAT_CHECK(mkdtemp(folder.data()) != nullptr);
    folder_ = folder;
    CLEAT_CHECK(Store::Open(folder_).ok());
    std::filesystem::rename(folder_ + "/cleat.db", folder_ + "/present.db");
    Database(folder_ + "/schema1.db").Execute(kSchema1);
    for (size_t i = 0; i < std::size(kTables); ++i) {
      present_[i] = Database(folder_ + "/present.db").Columns(kTables[i]);
      schema1_[i] = Database(folder_ + "/schema1.db").Columns(kTables[i]);
      // Version 1 had no groups.
      CLEAT_CHECK(present_[i].size() > 1 && present_[i].size() > schema1_[i].size());
    }
  }
  ~Bench() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void Run(FuzzInput input) {
    for (const char* suffix : {"", "-wal", "-shm", "-journal"}) {
      std::error_code ignored;
      std::filesystem::remove(folder_ + "/cleat.db" + suffix, ignored);
    }
    const uint8_t kind = input.Byte() % 3;
    if (kind == 0) {
      const auto bytes = input.Rest();
      std::ofstream(folder_ + "/cleat.db", std::ios::binary)
          .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    } else {
      std::filesystem::copy_file(folder_ + (kind == 1 ? "/schema1.db" : "/present.db"),
                                 folder_ + "/cleat.db");
      InsertRows(input, kind == 1 ? schema1_ : present_, kind == 2);
    }
    Load();
  }

 private:
  void InsertRows(FuzzInput& input, const Schema& schema, bool sums) {
    Database db(folder_ + "/cleat.db");
    db.Execute("PRAGMA synchronous = OFF; BEGIN");
    for (uint32_t row = 0; row < kRowsMax && !input.empty(); ++row) {
      const size_t table = input.Byte() % std::size(kTables);
      if (schema[table].empty()) continue;
      std::vector<SqlValue> values;
      for (size_t i = 0; i + (sums ? 1 : 0) < schema[table].size(); ++i) {
        if (schema[table][i] == "INTEGER") {
          values.emplace_back(static_cast<uint64_t>(static_cast<int8_t>(input.Byte())));
          continue;
        }
        values.emplace_back(input.Text());
        if (schema[table][i] == "BLOB") values.back().kind = SqlValue::kBlob;
      }
      if (sums) values.emplace_back(RowSum(values));
      db.Insert(kTables[table], values);
    }
    db.Execute("COMMIT");
  }

  void Load() {
    auto store = Store::Open(folder_);
    if (!store.ok()) {
      CLEAT_CHECK(!store.error().message.empty());
      return;
    }
    MemfdKeeper memory;
    auto state = HostState::Load(**store, memory);
    if (!state.ok()) {
      CLEAT_CHECK(!state.error().message.empty());
      return;
    }
    Use(**state);
  }

  static void Use(HostState& state) {
    const auto watcher = state.Watch();
    const auto disks = state.disks().List({});
    const auto controllers = state.controllers().List({});
    const auto groups = state.groups().List({});
    const auto clusters = state.clusters().List({});
    CLEAT_CHECK(disks.ok() && controllers.ok() && groups.ok() && clusters.ok());
    for (const auto& controller : controllers->controllers()) {
      v1::ListAttachmentsRequest list;
      list.set_parent(controller.name());
      const auto attachments = state.attachments().List(list);
      if (!attachments.ok()) continue;
      for (const auto& attachment : attachments->attachments()) {
        v1::DetachDiskRequest detach;
        detach.set_name(attachment.name());
        (void)state.attachments().Detach(detach);
      }
      v1::DeleteControllerRequest gone;
      gone.set_name(controller.name());
      (void)state.controllers().Delete(gone);
    }
    for (const auto& group : groups->groups()) {
      v1::DeleteGroupRequest gone;
      gone.set_name(group.name());
      (void)state.groups().Delete(gone);
    }
    for (const auto& disk : disks->disks()) {
      v1::DeleteDiskRequest gone;
      gone.set_name(disk.name());
      (void)state.disks().Delete(gone);
    }
    for (const auto& cluster : clusters->clusters()) {
      v1::DeleteClusterRequest gone;
      gone.set_name(cluster.name());
      (void)state.clusters().Delete(gone);
    }
  }

  std::string folder_;
  Schema schema1_;
  Schema present_;
};

}  // namespace
}  // namespace cleat::control

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static cleat::control::Bench bench;
  bench.Run({data, size});
  return 0;
}
