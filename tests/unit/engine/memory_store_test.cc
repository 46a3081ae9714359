// SPDX-License-Identifier: Apache-2.0
#include "engine/stores/memory_store.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

namespace cleat::engine::memory_store_test {
namespace {

UniqueFd MakeMemory(uint64_t size_bytes) {
  UniqueFd fd(memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(size_bytes)), 0);
  return fd;
}

TEST(MemoryStore, KeepsTheFirstAndHandsOutTheSameMemory) {
  MemoryStore store;
  UniqueFd first = MakeMemory(8192);
  ASSERT_EQ(pwrite(first.get(), "x", 1, 100), 1);
  ASSERT_TRUE(store.Keep({"disks/m", 8192}, std::move(first)).ok());
  ASSERT_TRUE(store.Keep({"disks/m", 8192}, MakeMemory(8192)).ok()) << "the same again is OK";

  const auto again = store.Duplicate("disks/m");
  ASSERT_TRUE(again.ok());
  char byte = 0;
  ASSERT_EQ(pread(again.value().get(), &byte, 1, 100), 1);
  EXPECT_EQ(byte, 'x') << "the content that was here first must not be replaced";
}

TEST(MemoryStore, RefusesWhatWouldLoseOrCrash) {
  MemoryStore store;
  EXPECT_EQ(store.Keep({"disks/m", 8192}, UniqueFd()).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(store.Keep({"disks/m", 8192}, MakeMemory(4096)).error().code, ErrorCode::kInvalidArgument)
      << "touching memory behind a memfd's end kills the process";
  ASSERT_TRUE(store.Keep({"disks/m", 8192}, MakeMemory(8192)).ok());
  EXPECT_EQ(store.Keep({"disks/m", 4096}, MakeMemory(4096)).error().code, ErrorCode::kAlreadyExists);
}

TEST(MemoryStore, WhatIsNotTheDisksContentStaysAsLargeAsItIs) {
  MemoryStore store;
  ASSERT_TRUE(store.Keep({.disk = "disks/n", .size_bytes = 8192, .fixed = true}, MakeMemory(8192)).ok());
  EXPECT_TRUE(store.Grow("disks/n", 4096).ok()) << "a disk that is smaller than its log";
  EXPECT_TRUE(store.Grow("disks/n", 1 << 20).ok());
  ASSERT_EQ(store.Report().size(), 1U);
  EXPECT_EQ(store.Report().front().size_bytes, 8192U);
  EXPECT_TRUE(store.Report().front().fixed);
  ASSERT_TRUE(store.Keep({"disks/m", 8192}, MakeMemory(8192)).ok());
  EXPECT_EQ(store.Grow("disks/m", 4096).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(store.Grow("disks/m", 1 << 20).error().code, ErrorCode::kInvalidArgument);
}

TEST(MemoryStore, DropIsFinalAndHarmlessTwice) {
  MemoryStore store;
  ASSERT_TRUE(store.Keep({"disks/m", 4096}, MakeMemory(4096)).ok());
  store.Drop("disks/m");
  store.Drop("disks/m");
  EXPECT_EQ(store.Duplicate("disks/m").error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(store.Report().empty());
}

}  // namespace
}  // namespace cleat::engine::memory_store_test
