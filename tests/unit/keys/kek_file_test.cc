// SPDX-License-Identifier: Apache-2.0
#include "keys/kek_file.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <iterator>
#include <thread>
#include <vector>

#include "tests/unit/keys/kek_dir.h"

namespace cleat::keys::kek_file_test {
namespace {

using test::KekDir;

constexpr const char* kLine = "00000000000000000000000000000000000000000000000000000000000000aF\n";

// The error's code; kInternal when there is none.
ErrorCode Refused(const std::string& path, const std::string& says = "") {
  const auto kek = LoadKekFile(path);
  if (kek) return ErrorCode::kInternal;
  EXPECT_NE(kek.error().message.find(path), std::string::npos) << kek.error().message;
  EXPECT_NE(kek.error().message.find(says), std::string::npos) << kek.error().message;
  return kek.error().code;
}

TEST(KekFile, IsALineOfHexDigits) {
  const KekDir dir;
  const auto kek = LoadKekFile(dir.Write("kek", kLine));
  ASSERT_TRUE(kek.ok()) << kek.error().message;
  EXPECT_EQ(kek->bytes().bytes()[31], 0xaf);
  EXPECT_EQ(kek->bytes().bytes()[0], 0);
  const auto bad = [&](const std::string& text) {
    EXPECT_EQ(Refused(dir.Write("bad", text), "64 hex digits"), ErrorCode::kInvalidArgument) << text;
  };
  const std::string digits(64, '0');
  bad("");
  bad("\n");
  bad(digits);
  bad(digits.substr(1) + "\n");
  bad(digits + "0\n");
  bad(digits + "\n\n");
  bad(digits + "\r\n");
  bad(" " + digits.substr(1) + "\n");
  bad("g" + digits.substr(1) + "\n");
}

TEST(KekFile, ErrorsShowNothingOfIt) {
  const KekDir dir;
  const auto kek = LoadKekFile(dir.Write("kek", test::Line(63, '7')));
  ASSERT_FALSE(kek.ok());
  EXPECT_EQ(kek.error().message.find("777"), std::string::npos);
}

TEST(KekFile, IsReadByItsOwnerAlone) {
  const KekDir dir;
  for (const mode_t good : {0600, 0400}) EXPECT_TRUE(LoadKekFile(dir.Write("kek", kLine, good)).ok());
  for (const mode_t bad : {0640, 0604, 0620, 0602, 0644, 0666, 0610})
    EXPECT_EQ(Refused(dir.Write("kek", kLine, bad), "chmod 600"), ErrorCode::kPermissionDenied) << bad;
  EXPECT_EQ(Refused(dir.path(), "no regular file"), ErrorCode::kPermissionDenied);
  EXPECT_EQ(Refused(dir.File("absent")), ErrorCode::kNotFound);
}

TEST(KekFile, BelongsToRootOrThisUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const KekDir dir;
  const std::string path = dir.Write("kek", kLine);
  ASSERT_EQ(chown(path.c_str(), 65534, 65534), 0);
  EXPECT_EQ(Refused(path, "belongs to user 65534"), ErrorCode::kPermissionDenied);
}

TEST(KekFile, IsMadeOnce) {
  const KekDir dir;
  const std::string path = dir.File("kek");
  const auto made = LoadOrMakeKekFile(path);
  ASSERT_TRUE(made.ok()) << made.error().message;
  struct stat found {};
  ASSERT_EQ(stat(path.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, 0600U);
  EXPECT_EQ(LoadOrMakeKekFile(path).value().id(), made->id());
  EXPECT_NE(LoadOrMakeKekFile(dir.File("other")).value().id(), made->id());
  const std::filesystem::directory_iterator files(dir.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 2) << "nothing else is left there";
}

// In a container a process has the same id at each start.
TEST(KekFile, IsMadeAlsoWhenAnAttemptWithThisProcessIdWasCutShort) {
  const KekDir dir;
  const std::string path = dir.File("kek");
  dir.Write("kek.new-" + std::to_string(getpid()), "");
  const auto made = LoadOrMakeKekFile(path);
  EXPECT_TRUE(made.ok()) << made.error().message;
}

TEST(KekFile, IsNotMadeOverOneThatIsRefused) {
  const KekDir dir;
  const std::string path = dir.Write("kek", "nonsense\n");
  EXPECT_FALSE(LoadOrMakeKekFile(path).ok());
  EXPECT_EQ(std::filesystem::file_size(path), 9U);
  EXPECT_EQ(LoadOrMakeKekFile(dir.File("no/such/kek")).error().code, ErrorCode::kNotFound);
}

TEST(KekFile, MayBeACredential) {
  const KekDir dir;
  setenv("CREDENTIALS_DIRECTORY", dir.path().c_str(), 1);
  EXPECT_FALSE(KekCredentialPath().has_value());
  const std::string path = dir.Write("cleat-kek", kLine, 0440);
  EXPECT_EQ(KekCredentialPath(), path);
  EXPECT_TRUE(LoadKekFile(path).ok());
  EXPECT_EQ(Refused(dir.Write("cleat-kek", kLine, 0444)), ErrorCode::kPermissionDenied);
  unsetenv("CREDENTIALS_DIRECTORY");
  EXPECT_EQ(Refused(dir.Write("cleat-kek", kLine, 0440)), ErrorCode::kPermissionDenied);
  EXPECT_FALSE(KekCredentialPath().has_value());
}

}  // namespace
}  // namespace cleat::keys::kek_file_test
