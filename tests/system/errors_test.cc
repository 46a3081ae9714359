// SPDX-License-Identifier: Apache-2.0
// What an operator reads when something is wrong: each message names the object, the cause and the next step.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "expect_ok.h"
#include "host.h"
#include "peer.h"

namespace cleat::system_test::errors_test {
namespace {

constexpr uint64_t kDiskBytes = uint64_t{1} << 20;

void ExpectParts(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is missing in: " << message;
  }
}

void ExpectError(const grpc::Status& status, grpc::StatusCode code, const std::vector<std::string>& parts) {
  EXPECT_EQ(status.error_code(), code) << status.error_message();
  ExpectParts(status.error_message(), parts);
}

class Errors : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(host_.ok()); }

  // A disk and a controller of that name, attached; the attachment's message once it has FAILED.
  std::string FailureOf(const std::string& id, v1::SocketMode mode = v1::SOCKET_MODE_CLIENT) {
    EXPECT_OK(host_.api().CreateController(id, BlkController(host_.SocketPath(id), 1, mode)));
    EXPECT_OK(host_.api().Attach(id, id));
    Model last;
    EXPECT_TRUE(host_.api().WaitUntil(
        [&](const Model& model) { return model.AttachmentStateOf(id, id) == v1::ATTACHMENT_STATE_FAILED; },
        &last))
        << last.ToString();
    const auto found = last.attachments.find("controllers/" + id + "/attachments/" + id);
    return found == last.attachments.end() ? "" : found->second.status().message();
  }

  bool WaitReady(const std::string& id) {
    return host_.api().WaitUntil(
        [&](const Model& model) { return model.AttachmentStateOf(id, id) == v1::ATTACHMENT_STATE_READY; });
  }

  Host host_{{.as_nobody = true}};
};

TEST_F(Errors, FileIsMissing) {
  const std::string path = host_.Path("none.img");
  ExpectError(host_.api().CreateDisk("a", FileDisk(kDiskBytes, path, false)).status,
              grpc::StatusCode::FAILED_PRECONDITION,
              {"disks/a", path, "does not exist", "truncate -s 1048576"});
  ExpectError(host_.api().CreateDisk("a", FileDisk(kDiskBytes, host_.Path("none/a.img"), true)).status,
              grpc::StatusCode::FAILED_PRECONDITION, {"disks/a", host_.Path("none/a.img"), "No such file"});
}

TEST_F(Errors, FileIsTooSmall) {
  const std::string path = host_.MakeFile("small.img", 4096);
  ExpectError(host_.api().CreateDisk("a", FileDisk(kDiskBytes, path)).status,
              grpc::StatusCode::FAILED_PRECONDITION,
              {"disks/a", path, "4096 bytes", "1048576", "make the file larger"});
}

TEST_F(Errors, FileIsNotWritable) {
  const std::string path = host_.MakeFile("read-only.img", kDiskBytes, 0400);
  ExpectError(host_.api().CreateDisk("a", FileDisk(kDiskBytes, path)).status,
              grpc::StatusCode::PERMISSION_DENIED,
              {"disks/a", path, "Permission denied", "give that user access"});
  // Read-only is enough for readers.
  v1::DiskSpec readers = FileDisk(kDiskBytes, path, false);
  readers.set_access_mode(v1::ACCESS_MODE_MANY_READERS);
  EXPECT_OK(host_.api().CreateDisk("b", readers));
}

TEST_F(Errors, FileIsADirectory) {
  ExpectError(host_.api().CreateDisk("a", FileDisk(kDiskBytes, host_.Path("state"))).status,
              grpc::StatusCode::FAILED_PRECONDITION, {"disks/a", host_.Path("state"), "regular file"});
}

TEST_F(Errors, FileChangesBetweenCreateAndAttach) {
  const std::string path = host_.MakeFile("a.img", kDiskBytes);
  ASSERT_OK(host_.api().CreateDisk("a", FileDisk(kDiskBytes, path)));
  ASSERT_EQ(truncate(path.c_str(), 512), 0);
  ExpectParts(FailureOf("a"), {path, "512", "1048576"});
  ASSERT_EQ(truncate(path.c_str(), static_cast<off_t>(kDiskBytes)), 0);
  EXPECT_TRUE(WaitReady("a")) << "the attach is not tried again";
}

TEST_F(Errors, FileVanishesBetweenCreateAndAttach) {
  const std::string path = host_.MakeFile("a.img", kDiskBytes);
  ASSERT_OK(host_.api().CreateDisk("a", FileDisk(kDiskBytes, path)));
  ASSERT_EQ(unlink(path.c_str()), 0);
  ExpectParts(FailureOf("a"), {"disks/a", path, "does not exist", "correct the path"});
}

TEST_F(Errors, FileIsLockedByAnotherEngine) {
  Host other{{.as_nobody = true}};
  ASSERT_TRUE(other.ok());
  const std::string path = host_.MakeFile("a.img", kDiskBytes);
  ASSERT_TRUE(other.AttachNew("a", FileDisk(kDiskBytes, path, false)));
  ASSERT_OK(host_.api().CreateDisk("a", FileDisk(kDiskBytes, path, false)));
  ExpectParts(FailureOf("a"), {"disks/a", path, "locked by process " + std::to_string(other.engine().pid()),
                               "cleat-engine", "end that use"});
  ASSERT_TRUE(other.Remove("a"));
  EXPECT_TRUE(WaitReady("a")) << "the attach is not tried again";
}

TEST_F(Errors, SocketPathIsARegularFile) {
  host_.MakeFile("a.sock", 1);
  ASSERT_OK(host_.api().CreateDisk("a", MemoryDisk(kDiskBytes)));
  ExpectParts(FailureOf("a"),
              {"controllers/a", host_.SocketPath("a"), "not a socket", "choose another path"});
  EXPECT_EQ(access(host_.SocketPath("a").c_str(), F_OK), 0) << "the file was removed";
}

TEST_F(Errors, SocketPathHasAListener) {
  const auto other = Peer::Listen(host_.SocketPath("a"));
  ASSERT_OK(other);
  ASSERT_OK(host_.api().CreateDisk("a", MemoryDisk(kDiskBytes)));
  ExpectParts(FailureOf("a", v1::SOCKET_MODE_SERVER),
              {"controllers/a", host_.SocketPath("a"), "listens on it already", "choose another path"});
}

TEST_F(Errors, SocketPathBelongsToAnotherController) {
  ASSERT_OK(host_.api().CreateController("a", BlkController(host_.SocketPath("a"))));
  ExpectError(host_.api().CreateController("b", BlkController(host_.SocketPath("a"))).status,
              grpc::StatusCode::FAILED_PRECONDITION,
              {"controllers/b", host_.SocketPath("a"), "controllers/a", "cleatctl controller delete a"});
}

TEST_F(Errors, SocketDirectoryIsMissing) {
  ASSERT_OK(host_.api().CreateDisk("a", MemoryDisk(kDiskBytes)));
  ASSERT_OK(host_.api().CreateController("a", BlkController(host_.Path("none/a.sock"))));
  ASSERT_OK(host_.api().Attach("a", "a"));
  Model last;
  EXPECT_TRUE(host_.api().WaitUntil(
      [](const Model& model) { return model.AttachmentStateOf("a", "a") == v1::ATTACHMENT_STATE_FAILED; },
      &last));
  ExpectParts(last.attachments["controllers/a/attachments/a"].status().message(),
              {"controllers/a", host_.Path("none"), "does not exist"});
}

TEST_F(Errors, NameExists) {
  ASSERT_OK(host_.api().CreateDisk("a", MemoryDisk(kDiskBytes)));
  EXPECT_OK(host_.api().CreateDisk("a", MemoryDisk(kDiskBytes)));  // the same again is no error
  ExpectError(host_.api().CreateDisk("a", MemoryDisk(2 * kDiskBytes)).status,
              grpc::StatusCode::ALREADY_EXISTS, {"disks/a", "size_bytes", "another id"});
  ASSERT_OK(host_.api().CreateController("c", BlkController(host_.SocketPath("c"))));
  ExpectError(host_.api().CreateController("c", BlkController(host_.SocketPath("c"), 2)).status,
              grpc::StatusCode::ALREADY_EXISTS, {"controllers/c", "queues", "another id"});
}

TEST_F(Errors, DiskIsInUse) {
  ASSERT_TRUE(host_.AttachNew("a", MemoryDisk(kDiskBytes)));
  ASSERT_OK(host_.api().CreateController("b", BlkController(host_.SocketPath("b"))));
  const std::string step = "cleatctl detach a a";
  ExpectError(host_.api().Attach("b", "a").status, grpc::StatusCode::FAILED_PRECONDITION,
              {"disks/a", "controllers/a/attachments/a", step});
  ExpectError(host_.api().DeleteDisk("a"), grpc::StatusCode::FAILED_PRECONDITION,
              {"disks/a", "in use", step});
  ExpectError(host_.api().DeleteController("a"), grpc::StatusCode::FAILED_PRECONDITION,
              {"controllers/a", step});
}

TEST_F(Errors, FileIsUsedByAnotherDisk) {
  const std::string path = host_.MakeFile("a.img", kDiskBytes);
  ASSERT_OK(host_.api().CreateDisk("a", FileDisk(kDiskBytes, path)));
  ExpectError(host_.api().CreateDisk("b", FileDisk(kDiskBytes, path)).status,
              grpc::StatusCode::FAILED_PRECONDITION, {"disks/b", path, "disks/a", "cleatctl disk delete a"});
  const std::string alias = host_.Path("alias.img");
  ASSERT_EQ(link(path.c_str(), alias.c_str()), 0);
  ExpectError(host_.api().CreateDisk("b", FileDisk(kDiskBytes, alias)).status,
              grpc::StatusCode::FAILED_PRECONDITION, {"disks/b", alias, path, "disks/a"});
  // When the name becomes that file's later it is the engine that notices: it holds the file's lock.
  const std::string other = host_.MakeFile("b.img", kDiskBytes);
  ASSERT_OK(host_.api().CreateDisk("b", FileDisk(kDiskBytes, other)));
  ASSERT_EQ(rename(alias.c_str(), other.c_str()), 0);
  ASSERT_OK(host_.api().CreateController("a", BlkController(host_.SocketPath("a"))));
  ASSERT_OK(host_.api().Attach("a", "a"));
  ASSERT_TRUE(WaitReady("a"));
  ExpectParts(FailureOf("b"), {other, "lock"});
}

TEST_F(Errors, WhatIsNotThere) {
  ExpectError(host_.api().GetDisk("none").status, grpc::StatusCode::NOT_FOUND, {"disks/none"});
  ASSERT_OK(host_.api().CreateController("a", BlkController(host_.SocketPath("a"))));
  ExpectError(host_.api().Attach("a", "none").status, grpc::StatusCode::NOT_FOUND, {"disks/none"});
  ExpectError(host_.api().Attach("none", "none").status, grpc::StatusCode::NOT_FOUND, {"controllers/none"});
}

TEST(ErrorsWithoutEngine, EngineIsAbsent) {
  Host host({.as_nobody = true, .with_engine = false});
  ASSERT_TRUE(host.ok());
  ASSERT_OK(host.api().CreateDisk("a", MemoryDisk(kDiskBytes)));
  ASSERT_OK(host.api().CreateController("a", BlkController(host.SocketPath("a"))));
  ASSERT_OK(host.api().Attach("a", "a"));
  const auto controller = host.api().GetController("a");
  EXPECT_EQ(controller.value.status().state(), v1::CONTROLLER_STATE_PENDING);
  ExpectParts(controller.value.status().message(), {"engine", "start cleat-engine"});
  const auto attachment = host.api().GetAttachment("a", "a");
  EXPECT_EQ(attachment.value.status().state(), v1::ATTACHMENT_STATE_PENDING);
  ExpectParts(attachment.value.status().message(), {"engine"});
  // It comes true when there is one.
  host.StartEngine();
  Model last;
  EXPECT_TRUE(host.api().WaitUntil(
      [](const Model& model) { return model.AttachmentStateOf("a", "a") == v1::ATTACHMENT_STATE_READY; },
      &last))
      << last.ToString();
}

}  // namespace
}  // namespace cleat::system_test::errors_test
