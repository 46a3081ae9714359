// SPDX-License-Identifier: Apache-2.0
// The support bundle: what is in the file, what is said to be missing, and that no secret is in it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "ctl/app.h"
#include "ctl/support/bundle.h"
#include "ctl/support/collect.h"
#include "ctl/support/redact.h"
#include "ctl/support/run_program.h"
#include "tests/support/temp_dir.h"

namespace cleat::ctl::support_test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kCanary = "xyzzy-canary";
constexpr const char* kHexKey = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
constexpr const char* kCephKey = "AQDvBhVlAAAAABAAq0b1cO2mCPcqUuB1QsY3Cg==";

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
}

std::string Read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// All that the archive holds, names and contents.
std::string Unpacked(const std::string& archive) {
  std::string all;
  for (const char* mode : {"--list", "--extract"}) {
    const auto tar = RunProgram({"tar", mode, "--gzip", "--to-stdout", "--file=" + archive}, {});
    EXPECT_TRUE(tar.ok() && tar->status == 0) << archive;
    if (tar.ok()) all += tar->output;
  }
  return all;
}

std::vector<std::string> NamesOf(const Bundle& bundle) {
  std::vector<std::string> names;
  for (const Bundle::Part& part : bundle.parts()) names.push_back(part.name);
  return names;
}

class CleatdWithSecrets : public v1::Cleat::Service {
 public:
  grpc::Status ListDisks(grpc::ServerContext*, const v1::ListDisksRequest*,
                         v1::ListDisksResponse* answer) override {
    v1::Disk& disk = *answer->add_disks();
    disk.set_name("disks/a");
    // cleatd answers with neither of the two; the bundle does not rely on it.
    disk.mutable_spec()->mutable_encryption()->set_plain_key(kCanary);
    (*disk.mutable_labels())["db-password"] = kCanary;
    (*disk.mutable_labels())["vm"] = "harmless";
    return grpc::Status::OK;
  }
};

class SupportTest : public ::testing::Test {
 protected:
  SupportTest() {
    std::filesystem::create_directory(folder_ / "etc");
    std::filesystem::create_directory(folder_ / "proc");
    sources_.config_folder = folder_ / "etc";
    sources_.processes = folder_ / "proc";
    sources_.journalctl = folder_ / "journalctl";
    Write(sources_.journalctl,
          "#!/bin/sh\necho 'cleatd: disks/a: attached'\necho 'ceph: key = " + std::string(kCephKey) + "'\n");
    chmod(sources_.journalctl.c_str(), 0700);
    globals_.connection.address = "unix:" + (folder_ / "api.sock");
  }

  void ServeCleatd() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(globals_.connection.address, grpc::InsecureServerCredentials());
    builder.RegisterService(&cleatd_);
    server_ = builder.BuildAndStart();
  }

  test::TempDir folder_;
  SupportSources sources_;
  Globals globals_;
  CleatdWithSecrets cleatd_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(SupportTest, WithoutCleatdTheRestIsThereAndWhatIsMissingIsNamed) {
  Write(sources_.config_folder + "/cleatd.conf", "CLEATD_OPTIONS=--metrics-address 127.0.0.1:9464\n");
  const Bundle bundle = CollectBundle(globals_, sources_);
  EXPECT_THAT(NamesOf(bundle), ::testing::ElementsAre("versions", "config/cleatd.conf", "log"));
  const std::string manifest = bundle.Manifest();
  EXPECT_THAT(manifest, HasSubstr("LEFT OUT\thost/engines.json: cleatd can't be reached"));
  EXPECT_THAT(manifest, HasSubstr("LEFT OUT\thost/stats.json: cleatd does not answer"));
  EXPECT_THAT(manifest, HasSubstr("LEFT OUT\tengines/*-counters.json: no cleat-engine runs here"));
  EXPECT_THAT(manifest, HasSubstr("LEFT OUT\tkeys: never"));
}

TEST_F(SupportTest, WithoutAJournalItSaysSo) {
  sources_.journalctl = folder_ / "none";
  EXPECT_THAT(CollectBundle(globals_, sources_).Manifest(), HasSubstr("LEFT OUT\tlog: "));
  Write(folder_ / "none", "#!/bin/sh\necho no permission\nexit 1\n");
  chmod((folder_ / "none").c_str(), 0700);
  EXPECT_THAT(CollectBundle(globals_, sources_).Manifest(),
              HasSubstr("LEFT OUT\tlog: journalctl ended with 1: no permission"));
}

TEST_F(SupportTest, OneCallThatFailsLeavesTheOthers) {
  ServeCleatd();
  const Bundle bundle = CollectBundle(globals_, sources_);
  EXPECT_THAT(NamesOf(bundle), Contains("host/disks.json"));
  EXPECT_THAT(bundle.Manifest(), HasSubstr("LEFT OUT\thost/pools.json: cleatd: "));
  EXPECT_THAT(bundle.Manifest(), HasSubstr("LEFT OUT\thost/groups.json: cleatd: "));
}

TEST_F(SupportTest, NoSecretIsInTheFile) {
  ServeCleatd();
  const std::string canary = kCanary;
  Write(sources_.config_folder + "/cleatd.conf",
        "CLEATD_OPTIONS=--kek-file /var/lib/cleat/kek --tls-key /etc/credstore/k --metrics-password " +
            canary + "\nCLEAT_API_TOKEN=" + canary + "\nraw " + kHexKey + "\nproxy=http://me:" + canary +
            "@proxy:80/\n-----BEGIN PRIVATE KEY-----\n" + canary +
            "\n-----END PRIVATE KEY-----\nCLEAT_ENGINE_OPTIONS=--cpus 2\n");
  Write(folder_ / "kek", canary);
  Write(sources_.config_folder + "/kek", canary);
  std::filesystem::create_symlink(folder_ / "kek", sources_.config_folder + "/linked.conf");
  setenv("CLEAT_TEST_SECRET", kCanary, 1);
  const std::string archive = folder_ / "bundle.tar.gz";
  const Status written = WriteBundle(CollectBundle(globals_, sources_), archive);
  unsetenv("CLEAT_TEST_SECRET");
  ASSERT_TRUE(written.ok()) << written.error().message;
  const std::string all = Unpacked(archive);
  for (const std::string& secret : {canary, std::string(kHexKey), std::string(kCephKey)}) {
    EXPECT_THAT(all, Not(HasSubstr(secret)));
  }
  // base64 of the canary, as JSON has bytes.
  EXPECT_THAT(all, Not(HasSubstr("eHl6enktY2FuYXJ5")));
  for (const char* harmless :
       {"--kek-file /var/lib/cleat/kek", "--tls-key /etc/credstore/k", "--cpus 2", "\"name\": \"disks/a\"",
        "harmless", "disks/a: attached", "LEFT OUT\tconfig/linked.conf"}) {
    EXPECT_THAT(all, HasSubstr(harmless));
  }
}

// Negative control: the search above finds what nobody redacted.
TEST_F(SupportTest, ASecretThatNobodyTookOutIsFound) {
  Bundle bundle;
  bundle.Add("config/cleatd.conf", "CLEAT_API_TOKEN=" + std::string(kCanary));
  const std::string archive = folder_ / "bundle.tar.gz";
  ASSERT_TRUE(WriteBundle(bundle, archive).ok());
  EXPECT_THAT(Unpacked(archive), HasSubstr(kCanary));
}

TEST_F(SupportTest, TheFileIsItsOwnersAloneAndNoOtherIsOverwritten) {
  Bundle bundle;
  bundle.Add("log", "a line\n");
  bundle.LeaveOut("config", "none here");
  const std::string archive = folder_ / "bundle.tar.gz";
  ASSERT_TRUE(WriteBundle(bundle, archive).ok());
  struct stat file {};
  ASSERT_EQ(stat(archive.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600U);
  const std::string all = Unpacked(archive);
  EXPECT_THAT(all, HasSubstr("cleat-support/log\n"));
  EXPECT_THAT(all, HasSubstr("log\t7 bytes\nLEFT OUT\tconfig: none here\n"));

  Write(folder_ / "mine", "mine");
  const Status refused = WriteBundle(bundle, folder_ / "mine");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(Read(folder_ / "mine"), "mine");
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
    files += entry.is_regular_file();
  EXPECT_EQ(files, 3U);  // journalctl, the bundle, mine: nothing unfinished is left
}

TEST_F(SupportTest, TheCommandMakesItAndDoesNotOverwrite) {
  const std::string archive = folder_ / "bundle.tar.gz";
  const auto run = [&] {
    const char* arguments[] = {"cleatctl",       "--address", globals_.connection.address.c_str(),
                               "support-bundle", "--output",  archive.c_str()};
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int code = ctl::Run(std::size(arguments), arguments);
    const std::string errors = testing::internal::GetCapturedStderr();
    EXPECT_THAT(errors, HasSubstr(code == kOk ? "look through it" : "is there: name another file"));
    EXPECT_EQ(testing::internal::GetCapturedStdout(), code == kOk ? archive + "\n" : "");
    return code;
  };
  EXPECT_EQ(run(), kOk);
  EXPECT_EQ(run(), kUsage);
}

TEST(BundleTest, HasLimits) {
  Bundle bundle;
  bundle.Add("log", "old" + std::string(Bundle::kPartBytesMax - 3, 'x') + "new");
  EXPECT_TRUE(bundle.parts()[0].cut);
  EXPECT_EQ(bundle.parts()[0].text.size(), Bundle::kPartBytesMax);
  EXPECT_THAT(bundle.parts()[0].text.substr(Bundle::kPartBytesMax - 4), "xnew");
  for (size_t i = 1; i <= Bundle::kBytesMax / Bundle::kPartBytesMax; ++i)
    bundle.Add("more", std::string(Bundle::kPartBytesMax, 'x'));
  EXPECT_EQ(bundle.parts().size(), Bundle::kBytesMax / Bundle::kPartBytesMax);
  EXPECT_THAT(bundle.Manifest(), HasSubstr("LEFT OUT\tmore: the bundle would have more than"));
}

TEST(RedactTest, WhatLooksLikeASecretGoesAndTheRestStays) {
  const std::pair<const char*, const char*> cases[] = {
      {"password=hunter2 x", "password=REDACTED"},
      {"  export API_TOKEN=a,b;c d", "  export API_TOKEN=REDACTED"},
      {"passphrase: correct horse battery", "passphrase: REDACTED"},
      {"Nov 25 a host[1]: passphrase: correct horse battery", "Nov 25 a host[1]: passphrase: REDACTED"},
      {"disk a: opened with token=a,b;c for vm1", "disk a: opened with token=REDACTED for vm1"},
      {"{\"db-password\": \"a,b\", \"vm\": \"v\"}", "{\"db-password\": \"REDACTED\", \"vm\": \"v\"}"},
      {"secret: \"a \\\"b\\\" c\", d", "secret: \"REDACTED\", d"},
      {"secret='a b", "secret='REDACTED"},
      {"\"text\": \"{\\\"password\\\": \\\"a b\\\", x}\"",
       "\"text\": \"{\\\"password\\\": \\\"REDACTED\\\", x}\""},
      {"token=/Zk3pQ9", "token=REDACTED"},
      {"token: .hidden", "token: REDACTED"},
      {"--metrics-password \"a b\" --cpus 2", "--metrics-password \"REDACTED\" --cpus 2"},
      {"--api-token=/a,b --cpus 2", "--api-token=REDACTED --cpus 2"},
      {"\"auth_token\": \"abc\",", "\"auth_token\": \"REDACTED\","},
      {"--ceph-key abc --cpus 2", "--ceph-key REDACTED --cpus 2"},
      {"--kek-file /etc/k", "--kek-file /etc/k"},
      {"key: ./k", "key: REDACTED"},
      {"key_file: ./k", "key_file: ./k"},
      {"  key-path = \"/etc/k\"", "  key-path = \"/etc/k\""},
      {"token-file: secret", "token-file: REDACTED"},
      {"keyring = /etc/ceph/ceph.client.a.keyring", "keyring = /etc/ceph/ceph.client.a.keyring"},
      {"--tls-key /etc/k --cpus 2", "--tls-key /etc/k --cpus 2"},
      {"key-encryption keys: loaded: kek1 (from /var/lib/cleat/kek)",
       "key-encryption keys: loaded: kek1 (from /var/lib/cleat/kek)"},
      {"no key is kept here", "no key is kept here"},
      {"\"plain_key\": \"\"", "\"plain_key\": \"\""},
      {"a https://u:p@host/ b", "a https://REDACTED@host/ b"},
      {"0123456789abcdef", "0123456789abcdef"},
      {"x\n\ny", "x\n\ny"},
  };
  for (const auto& [text, redacted] : cases) EXPECT_EQ(Redact(text), redacted);
  EXPECT_EQ(Redact(kHexKey), kRedacted);
  EXPECT_EQ(Redact(kCephKey), kRedacted);
  // base64 that is not padded, of 30 and of 48 bytes; base64url of 28; and text that is none of them.
  for (const char* secret : {"mZ7Qh2rLx0vN5cTgYb8kWq3JdFs1AeUo9PiRtKzM",
                             "w8Jb/3kZp+Qy1VtXn6RfLd0SgHu5Ae7Mc2IoTzYj9KqWxB4rNh/sEvGmPlDiUaCf",
                             "Qx7_dK2-mZ9pVb4Lr8TnWc1YhJ6sGfA3uEoR5i"}) {
    EXPECT_EQ(Redact(std::string("a ") + secret + " b"), "a REDACTED b");
  }
  for (const char* harmless :
       {"/var/lib/cleat/disks/Customer17/database-volume-0001",
        "controllers/VM1234-disk0/attachments/Volume1234-data", "3f2a9c1e-7b4d-4e8f-9a6b-2c5d8e1f0a3b",
        "ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFGHIJKLMNOP",
        "FieldDescriptorOfTheAttachmentStatusInTheController0"}) {
    EXPECT_EQ(Redact(harmless), harmless);
  }
  EXPECT_EQ(Redact("a\n-----BEGIN RSA PRIVATE KEY-----\nabc"), "a\nREDACTED (PEM)\n");
  EXPECT_LT(Redact(std::string(1 << 20, 'x')).size(), kRedactedLineMax + 20);
}

TEST(RunProgramTest, EndsInFourWays) {
  const auto good = RunProgram({"sh", "-c", "echo out; echo err >&2; exit 3"}, {});
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(good->status, 3);
  EXPECT_EQ(good->output, "out\nerr\n");
  EXPECT_EQ(RunProgram({"cleat-no-such-program"}, {}).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(RunProgram({"sleep", "1000"}, {.time = std::chrono::seconds(0)}).error().code,
            ErrorCode::kDeadlineExceeded);
  const auto much = RunProgram({"sh", "-c", "echo first; head -c 1000000 /dev/zero; printf last"},
                               {.output_bytes_max = 100});
  ASSERT_TRUE(much.ok());
  EXPECT_EQ(much->output.size(), 100U);
  EXPECT_TRUE(much->output.ends_with("last"));
}

}  // namespace
}  // namespace cleat::ctl::support_test
