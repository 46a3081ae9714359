// SPDX-License-Identifier: Apache-2.0
#include "control/store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"

namespace cleat::control {
namespace {

constexpr int kSchemaVersion = 1;

// `spec` holds the serialized message of cleat.v1. Columns beside it are what cleatd itself decides about the
// row.
constexpr char kSchema[] = R"(
  BEGIN IMMEDIATE;
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
  PRAGMA user_version = 1;
  COMMIT;)";

constexpr char kPutDisk[] = "INSERT OR REPLACE INTO disks VALUES (?, ?, ?, ?, ?, ?)";
constexpr char kPutController[] = "INSERT OR REPLACE INTO controllers VALUES (?, ?, ?, ?, ?)";
constexpr char kPutAttachment[] = "INSERT OR REPLACE INTO attachments VALUES (?, ?, ?, ?, ?)";
constexpr char kEraseDisk[] = "DELETE FROM disks WHERE id = ?";
constexpr char kEraseController[] = "DELETE FROM controllers WHERE id = ?";
constexpr char kEraseAttachment[] = "DELETE FROM attachments WHERE controller = ? AND id = ?";
constexpr char kLoadDisks[] = "SELECT id, spec, revision, deleting, reached_engine, kept_by FROM disks";
constexpr char kLoadControllers[] = "SELECT id, spec, revision, deleting, engine FROM controllers";
constexpr char kLoadAttachments[] = "SELECT controller, id, spec, revision, deleting FROM attachments";
constexpr char kReserveRevisions[] = "UPDATE revisions SET next = next + ? RETURNING next - ?";

// Ids have no commas.
std::string Join(const std::set<std::string>& ids) {
  return fmt::format("{}", fmt::join(ids, ","));
}

std::set<std::string> Split(const std::string& text) {
  std::set<std::string> ids;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    ids.insert(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return ids;
}

}  // namespace

// A text, a message (as a blob) or a number, for the time of one call.
struct Store::Value {
  Value(std::string t) : bytes(std::move(t)), kind(kText) {}                                // NOLINT
  Value(const google::protobuf::Message& m) : bytes(m.SerializeAsString()), kind(kBlob) {}  // NOLINT
  Value(uint64_t n) : number(static_cast<sqlite3_int64>(n)), kind(kNumber) {}               // NOLINT
  std::string bytes;
  sqlite3_int64 number = 0;
  enum { kText, kBlob, kNumber } kind;
};

// One run of a prepared statement; reset, so that it holds no lock, when it goes.
class Store::Statement {
 public:
  explicit Statement(sqlite3_stmt* statement) : statement_(statement) {}
  Statement(Statement&& other) noexcept : statement_(std::exchange(other.statement_, nullptr)) {}
  Statement& operator=(Statement&&) = delete;
  ~Statement() {
    if (statement_ == nullptr) return;
    sqlite3_reset(statement_);
    sqlite3_clear_bindings(statement_);
  }

  // Values must outlive the run. Positions count from 1, columns from 0, as SQLite's own.
  int Bind(int position, const Value& value) {
    const int size = static_cast<int>(value.bytes.size());
    switch (value.kind) {
      case Value::kText:
        return sqlite3_bind_text(statement_, position, value.bytes.data(), size, SQLITE_STATIC);
      case Value::kBlob:
        return sqlite3_bind_blob(statement_, position, value.bytes.data(), size, SQLITE_STATIC);
      case Value::kNumber:
        break;
    }
    return sqlite3_bind_int64(statement_, position, value.number);
  }
  int Step() { return sqlite3_step(statement_); }
  uint64_t Number(int column) { return static_cast<uint64_t>(sqlite3_column_int64(statement_, column)); }
  std::string Bytes(int column) {
    const void* data = sqlite3_column_blob(statement_, column);
    return {static_cast<const char*>(data),
            data == nullptr ? 0 : static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
  }

 private:
  sqlite3_stmt* statement_;
};

Store::Store(UniqueFd lock, sqlite3* db, std::string path)
    : lock_(std::move(lock)), db_(db), path_(std::move(path)) {}

Store::~Store() {
  for (const auto& [sql, statement] : prepared_) sqlite3_finalize(statement);
  sqlite3_close(db_);
}

Result<std::unique_ptr<Store>> Store::Open(const std::string& folder) {
  const std::string lock_path = folder + "/lock";
  UniqueFd lock(open(lock_path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  if (!lock.valid()) return ErrnoError(errno, "store: '" + lock_path + "' can't be opened");
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return Error(
        ErrorCode::kFailedPrecondition,
        fmt::format("store: '{}' is used by another cleatd: stop that one, or give this one a --state-dir of "
                    "its own",
                    folder));
  }
  const std::string path = folder + "/cleat.db";
  const mode_t mask = umask(0077);
  sqlite3* db = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  std::unique_ptr<Store> store(new Store(std::move(lock), db, path));
  Status status = code == SQLITE_OK ? store->Migrate() : Status(store->Failed("open"));
  umask(mask);
  if (!status.ok()) return std::move(status).error();
  return store;
}

Status Store::Migrate() {
  // locking_mode: the flock already keeps others out; with it WAL needs no shared memory file.
  for (const char* sql :
       {"PRAGMA locking_mode = EXCLUSIVE", "PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL"}) {
    if (auto status = Execute(sql); !status.ok()) return status;
  }
  uint64_t version = 0;
  {
    auto statement = Prepare("PRAGMA user_version");
    if (!statement.ok()) return std::move(statement).error();
    if (statement->Step() != SQLITE_ROW) return Failed("PRAGMA user_version");
    version = statement->Number(0);
  }
  if (version == 0) return Execute(kSchema);
  if (version > kSchemaVersion) {
    return Error(
        ErrorCode::kFailedPrecondition,
        fmt::format("store: '{}' was written by a newer cleatd (schema {}, this one knows {}): run that "
                    "version, or restore a copy made before the upgrade",
                    path_, version, kSchemaVersion));
  }
  return Ok{};
}

Error Store::Failed(const char* sql) const {
  const int code = sqlite3_errcode(db_) & 0xff;
  const auto error =
      code == SQLITE_CORRUPT || code == SQLITE_NOTADB ? ErrorCode::kDataLoss : ErrorCode::kUnavailable;
  return {error, fmt::format("store '{}': {} (in: {:.40})", path_, sqlite3_errmsg(db_), sql)};
}

Status Store::Execute(const char* sql) {
  if (sqlite3_exec(db_, sql, nullptr, nullptr, nullptr) == SQLITE_OK) return Ok{};
  Error error = Failed(sql);
  sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
  return error;
}

Result<Store::Statement> Store::Prepare(const char* sql) {
  const auto known =
      std::find_if(prepared_.begin(), prepared_.end(), [&](const auto& p) { return p.first == sql; });
  if (known != prepared_.end()) return Statement(known->second);
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v3(db_, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, nullptr) != SQLITE_OK)
    return Failed(sql);
  prepared_.emplace_back(sql, statement);
  return Statement(statement);
}

Status Store::Run(const char* sql, std::initializer_list<Value> values) {
  auto statement = Prepare(sql);
  if (!statement.ok()) return std::move(statement).error();
  int position = 0;
  for (const Value& value : values) CLEAT_CHECK(statement->Bind(++position, value) == SQLITE_OK);
  return statement->Step() == SQLITE_DONE ? Status(Ok{}) : Status(Failed(sql));
}

Status Store::Put(const DiskRow& row) {
  return Run(kPutDisk, {row.id, row.spec, row.revision, uint64_t{row.deleting}, uint64_t{row.reached_engine},
                        Join(row.kept_by)});
}

Status Store::Put(const ControllerRow& row) {
  return Run(kPutController, {row.id, row.spec, row.revision, uint64_t{row.deleting}, row.engine});
}

Status Store::Put(const AttachmentRow& row) {
  return Run(kPutAttachment, {row.controller, row.id, row.spec, row.revision, uint64_t{row.deleting}});
}

Status Store::EraseDisk(const std::string& id) {
  return Run(kEraseDisk, {id});
}
Status Store::EraseController(const std::string& id) {
  return Run(kEraseController, {id});
}
Status Store::EraseAttachment(const std::string& controller, const std::string& id) {
  return Run(kEraseAttachment, {controller, id});
}

Result<uint64_t> Store::ReserveRevisions(uint64_t count) {
  auto statement = Prepare(kReserveRevisions);
  if (!statement.ok()) return std::move(statement).error();
  const Value value(count);
  CLEAT_CHECK(statement->Bind(1, value) == SQLITE_OK && statement->Bind(2, value) == SQLITE_OK);
  if (statement->Step() != SQLITE_ROW) return Failed(kReserveRevisions);
  const uint64_t first = statement->Number(0);
  // The row comes before the commit.
  if (statement->Step() != SQLITE_DONE) return Failed(kReserveRevisions);
  return first;
}

Result<Rows> Store::Load() {
  Rows rows;
  if (auto status = LoadDisks(rows.disks); !status.ok()) return status.error();
  if (auto status = LoadControllers(rows.controllers); !status.ok()) return status.error();
  if (auto status = LoadAttachments(rows.attachments); !status.ok()) return status.error();
  return rows;
}

Status Store::LoadDisks(std::vector<DiskRow>& rows) {
  auto statement = Prepare(kLoadDisks);
  if (!statement.ok()) return std::move(statement).error();
  int code = SQLITE_OK;
  while ((code = statement->Step()) == SQLITE_ROW) {
    DiskRow& row = rows.emplace_back();
    row.id = statement->Bytes(0);
    if (!row.spec.ParseFromString(statement->Bytes(1))) {
      return Error(ErrorCode::kDataLoss,
                   fmt::format("store '{}': the spec of disk '{}' is damaged", path_, row.id));
    }
    row.revision = statement->Number(2);
    row.deleting = statement->Number(3) != 0;
    row.reached_engine = statement->Number(4) != 0;
    row.kept_by = Split(statement->Bytes(5));
  }
  return code == SQLITE_DONE ? Status(Ok{}) : Status(Failed(kLoadDisks));
}

Status Store::LoadControllers(std::vector<ControllerRow>& rows) {
  auto statement = Prepare(kLoadControllers);
  if (!statement.ok()) return std::move(statement).error();
  int code = SQLITE_OK;
  while ((code = statement->Step()) == SQLITE_ROW) {
    ControllerRow& row = rows.emplace_back();
    row.id = statement->Bytes(0);
    if (!row.spec.ParseFromString(statement->Bytes(1))) {
      return Error(ErrorCode::kDataLoss,
                   fmt::format("store '{}': the spec of controller '{}' is damaged", path_, row.id));
    }
    row.revision = statement->Number(2);
    row.deleting = statement->Number(3) != 0;
    row.engine = statement->Bytes(4);
  }
  return code == SQLITE_DONE ? Status(Ok{}) : Status(Failed(kLoadControllers));
}

Status Store::LoadAttachments(std::vector<AttachmentRow>& rows) {
  auto statement = Prepare(kLoadAttachments);
  if (!statement.ok()) return std::move(statement).error();
  int code = SQLITE_OK;
  while ((code = statement->Step()) == SQLITE_ROW) {
    AttachmentRow& row = rows.emplace_back();
    row.controller = statement->Bytes(0);
    row.id = statement->Bytes(1);
    if (!row.spec.ParseFromString(statement->Bytes(2))) {
      return Error(ErrorCode::kDataLoss,
                   fmt::format("store '{}': the spec of attachment '{}' of controller '{}' is "
                               "damaged",
                               path_, row.id, row.controller));
    }
    row.revision = statement->Number(3);
    row.deleting = statement->Number(4) != 0;
  }
  return code == SQLITE_DONE ? Status(Ok{}) : Status(Failed(kLoadAttachments));
}

}  // namespace cleat::control
