// SPDX-License-Identifier: Apache-2.0
// What cleatd reads at its start, from a database that may hold anything. An input is one of
//   0, bytes   the database file as it is
//   1, rows    a database of the present schema with these rows in it, each: u8 table, then its columns
//              (texts and blobs with a u16 length, numbers as a byte)
// Loading either works or says what is wrong, and what was loaded can be listed, watched and deleted.
#include <sqlite3.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "base/check.h"
#include "base/log.h"
#include "control/host_state.h"
#include "control/memory_keeper.h"
#include "control/store.h"
#include "tests/fuzz/input.h"

namespace cleat::control {
namespace {

constexpr uint32_t kRowsMax = 32;

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
    std::filesystem::rename(folder_ + "/cleat.db", folder_ + "/empty.db");
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
    if (input.Byte() == 0) {
      const auto bytes = input.Rest();
      std::ofstream(folder_ + "/cleat.db", std::ios::binary)
          .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    } else {
      std::filesystem::copy_file(folder_ + "/empty.db", folder_ + "/cleat.db");
      InsertRows(input);
    }
    Load();
  }

 private:
  // The columns' types by table: text, blob or number.
  static constexpr struct {
    const char* sql;
    const char* columns;
  } kTables[] = {{"INSERT OR REPLACE INTO disks VALUES (?, ?, ?, ?, ?, ?)", "tbnnnt"},
                 {"INSERT OR REPLACE INTO controllers VALUES (?, ?, ?, ?, ?)", "tbnnt"},
                 {"INSERT OR REPLACE INTO attachments VALUES (?, ?, ?, ?, ?)", "ttbnn"}};

  void InsertRows(FuzzInput& input) {
    sqlite3* db = nullptr;
    CLEAT_CHECK(sqlite3_open((folder_ + "/cleat.db").c_str(), &db) == SQLITE_OK);
    sqlite3_exec(db, "PRAGMA synchronous = OFF; BEGIN", nullptr, nullptr, nullptr);
    for (uint32_t row = 0; row < kRowsMax && !input.empty(); ++row) {
      const auto& table = kTables[input.Byte() % std::size(kTables)];
      sqlite3_stmt* statement = nullptr;
      if (sqlite3_prepare_v2(db, table.sql, -1, &statement, nullptr) != SQLITE_OK) break;  // another schema
      int column = 0;
      for (const char* type = table.columns; *type != '\0'; ++type) {
        ++column;
        if (*type == 'n') {
          sqlite3_bind_int64(statement, column, static_cast<int8_t>(input.Byte()));
          continue;
        }
        const std::string bytes = input.Text();
        const int size = static_cast<int>(bytes.size());
        if (*type == 't') sqlite3_bind_text(statement, column, bytes.data(), size, SQLITE_TRANSIENT);
        if (*type == 'b') sqlite3_bind_blob(statement, column, bytes.data(), size, SQLITE_TRANSIENT);
      }
      sqlite3_step(statement);
      sqlite3_finalize(statement);
    }
    sqlite3_exec(db, "COMMIT", nullptr, nullptr, nullptr);
    sqlite3_close(db);
  }

  void Load() {
    auto store = Store::Open(folder_);
    if (!store.ok()) {
      CLEAT_CHECK(!store.error().message.empty());
      return;
    }
    MemoryKeeper memory;
    auto state = HostState::Load(**store, memory);
    if (!state.ok()) {
      CLEAT_CHECK(!state.error().message.empty());
      return;
    }
    Use(**state);
  }

  static void Use(HostState& state) {
    const auto watcher = state.Watch();
    const auto disks = state.ListDisks({});
    const auto controllers = state.ListControllers({});
    CLEAT_CHECK(disks.ok() && controllers.ok());
    for (const auto& controller : controllers->controllers()) {
      v1::ListAttachmentsRequest list;
      list.set_parent(controller.name());
      const auto attachments = state.ListAttachments(list);
      if (!attachments.ok()) continue;
      for (const auto& attachment : attachments->attachments()) {
        v1::DetachDiskRequest detach;
        detach.set_name(attachment.name());
        (void)state.DetachDisk(detach);
      }
      v1::DeleteControllerRequest gone;
      gone.set_name(controller.name());
      (void)state.DeleteController(gone);
    }
    for (const auto& disk : disks->disks()) {
      v1::DeleteDiskRequest gone;
      gone.set_name(disk.name());
      (void)state.DeleteDisk(gone);
    }
  }

  std::string folder_;
};

}  // namespace
}  // namespace cleat::control

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static cleat::control::Bench bench;
  bench.Run({data, size});
  return 0;
}
