// SPDX-License-Identifier: Apache-2.0
// A disk's log of doubt as cleatd keeps it, for tests that kill engines: an engine is killed by a copy of the log.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <vector>

#include "base/unique_fd.h"
#include "nvme/host/doubt/doubt_log.h"

namespace cleat::test {

// A file as cleatd makes one for each disk.
class LogFile {
 public:
  explicit LogFile(size_t bytes = nvme::host::kDoubtLogBytes) : fd_(memfd_create("log", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(fd_.get(), static_cast<off_t>(bytes)), 0);
  }
  UniqueFd Duplicate() const { return fd_.Duplicate(); }
  void MarkLost() {
    const auto header = nvme::host::DoubtLog::LostHeader(77);
    EXPECT_EQ(pwrite(fd_.get(), header.data(), header.size(), 0), static_cast<ssize_t>(header.size()));
  }
  LogFile Copy() const {
    LogFile copy;
    const std::vector<uint64_t> words = Words();
    EXPECT_EQ(pwrite(copy.fd_.get(), words.data(), nvme::host::kDoubtLogBytes, 0),
              static_cast<ssize_t>(nvme::host::kDoubtLogBytes));
    return copy;
  }
  // What an engine would find that takes the disk now.
  Result<std::vector<nvme::host::BlockRange>> Found() const {
    std::vector<uint64_t> words = Words();
    auto log =
        nvme::host::DoubtLog::Open({reinterpret_cast<uint8_t*>(words.data()), nvme::host::kDoubtLogBytes},
                                   nvme::host::kDoubtLogShape, 1);
    if (!log) return log.error();
    return log->Read();
  }

  // Whose that may be.
  std::vector<nvme::host::LifeId> Lives() const {
    std::vector<uint64_t> words = Words();
    return nvme::host::DoubtLog::View({reinterpret_cast<uint8_t*>(words.data()), nvme::host::kDoubtLogBytes},
                                      nvme::host::kDoubtLogShape)
        .ReadLives();
  }

  // Of what is in doubt now.
  uint32_t Number() const {
    const std::vector<uint64_t> words = Words();
    return nvme::host::DoubtLog::Look(
               {reinterpret_cast<const uint8_t*>(words.data()), nvme::host::kDoubtLogBytes},
               nvme::host::kDoubtLogShape)
        .number;
  }
  // As cleatd does where an operator says so.
  void Confirm(uint32_t number) {
    void* const at =
        mmap(nullptr, nvme::host::kDoubtLogBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    ASSERT_NE(at, MAP_FAILED);
    nvme::host::DoubtLog::Confirm({static_cast<uint8_t*>(at), nvme::host::kDoubtLogBytes}, number);
    munmap(at, nvme::host::kDoubtLogBytes);
  }

 private:
  std::vector<uint64_t> Words() const {
    std::vector<uint64_t> words((nvme::host::kDoubtLogBytes + 7) / 8);
    EXPECT_EQ(pread(fd_.get(), words.data(), nvme::host::kDoubtLogBytes, 0),
              static_cast<ssize_t>(nvme::host::kDoubtLogBytes));
    return words;
  }

  UniqueFd fd_;
};

}  // namespace cleat::test
