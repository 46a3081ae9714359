// SPDX-License-Identifier: Apache-2.0
// Looks for key bytes in what a core dump of a process would hold that uses them. Without the arena they are there, which
// shows that the search finds them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>

#include "base/check.h"
#include "base/unique_fd.h"
#include "tests/support/paths.h"
#include "tests/unit/keys/core_image.h"
#include "tests/unit/keys/kek_dir.h"

namespace cleat::key_search_test {
namespace {

// A key-encryption key, and a data key wrapped under it by another implementation:
//   openssl enc -id-aes256-wrap -iv A6A6A6A6A6A6A6A6 -K $kek -in data_key
constexpr const char* kKekFile = "9179f1264b348f9e9ddfc65a435af01d0ab2d5dc9683ce496eac000710e0ac53\n";
constexpr const char* kKekId = "fe580a6855cd670f";
constexpr const char* kDataKey =
    "1d5cc1a5587ba35a021a1acc14c9b9347dae719f3a371599f3d6e0f0bf6425539c07b90ded67ed2ac561079d997d7ef676904fd2"
    "ec4f386c98587f56654ecab0";
constexpr const char* kWrapped =
    "4aacb7abf5a1f2cdff1949f755e4b098fbac736278d8fe0f51d15c733e9241d7148941dd10f4641726ea3a416d7105e450638200"
    "faaf9f73804d65ae48249a72eb183e9cbdc3e7b0";

std::string Bytes(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

constexpr int kTooLate = 3;

class Holder {
 public:
  // With a folder it may write a core there.
  Holder(const char* arena, const std::string& kek_file, const char* core_folder = nullptr) {
    std::array<int, 2> in{};
    std::array<int, 2> out{};
    CLEAT_CHECK(pipe2(in.data(), O_CLOEXEC) == 0 && pipe2(out.data(), O_CLOEXEC) == 0);
    const std::string holder = test::BuiltForTests("key_holder");
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      const rlimit any{RLIM_INFINITY, RLIM_INFINITY};
      if (core_folder != nullptr && (chdir(core_folder) != 0 || setrlimit(RLIMIT_CORE, &any) != 0))
        _exit(126);
      execl(holder.c_str(), holder.c_str(), arena, kek_file.c_str(), kKekId, kWrapped, nullptr);
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    in_.Reset(in[1]);
    const UniqueFd said(out[0]);
    std::array<char, 16> text{};
    holding_ = read(said.get(), text.data(), text.size() - 1) > 0;
  }
  ~Holder() {
    if (pid_ < 0) return;
    in_.Reset();
    int status = 0;
    waitpid(pid_, &status, 0);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), holding_ ? 0 : kTooLate);
  }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

  // Ends it, with a core.
  void Abort() {
    kill(pid_, SIGABRT);
    int status = 0;
    waitpid(pid_, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status));
    dumped_ = WCOREDUMP(status);
    pid_ = -1;
  }
  bool dumped() const { return dumped_; }
  pid_t pid() const { return pid_; }
  bool holding() const { return holding_; }

 private:
  pid_t pid_ = -1;
  UniqueFd in_;
  bool holding_ = false;
  bool dumped_ = false;
};

TEST(KeySearch, FindsNothingInACoreOfAProcessThatUsesKeys) {
  const test::KekDir dir;
  const std::string file = dir.Write("kek", kKekFile);
  const Holder holder("on", file);
  ASSERT_TRUE(holder.holding());
  EXPECT_EQ(test::CountKeyParts(holder.pid(), Bytes(kDataKey)), 0U);
  EXPECT_EQ(test::CountKeyParts(holder.pid(), Bytes(std::string(kKekFile, 64))), 0U);
  EXPECT_EQ(test::CountKeyParts(holder.pid(), std::string(kKekFile, 64)), 0U) << "as text, from the file";
}

TEST(KeySearch, FindsKeysWithoutTheArena) {
  const test::KekDir dir;
  const Holder holder("off", dir.Write("kek", kKekFile));
  ASSERT_TRUE(holder.holding());
  EXPECT_GE(test::CountKeyParts(holder.pid(), Bytes(kDataKey)), 4U);
  EXPECT_GE(test::CountKeyParts(holder.pid(), Bytes(std::string(kKekFile, 64))), 2U);
}

TEST(KeySearch, RealCoresHaveNoKeysEither) {
  if (!test::CoresAreFilesHere()) GTEST_SKIP() << "cores are not written as files here";
  for (const bool arena : {true, false}) {
    const test::KekDir dir;
    Holder holder(arena ? "on" : "off", dir.Write("kek", kKekFile), dir.path().c_str());
    ASSERT_TRUE(holder.holding());
    holder.Abort();
    if (!holder.dumped()) GTEST_SKIP() << "this process may not write cores";
    std::filesystem::remove(dir.File("kek"));
    const std::string core = test::ReadCores(dir.path());
    ASSERT_GT(core.size(), 100'000U);
    for (const std::string& key : {Bytes(kDataKey), Bytes(std::string(kKekFile, 64))}) {
      if (arena) {
        EXPECT_EQ(test::CountKeyParts(std::string_view(core), key), 0U);
      } else {
        EXPECT_GE(test::CountKeyParts(std::string_view(core), key), key.size() / 16);
      }
    }
  }
}

TEST(KeySearch, ArenaThatComesTooLateIsAnError) {
  const test::KekDir dir;
  EXPECT_FALSE(Holder("late", dir.Write("kek", kKekFile)).holding());
}

}  // namespace
}  // namespace cleat::key_search_test
