// SPDX-License-Identifier: Apache-2.0
// Command lines for exports (run_fixture.h): what cleatd is asked, and what is said where only a part of it could be done.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "ctl/app.h"
#include "ctl/client.h"
#include "fake_cleatd.h"
#include "run_fixture.h"

namespace cleat::ctl::export_commands_test {
namespace {

using fake_cleatd::Refusal;
using run_fixture::Outcome;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kHostOne[] = "nqn.2014-08.org.example:host1";
constexpr char kHostTwo[] = "nqn.2014-08.org.example:host2";
constexpr char kNqn[] = "nqn.2014-08.org.nvmexpress:uuid:0c9ea5e5-3b0d-4b3f-8f4c-3ed1f9a0d0aa";

std::vector<std::string> HostsOf(const v1::ExportSpec& spec) {
  std::vector<std::string> hosts;
  for (const v1::ExportHost& host : spec.hosts()) hosts.push_back(host.nqn());
  return hosts;
}

class ExportCommands : public run_fixture::RunTest {
 protected:
  // A cleatd with an export `db` and a virtio device `vm`.
  ExportCommands() {
    db_.set_name("controllers/db");
    db_.set_etag("7");
    db_.mutable_spec()->set_type(v1::CONTROLLER_TYPE_NVMF);
    db_.mutable_spec()->set_queues(8);
    v1::ExportSpec& exported = *db_.mutable_spec()->mutable_exported();
    exported.set_nqn(kNqn);
    exported.add_addresses("10.0.0.1:4420");
    exported.add_hosts()->set_nqn(kHostOne);
    exported.add_hosts()->set_nqn(kHostTwo);
    (*db_.mutable_labels())["site"] = "b";
    db_.mutable_status()->set_state(v1::CONTROLLER_STATE_READY);
    db_.mutable_status()->set_rings_up(3);
    vm_.set_name("controllers/vm");
    vm_.mutable_spec()->set_type(v1::CONTROLLER_TYPE_BLK);
    vm_.mutable_spec()->set_socket_mode(v1::SOCKET_MODE_CLIENT);
    vm_.mutable_spec()->set_socket_path("/run/vm.sock");
    cleatd_.create_controller = [&](const v1::CreateControllerRequest& request, v1::Controller& controller) {
      EXPECT_EQ(request.controller_id(), "db");
      created_ = request.controller();
      controller = db_;
      return grpc::Status::OK;
    };
    cleatd_.get_controller = [&](const v1::GetControllerRequest& request, v1::Controller& controller) {
      for (const v1::Controller& one : {db_, vm_}) {
        if (one.name() == request.name()) controller = one;
      }
      return controller.name().empty() ? Refusal(grpc::StatusCode::NOT_FOUND, "RESOURCE_NOT_FOUND", "gone")
                                       : grpc::Status::OK;
    };
    cleatd_.list_controllers = [&](const v1::ListControllersRequest&, v1::ListControllersResponse& all) {
      *all.add_controllers() = db_;
      *all.add_controllers() = vm_;
      return grpc::Status::OK;
    };
    cleatd_.update_controller = [&](const v1::UpdateControllerRequest& request, v1::Controller& controller) {
      update_ = request;
      controller = db_;
      return grpc::Status::OK;
    };
    cleatd_.delete_controller = [&](const v1::DeleteControllerRequest& request,
                                    v1::DeleteControllerResponse&) {
      deleted_.push_back(request.name());
      return grpc::Status::OK;
    };
    cleatd_.attach_disk = [&](const v1::AttachDiskRequest& request, v1::Attachment& attachment) {
      EXPECT_EQ(request.parent(), "controllers/db");
      const v1::AttachmentSpec& spec = request.attachment().spec();
      if (spec.disk() == refused_)
        return Refusal(grpc::StatusCode::FAILED_PRECONDITION, "DISK_HAS_WRITER",
                       spec.disk() + " has a writer");
      attached_.push_back(spec.disk() + " " + std::to_string(spec.target()));
      attachment.set_name("controllers/db/attachments/" + std::string(IdOf(spec.disk())));
      return grpc::Status::OK;
    };
    cleatd_.wait = [&](const v1::WaitRequest& request, v1::WaitResponse& response) {
      waited_.push_back(request.name());
      if (request.name() == "controllers/db") *response.mutable_controller() = db_;
      return grpc::Status::OK;
    };
  }

  v1::Controller db_;
  v1::Controller vm_;
  std::string refused_;
  v1::Controller created_;
  v1::UpdateControllerRequest update_;
  std::vector<std::string> attached_;
  std::vector<std::string> waited_;
  std::vector<std::string> deleted_;
};

TEST_F(ExportCommands, MakeOneWithItsDisksInTheirOrder) {
  const Outcome outcome = Ctl({"export",   "create",           "db",       "--disk",           "data",
                               "--disk",   "disks/log",        "--hosts",  kHostOne,           kHostTwo,
                               "--listen", "10.0.0.1",         "--listen", "[::]:4421",        "--queues",
                               "4",        "--group",          "vms",      "--label",          "site=b",
                               "--wait=7", "--standby-listen", "10.0.1.1", "--standby-listen", "10.0.1.2"});
  ASSERT_EQ(outcome.code, kOk) << outcome.err;
  const v1::ControllerSpec& spec = created_.spec();
  EXPECT_EQ(spec.type(), v1::CONTROLLER_TYPE_NVMF);
  EXPECT_EQ(spec.socket_path(), "");
  EXPECT_EQ(spec.socket_mode(), v1::SOCKET_MODE_UNSPECIFIED);
  EXPECT_EQ(spec.queues(), 4U);
  EXPECT_EQ(spec.group(), "groups/vms");
  EXPECT_EQ(spec.exported().nqn(), "");
  EXPECT_THAT(spec.exported().addresses(), ElementsAre("10.0.0.1", "[::]:4421"));
  EXPECT_THAT(spec.exported().standby_addresses(), ElementsAre("10.0.1.1", "10.0.1.2"));
  EXPECT_THAT(HostsOf(spec.exported()), ElementsAre(kHostOne, kHostTwo));
  EXPECT_EQ(created_.labels().at("site"), "b");
  EXPECT_THAT(attached_, ElementsAre("disks/data 0", "disks/log 1"));
  EXPECT_THAT(waited_, ElementsAre("controllers/db/attachments/data", "controllers/db/attachments/log",
                                   "controllers/db"));
  EXPECT_THAT(outcome.out, HasSubstr("NVMF"));
  EXPECT_THAT(outcome.out, HasSubstr("10.0.0.1:4420"));
}

TEST_F(ExportCommands, MakeOneForNobodyAndWithoutDisks) {
  ASSERT_EQ(Ctl({"export", "create", "controllers/db", "--listen", "10.0.0.1", "--nqn", kNqn}).code, kOk);
  EXPECT_EQ(created_.spec().exported().nqn(), kNqn);
  EXPECT_EQ(created_.spec().queues(), 0U) << "cleatd's default";
  EXPECT_EQ(created_.spec().exported().hosts_size(), 0);
  EXPECT_TRUE(attached_.empty());
  EXPECT_TRUE(waited_.empty());
  EXPECT_EQ(Ctl({"export", "create", "db", "--hosts", kHostOne}).code, kUsage) << "nowhere to be reached";
}

TEST_F(ExportCommands, ADscpIsGivenAndShownOfExportsAlone) {
  ASSERT_EQ(Ctl({"export", "create", "db", "--listen", "10.0.0.1", "--dscp", "46"}).code, kOk);
  EXPECT_EQ(created_.spec().exported().dscp(), 46U);
  db_.mutable_spec()->mutable_exported()->set_dscp(46);
  EXPECT_THAT(Ctl({"export", "get", "db"}).out, testing::ContainsRegex("dscp +46\n"));
  EXPECT_THAT(Ctl({"controller", "get", "vm"}).out, Not(HasSubstr("dscp  ")));
}

TEST_F(ExportCommands, ADiskThatCantBeAttachedIsNamedWithWhatIsLeft) {
  refused_ = "disks/log";
  const Outcome outcome = Ctl({"export", "create", "db", "--disk", "data", "--disk", "log", "--disk", "more",
                               "--listen", "10.0.0.1", "--wait"});
  EXPECT_EQ(outcome.code, kFailed);
  EXPECT_THAT(outcome.err, HasSubstr("disks/log has a writer"));
  EXPECT_THAT(outcome.err,
              HasSubstr("controllers/db is there, with 1 of 3 disks; what is left: cleatctl attach log db "
                        "--target 1, cleatctl attach more db --target 2"));
  EXPECT_THAT(attached_, ElementsAre("disks/data 0"));
  EXPECT_TRUE(waited_.empty());
}

TEST_F(ExportCommands, ShowExportsAlone) {
  Outcome outcome = Ctl({"export", "list"});
  ASSERT_EQ(outcome.code, kOk) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr(kNqn));
  EXPECT_THAT(outcome.out, HasSubstr("READY  10.0.0.1:4420  2      3"));
  EXPECT_THAT(outcome.out, HasSubstr("site=b"));
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 2) << "a header and one line";
  EXPECT_THAT(outcome.out, Not(HasSubstr("STANDBY LISTEN"))) << "where no export has any";
  db_.mutable_spec()->mutable_exported()->add_standby_addresses("10.0.1.1:4420");
  EXPECT_THAT(Ctl({"export", "list"}).out, HasSubstr("READY  10.0.0.1:4420  10.0.1.1:4420   2      3"));
  EXPECT_THAT(Ctl({"export", "get", "db"}).out, HasSubstr("standby listen  10.0.1.1:4420"));
  outcome = Ctl({"export", "list", "-o", "json"});
  EXPECT_THAT(outcome.out, HasSubstr("controllers/db"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("controllers/vm")));
  outcome = Ctl({"export", "get", "db"});
  EXPECT_THAT(outcome.out, HasSubstr(std::string(kHostOne) + "," + kHostTwo));
  EXPECT_THAT(outcome.out, HasSubstr(kNqn));
  EXPECT_THAT(outcome.out, Not(HasSubstr("memory pinned"))) << "no word of what a guest would have";
  outcome = Ctl({"export", "get", "vm"});
  EXPECT_EQ(outcome.code, kUsage);
  EXPECT_THAT(outcome.err, HasSubstr("controllers/vm is no export, but a virtio device"));
  outcome = Ctl({"controller", "list"});
  EXPECT_THAT(outcome.out, HasSubstr("/run/vm.sock"));
  EXPECT_THAT(outcome.out, HasSubstr("10.0.0.1:4420")) << "all of them";
}

TEST_F(ExportCommands, ChangeTheHosts) {
  ASSERT_EQ(Ctl({"export", "update", "db", "--hosts", kHostTwo}).code, kOk);
  EXPECT_THAT(update_.update_mask().paths(), ElementsAre("spec.exported.hosts"));
  EXPECT_THAT(HostsOf(update_.controller().spec().exported()), ElementsAre(kHostTwo));
  EXPECT_EQ(update_.controller().etag(), "");
  ASSERT_EQ(Ctl({"export", "update", "db", "--no-hosts", "--etag", "5", "--label", "of=ann"}).code, kOk);
  EXPECT_THAT(update_.update_mask().paths(), ElementsAre("spec.exported.hosts", "labels"));
  EXPECT_EQ(update_.controller().spec().exported().hosts_size(), 0);
  EXPECT_EQ(update_.controller().etag(), "5");
  EXPECT_EQ(update_.controller().labels().at("site"), "b") << "what it had stays";
  EXPECT_EQ(update_.controller().labels().at("of"), "ann");
  ASSERT_EQ(Ctl({"export", "update", "db", "--remove-label", "site"}).code, kOk);
  EXPECT_THAT(update_.update_mask().paths(), ElementsAre("labels"));
  EXPECT_EQ(Ctl({"export", "update", "db"}).code, kUsage);
  EXPECT_EQ(Ctl({"export", "update", "db", "--no-hosts", "--hosts", kHostOne}).code, kUsage);
}

TEST_F(ExportCommands, DeleteAnExportAndNothingElse) {
  ASSERT_EQ(Ctl({"export", "delete", "db", "--wait"}).code, kOk);
  EXPECT_THAT(deleted_, ElementsAre("controllers/db"));
  EXPECT_THAT(waited_, ElementsAre("controllers/db"));
  EXPECT_EQ(Ctl({"export", "delete", "vm"}).code, kUsage);
  EXPECT_THAT(deleted_, ElementsAre("controllers/db")) << "a guest's disk stays";
  EXPECT_EQ(Ctl({"export", "delete", "gone"}).code, kOk) << "gone is what was asked for";
}

// ---- Hosts one by one

class ExportHostCommands : public ExportCommands {
 protected:
  // kHostOne has secrets, as answers show them.
  ExportHostCommands() {
    v1::ExportHost& host = *db_.mutable_spec()->mutable_exported()->mutable_hosts(0);
    host.mutable_dhchap_secret()->mutable_wrapped_key()->set_key_encryption_key("0123456789abcdef");
    host.mutable_tls_psk()->mutable_wrapped_key()->set_key_encryption_key("0123456789abcdef");
  }
  std::string WriteFile(const std::string& name, const std::string& text) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << text;
    std::filesystem::permissions(path, std::filesystem::perms::owner_read);
    return path;
  }
  const v1::ExportHost& Host(int number) { return update_.controller().spec().exported().hosts(number); }
};

TEST_F(ExportHostCommands, AHostIsLetInBesideTheOthersWithItsSecretsFromFiles) {
  const std::string file = WriteFile("psk", "NVMeTLSkey-1:01:abc:\n");
  const Outcome added =
      Ctl({"export", "host", "add", "db", "nqn.2014-08.org.example:host3", "--tls-psk-file", file.c_str()});
  ASSERT_EQ(added.code, kOk) << added.err;
  EXPECT_EQ(update_.controller().etag(), "7") << "a change of somebody else's is not lost";
  EXPECT_THAT(update_.update_mask().paths(), ElementsAre("spec.exported.hosts"));
  ASSERT_EQ(update_.controller().spec().exported().hosts_size(), 3);
  EXPECT_EQ(Host(2).nqn(), "nqn.2014-08.org.example:host3");
  EXPECT_EQ(Host(2).tls_psk().plain_key(), "NVMeTLSkey-1:01:abc:");
  EXPECT_FALSE(Host(2).has_dhchap_secret());
  EXPECT_TRUE(Host(0).tls_psk().has_wrapped_key()) << "that it is there is said: it stays";
  EXPECT_THAT(added.out + added.err, Not(HasSubstr("abc")));

  const Outcome again = Ctl({"export", "host", "add", "db", kHostOne});
  EXPECT_EQ(again.code, kFailed);
  EXPECT_THAT(again.err, HasSubstr("lets in " + std::string(kHostOne) + " already"));
}

TEST_F(ExportHostCommands, AnUpdateChangesWhatItSays) {
  const std::string file = WriteFile("chap", "DHHC-1:00:abc:");
  ASSERT_EQ(
      Ctl({"export", "host", "update", "db", kHostOne, "--dhchap-secret-file", file.c_str(), "--no-tls-psk"})
          .code,
      kOk);
  EXPECT_EQ(Host(0).dhchap_secret().plain_key(), "DHHC-1:00:abc:");
  EXPECT_TRUE(Host(0).has_tls_psk());
  EXPECT_EQ(Host(0).tls_psk().key_case(), v1::Secret::KEY_NOT_SET) << "there and empty: removed";
  EXPECT_FALSE(Host(0).has_dhchap_ctrl_secret());
  EXPECT_EQ(Ctl({"export", "host", "update", "db", kHostOne}).code, kUsage);
  const Outcome unknown =
      Ctl({"export", "host", "update", "db", "nqn.2014-08.org.example:x", "--no-tls-psk"});
  EXPECT_EQ(unknown.code, kFailed);
  EXPECT_THAT(unknown.err, HasSubstr("does not let in nqn.2014-08.org.example:x"));
}

TEST_F(ExportHostCommands, OneIsRemovedAndTheOthersStay) {
  ASSERT_EQ(Ctl({"export", "host", "remove", "db", kHostTwo}).code, kOk);
  EXPECT_THAT(HostsOf(update_.controller().spec().exported()), ElementsAre(kHostOne));
  EXPECT_TRUE(Host(0).dhchap_secret().has_wrapped_key());
}

TEST_F(ExportHostCommands, AChangeOfSomebodyElsesIsReadAndTheCommandRepeated) {
  int refusals = 2;
  cleatd_.update_controller = [&](const v1::UpdateControllerRequest& request, v1::Controller& controller) {
    update_ = request;
    controller = db_;
    return refusals-- > 0 ? Refusal(grpc::StatusCode::ABORTED, "ETAG_MISMATCH", "changed") : grpc::Status::OK;
  };
  EXPECT_EQ(Ctl({"export", "host", "remove", "db", kHostTwo}).code, kOk);
  refusals = 1;
  EXPECT_NE(Ctl({"export", "host", "remove", "db", kHostTwo, "--etag", "6"}).code, kOk)
      << "the caller says which state is meant";
  EXPECT_EQ(update_.controller().etag(), "6");
}

TEST_F(ExportHostCommands, TheListSaysWhichSecretsThereAre) {
  const Outcome list = Ctl({"export", "host", "list", "db"});
  ASSERT_EQ(list.code, kOk);
  EXPECT_THAT(list.out, HasSubstr("DHCHAP CTRL SECRET"));
  EXPECT_THAT(list.out, HasSubstr("kept under 0123456789abcdef"));
  EXPECT_THAT(list.out, HasSubstr(kHostTwo));
  EXPECT_EQ(Ctl({"export", "host", "list", "vm"}).code, kUsage) << "it is no export";
}

TEST_F(ExportHostCommands, SecretsAreDestroyedOnlyWhereThatIsMeant) {
  std::vector<bool> spared;
  cleatd_.delete_controller = [&](const v1::DeleteControllerRequest& request, v1::DeleteControllerResponse&) {
    spared.push_back(request.spare_key());
    return request.spare_key() ? Refusal(grpc::StatusCode::FAILED_PRECONDITION, "KEY_NOT_KEPT", "has secrets")
                               : grpc::Status::OK;
  };
  const Outcome asked = Ctl({"export", "delete", "db"});
  EXPECT_NE(asked.code, kOk);
  EXPECT_THAT(asked.err, HasSubstr("--yes"));
  EXPECT_EQ(Ctl({"export", "delete", "db", "--yes"}).code, kOk);
  EXPECT_THAT(spared, ElementsAre(true, false));
}

}  // namespace
}  // namespace cleat::ctl::export_commands_test
