// SPDX-License-Identifier: Apache-2.0
// The paths that the host's operator lists bind the engine each time that it opens something, and never cost a host what it serves.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "expect_ok.h"
#include "host.h"

namespace cleat::system_test::paths_test {
namespace {

constexpr uint64_t kDiskBytes = uint64_t{1} << 20;

class Paths : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(host_.ok());
    std::filesystem::create_directory(host_.Path("disks"));
    host_.GiveAway(host_.Path("disks"));
    secret_ = host_.MakeFile("secret", kDiskBytes);
  }

  bool WaitState(const std::string& id, v1::AttachmentState state, std::string* message = nullptr) {
    Model last;
    const bool came = host_.api().WaitUntil(
        [&](const Model& model) { return model.AttachmentStateOf(id, id) == state; }, &last);
    EXPECT_TRUE(came) << last.ToString();
    if (message != nullptr)
      *message = last.attachments["controllers/" + id + "/attachments/" + id].status().message();
    return came;
  }
  bool WaitGone(const std::string& id) {
    return host_.api().WaitUntil([&](const Model& model) {
      return model.AttachmentStateOf(id, id) == v1::ATTACHMENT_STATE_UNSPECIFIED;
    });
  }
  // A disk in that file, and a controller, both of that name.
  void Attach(const std::string& id, const std::string& file) {
    EXPECT_OK(host_.api().CreateDisk(id, FileDisk(kDiskBytes, file)));
    EXPECT_OK(host_.api().CreateController(id, BlkController(host_.SocketPath(id))));
    EXPECT_OK(host_.api().Attach(id, id));
    EXPECT_TRUE(WaitState(id, v1::ATTACHMENT_STATE_READY));
  }
  void Detach(const std::string& id) {
    EXPECT_OK(host_.api().Detach(id, id));
    EXPECT_TRUE(WaitGone(id));
  }
  // Whoever may write to the folder exchanges the file for a link.
  void Replace(const std::string& file) {
    std::filesystem::rename(file, file + ".kept");
    std::filesystem::create_symlink(secret_, file);
  }
  void PutBack(const std::string& file) { std::filesystem::rename(file + ".kept", file); }
  void List(const std::string& lists, bool reload) {
    std::ofstream(host_.Path("paths.conf")) << lists;
    if (reload) kill(host_.cleatd().pid(), SIGHUP);
  }
  bool WaitDifference(const std::string& engine, bool differs) {
    return host_.api().WaitUntil([&](const Model& model) {
      const auto found = model.engines.find("engines/" + engine);
      return found != model.engines.end() && found->second.status().path_difference().empty() != differs;
    });
  }

  Host host_{{.listed_folder = "disks"}};
  std::string secret_;
};

TEST_F(Paths, AFileThatLeadsElsewhereSinceItWasMadeIsNotOpened) {
  const std::string file = host_.MakeFile("disks/a", kDiskBytes);
  Attach("a", file);
  Detach("a");
  Replace(file);
  EXPECT_OK(host_.api().Attach("a", "a"));
  std::string message;
  EXPECT_TRUE(WaitState("a", v1::ATTACHMENT_STATE_FAILED, &message));
  EXPECT_NE(message.find("symbolic link"), std::string::npos) << message;
  PutBack(file);
  EXPECT_TRUE(WaitState("a", v1::ATTACHMENT_STATE_READY)) << "it goes on by itself";
}

// What is refused above is opened by an engine for which everything is listed: it is the list that refuses.
TEST_F(Paths, Control) {
  std::ofstream(host_.Path("open.conf")) << "files /\n";
  host_.AddEngine("engine-1", {"--paths", host_.Path("open.conf")});
  host_.TerminateEngine();
  const std::string file = host_.MakeFile("disks/a", kDiskBytes);
  EXPECT_OK(host_.api().CreateDisk("a", FileDisk(kDiskBytes, file)));
  Replace(file);
  v1::ControllerSpec controller = BlkController(host_.SocketPath("a"));
  controller.set_engine("engines/engine-1");
  EXPECT_OK(host_.api().CreateController("a", controller));
  EXPECT_OK(host_.api().Attach("a", "a"));
  EXPECT_TRUE(WaitState("a", v1::ATTACHMENT_STATE_READY));
}

TEST_F(Paths, WhatIsServedStaysServedWhateverTheListsSay) {
  Attach("a", host_.MakeFile("disks/a", kDiskBytes));
  List("files none\ndevices none\nsockets none\nkeys none\n", false);
  host_.RestartEngine();
  EXPECT_TRUE(WaitDifference("engine-0", true)) << "cleatd has not read the file again";
  EXPECT_TRUE(WaitState("a", v1::ATTACHMENT_STATE_READY));
  List("files none\ndevices none\nsockets none\nkeys none\n", true);
  EXPECT_TRUE(WaitDifference("engine-0", false));
  host_.RestartEngine();
  EXPECT_TRUE(WaitState("a", v1::ATTACHMENT_STATE_READY));
  EXPECT_FALSE(host_.api().CreateDisk("b", FileDisk(kDiskBytes, host_.MakeFile("disks/b", kDiskBytes))).ok())
      << "but nothing new";
}

TEST_F(Paths, NothingMovesToAnEngineWhoseListsExcludeWhatIsServed) {
  Attach("a", host_.MakeFile("disks/a", kDiskBytes));
  std::ofstream(host_.Path("narrow.conf")) << "files none\ndevices none\nsockets /\nkeys /\n";
  host_.AddEngine("engine-1", {"--paths", host_.Path("narrow.conf")});
  EXPECT_TRUE(WaitDifference("engine-1", true));
  grpc::ClientContext context;
  v1::UpgradeEngineRequest request;
  request.set_name("engines/engine-0");
  request.set_to("engines/engine-1");
  v1::UpgradeEngineResponse response;
  const grpc::Status refused = host_.api().stub().UpgradeEngine(&context, request, &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::PERMISSION_DENIED) << refused.error_message();
  EXPECT_NE(refused.error_message().find("file '" + host_.Path("disks/a") + "' of disks/a"),
            std::string::npos)
      << refused.error_message();
  EXPECT_TRUE(WaitState("a", v1::ATTACHMENT_STATE_READY));
}

}  // namespace
}  // namespace cleat::system_test::paths_test
