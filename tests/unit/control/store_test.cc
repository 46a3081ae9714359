// SPDX-License-Identifier: Apache-2.0
#include "control/store/store.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "tests/support/temp_dir.h"

namespace cleat::control::store_test {
namespace {

DiskRow StoredDisk(const std::string& id) {
  DiskRow row;
  row.id = id;
  row.spec.set_size_bytes(4096);
  row.spec.mutable_memory();
  row.revision = 7;
  row.reached_engine = true;
  row.held_by = {"engine-0", "engine-1"};
  row.image_bytes = 2048;
  return row;
}

TEST(StoreTest, EverythingIsReadBackAfterReopening) {
  const test::TempDir dir;
  {
    auto store = Store::Open(dir.path());
    ASSERT_TRUE(store.ok()) << store.error().message;
    ASSERT_TRUE((*store)->Apply({StoredDisk("a")}).ok());
    ControllerRow controller;
    controller.id = "c";
    controller.revision = 8;
    controller.deleting = true;
    controller.engine = "engine-0";
    controller.labels = {{"vm", "1"}, {"zone", ""}};
    controller.spec.set_socket_path("/run/c");
    ASSERT_TRUE((*store)->Apply({controller}).ok());
    AttachmentRow attachment;
    attachment.controller = "c";
    attachment.id = "a";
    attachment.revision = 9;
    attachment.spec.set_disk("disks/a");
    ASSERT_TRUE((*store)->Apply({attachment}).ok());
    ASSERT_TRUE((*store)->Apply({StoredDisk("b")}).ok());
    ASSERT_TRUE((*store)->Apply({EraseDiskRow{"b"}}).ok());
  }
  auto store = Store::Open(dir.path());
  ASSERT_TRUE(store.ok());
  const auto rows = (*store)->Load();
  ASSERT_TRUE(rows.ok());
  ASSERT_EQ(rows->disks.size(), 1u);
  EXPECT_EQ(rows->disks[0].id, "a");
  EXPECT_EQ(rows->disks[0].spec.size_bytes(), 4096u);
  EXPECT_EQ(rows->disks[0].revision, 7u);
  EXPECT_TRUE(rows->disks[0].reached_engine);
  EXPECT_EQ(rows->disks[0].image_bytes, 2048u);
  EXPECT_EQ(rows->disks[0].held_by, (std::set<std::string>{"engine-0", "engine-1"}));
  ASSERT_EQ(rows->controllers.size(), 1u);
  EXPECT_EQ(rows->controllers[0].spec.socket_path(), "/run/c");
  EXPECT_TRUE(rows->controllers[0].deleting);
  EXPECT_EQ(rows->controllers[0].engine, "engine-0");
  EXPECT_EQ(rows->controllers[0].labels, (Labels{{"vm", "1"}, {"zone", ""}}));
  ASSERT_EQ(rows->attachments.size(), 1u);
  EXPECT_EQ(rows->attachments[0].spec.disk(), "disks/a");
}

TEST(StoreTest, ASecondOpenerIsRefused) {
  const test::TempDir dir;
  const auto first = Store::Open(dir.path());
  ASSERT_TRUE(first.ok());
  const auto second = Store::Open(dir.path());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, ErrorCode::kAlreadyExists);
}

TEST(StoreTest, AStoreOfANewerVersionIsRefusedAndLeftAlone) {
  const test::TempDir dir;
  ASSERT_TRUE(Store::Open(dir.path()).ok());
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((dir / "cleat.db").c_str(), &db), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(db, "PRAGMA user_version = 99", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(db);
  const auto store = Store::Open(dir.path());
  ASSERT_FALSE(store.ok());
  EXPECT_NE(store.error().message.find("newer"), std::string::npos);
}

TEST(StoreTest, RevisionsAreNeverHandedOutTwice) {
  const test::TempDir dir;
  uint64_t last = 0;
  for (int i = 0; i < 3; ++i) {
    auto store = Store::Open(dir.path());
    ASSERT_TRUE(store.ok());
    const auto first = (*store)->ReserveRevisions(100);
    ASSERT_TRUE(first.ok());
    EXPECT_GT(*first, last);
    last = *first + 99;
  }
}

// The child writes rows, and says so after each. It is killed in the middle.
TEST(StoreTest, WhatWasAcknowledgedSurvivesKillMinusNine) {
  constexpr int kRowsBeforeTheKill = 50;
  const test::TempDir dir;
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    close(pipe_fds[0]);
    auto store = Store::Open(dir.path());
    for (uint32_t i = 0; store.ok(); ++i) {
      if (!(*store)->Apply({StoredDisk("d" + std::to_string(i))}).ok()) break;
      if (i > 0 && i % 3 == 0 && !(*store)->Apply({EraseDiskRow{"d" + std::to_string(i - 1)}}).ok()) break;
      if (write(pipe_fds[1], &i, sizeof(i)) != sizeof(i)) break;
    }
    _exit(1);
  }
  close(pipe_fds[1]);
  uint32_t acknowledged = 0;
  for (int i = 0; i < kRowsBeforeTheKill; ++i) {
    ASSERT_EQ(read(pipe_fds[0], &acknowledged, sizeof(acknowledged)),
              static_cast<ssize_t>(sizeof(acknowledged)));
  }
  ASSERT_EQ(kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  uint32_t more = 0;
  while (read(pipe_fds[0], &more, sizeof(more)) == static_cast<ssize_t>(sizeof(more))) acknowledged = more;
  close(pipe_fds[0]);

  auto store = Store::Open(dir.path());
  ASSERT_TRUE(store.ok()) << store.error().message;
  const auto rows = (*store)->Load();
  ASSERT_TRUE(rows.ok());
  const auto has = [&](uint32_t i) {
    return std::any_of(rows->disks.begin(), rows->disks.end(),
                       [&](const DiskRow& row) { return row.id == "d" + std::to_string(i); });
  };
  for (uint32_t i = 0; i <= acknowledged; ++i) {
    const bool erased = i + 1 <= acknowledged && (i + 1) % 3 == 0;
    // The one after the last acknowledged may have been written, and its predecessor erased.
    if (i == acknowledged && (i + 1) % 3 == 0) continue;
    EXPECT_EQ(has(i), !erased) << i;
  }
}

}  // namespace
}  // namespace cleat::control::store_test
