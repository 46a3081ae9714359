// SPDX-License-Identifier: Apache-2.0
// The durable intent: one SQLite file (WAL, synchronous=FULL), one table a kind of resource. A call that
// returned OK is on disk: it survives kill -9 and a power cut. Each call is one transaction.
//
// One process a file (held by a lock beside it). One thread at a time: HostState's mutex sees to that.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "control/model.h"

namespace cleat::control {

class Store {
 public:
  // Opens or makes `folder`/cleat.db. kFailedPrecondition when another process has it, or it is of a newer
  // version.
  static Result<std::unique_ptr<Store>> Open(const std::string& folder);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Everything; kDataLoss when a row can't be read back.
  Result<Rows> Load();

  // Inserts or replaces.
  Status Put(const DiskRow& row);
  Status Put(const ControllerRow& row);
  Status Put(const AttachmentRow& row);
  // OK too when there is no such row.
  Status EraseDisk(const std::string& id);
  Status EraseController(const std::string& id);
  Status EraseAttachment(const std::string& controller, const std::string& id);

  // The first of `count` revisions that no process has handed out before and none will hand out again.
  Result<uint64_t> ReserveRevisions(uint64_t count);

 private:
  class Statement;
  struct Value;

  Store(UniqueFd lock, sqlite3* db, std::string path);
  Status Migrate();
  Status Execute(const char* sql);
  // Runs a prepared statement that gives no rows.
  Status Run(const char* sql, std::initializer_list<Value> values);
  Result<Statement> Prepare(const char* sql);
  Error Failed(const char* sql) const;
  Status LoadDisks(std::vector<DiskRow>& rows);
  Status LoadControllers(std::vector<ControllerRow>& rows);
  Status LoadAttachments(std::vector<AttachmentRow>& rows);

  UniqueFd lock_;
  sqlite3* db_;
  std::string path_;
  std::vector<std::pair<const char*, sqlite3_stmt*>> prepared_;  // by the address of their text
};

}  // namespace cleat::control
