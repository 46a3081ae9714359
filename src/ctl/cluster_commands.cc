// SPDX-License-Identifier: Apache-2.0
#include "ctl/ask.h"
#include "ctl/ceph_key_file.h"
#include "ctl/commands.h"

namespace cleat::ctl {
namespace {

using Stub = v1::Cleat::Stub;

struct ClusterArguments {
  std::string id;
  std::string monitors;
  std::string conf_file;
  std::string user;
  std::string key_file;
  uint32_t images_per_client = 0;
  int connect_timeout_s = 0;
  LabelArguments labels;
  std::string etag;
  int wait_s = -1;
  bool yes = false;
};

std::string ClusterName(const ClusterArguments& arguments) {
  return FullName("clusters/", arguments.id);
}

bool ChangesSpec(const ClusterArguments& arguments) {
  return !arguments.monitors.empty() || !arguments.conf_file.empty() || !arguments.user.empty() ||
         !arguments.key_file.empty() || arguments.images_per_client != 0 || arguments.connect_timeout_s != 0;
}

// What was given; the rest stays as it is.
Status ChangeSpec(const ClusterArguments& arguments, v1::ClusterSpec* spec) {
  if (!arguments.monitors.empty()) spec->set_monitors(arguments.monitors);
  if (!arguments.conf_file.empty()) spec->set_conf_file(arguments.conf_file);
  if (!arguments.user.empty()) spec->set_user(arguments.user);
  if (arguments.images_per_client != 0) spec->set_images_per_client(arguments.images_per_client);
  if (arguments.connect_timeout_s != 0)
    spec->mutable_connect_timeout()->set_seconds(arguments.connect_timeout_s);
  return arguments.key_file.empty() ? Status(Ok{}) : ReadCephKey(arguments.key_file, spec);
}

ExitCode CreateCluster(Client& client, const ClusterArguments& arguments) {
  v1::CreateClusterRequest request;
  request.set_cluster_id(std::string(IdOf(arguments.id)));
  ChangeLabels(arguments.labels, *request.mutable_cluster()->mutable_labels());
  v1::ClusterSpec& spec = *request.mutable_cluster()->mutable_spec();
  if (auto status = ChangeSpec(arguments, &spec); !status.ok()) return Fail(kUsage, status.error().message);
  v1::Cluster cluster;
  const ExitCode code = client.Call(&Stub::CreateCluster, request, cluster);
  WipeCephKey(&spec);
  return code != kOk ? code : ShowOne(client, cluster, Detail::kLine);
}

ExitCode GetCluster(Client& client, const ClusterArguments& arguments) {
  v1::GetClusterRequest request;
  request.set_name(ClusterName(arguments));
  v1::Cluster cluster;
  if (const ExitCode code = client.Call(&Stub::GetCluster, request, cluster); code != kOk) return code;
  return ShowOne(client, cluster, Detail::kAll);
}

ExitCode ListClusters(Client& client, const ClusterArguments&) {
  return ListAll(client, &Stub::ListClusters, v1::ListClustersRequest(), &v1::ListClustersResponse::clusters);
}

// Reads the cluster, changes what was given, and writes it back, unless somebody else changed it meanwhile.
ExitCode UpdateCluster(Client& client, const ClusterArguments& arguments) {
  if (!ChangesSpec(arguments)) {
    v1::Cluster cluster;
    const ExitCode code = UpdateLabels(client, &Stub::GetCluster, &Stub::UpdateCluster,
                                       &v1::UpdateClusterRequest::mutable_cluster, ClusterName(arguments),
                                       arguments.etag, arguments.labels, cluster);
    return code != kOk ? code : ShowOne(client, cluster, Detail::kLine);
  }
  v1::GetClusterRequest get;
  get.set_name(ClusterName(arguments));
  v1::Cluster cluster;
  if (const ExitCode code = client.Call(&Stub::GetCluster, get, cluster); code != kOk) return code;
  v1::UpdateClusterRequest request;
  *request.mutable_cluster() = cluster;
  if (!arguments.etag.empty()) request.mutable_cluster()->set_etag(arguments.etag);
  v1::ClusterSpec& spec = *request.mutable_cluster()->mutable_spec();
  spec.clear_key();
  if (auto status = ChangeSpec(arguments, &spec); !status.ok()) return Fail(kUsage, status.error().message);
  request.mutable_update_mask()->add_paths("spec");
  if (!arguments.labels.set.empty() || !arguments.labels.remove.empty()) {
    ChangeLabels(arguments.labels, *request.mutable_cluster()->mutable_labels());
    request.mutable_update_mask()->add_paths("labels");
  }
  const ExitCode code = client.Call(&Stub::UpdateCluster, request, cluster);
  WipeCephKey(&spec);
  if (code != kOk) return code;
  return WaitAndShow(client, cluster, arguments.wait_s, &v1::WaitResponse::cluster);
}

ExitCode DeleteCluster(Client& client, const ClusterArguments& arguments) {
  v1::DeleteClusterRequest request;
  request.set_name(ClusterName(arguments));
  request.set_etag(arguments.etag);
  v1::DeleteClusterResponse response;
  if (const ExitCode code = CallSparingKey(client, &Stub::DeleteCluster, request, response, arguments.yes);
      code != kOk)
    return code;
  return WaitAndShowGone(client, request.name(), arguments.wait_s, response);
}

void AddSpec(CLI::App& command, ClusterArguments& arguments) {
  command.add_option("--monitors", arguments.monitors,
                     "Where its monitors are, as mon host in a ceph.conf: 10.0.0.1,10.0.0.2");
  command
      .add_option("--conf-file", arguments.conf_file,
                  "A ceph.conf on the host, which engines read: instead of --monitors, or beside it")
      ->type_name(kFileArgument);
  command.add_option("--user", arguments.user, "Whose key it is: cleat for client.cleat");
  command
      .add_option("--key-file", arguments.key_file,
                  "The user's key: a keyring, or what ceph auth get-key prints; without it the conf file's "
                  "keyring. Takes the unix socket; cleatd keeps the key wrapped and never shows it")
      ->type_name(kFileArgument);
  command.add_option("--images-per-client", arguments.images_per_client,
                     "Images that share a connection, 1 to 64; 16 by default");
  AddTime(command, "--connect-timeout", arguments.connect_timeout_s,
          "How long connecting, and each question to the monitors, may take; 30 s by default");
}

}  // namespace

void AddClusterCommands(CLI::App& app, Globals& globals) {
  CLI::App* cluster =
      AddCommand(app, "cluster", "Ceph clusters that have disks: create, list, get, update, delete", "");
  cluster->require_subcommand(1);
  const auto arguments = std::make_shared<ClusterArguments>();
  constexpr const char* kWhich = "ID or clusters/ID";

  CLI::App* create =
      AddCommand(*cluster, "create", "Make a Ceph cluster known, for disks to be made of its images",
                 "ceph auth get client.cleat -o cleat.keyring\n"
                 "cleatctl cluster create ceph1 --monitors 10.0.0.1,10.0.0.2 --user cleat --key-file "
                 "cleat.keyring\n"
                 "cleatctl disk create root --size 10G --rbd ceph1/vms/root");
  create->add_option("ID", arguments->id, "Its id: small letters, digits, dashes; a letter first")
      ->required();
  AddSpec(*create, *arguments);
  AddLabels(*create, arguments->labels);
  OnRun(*create, globals, arguments, CreateCluster);

  CLI::App* list = AddCommand(*cluster, "list", "Show all clusters", "cleatctl cluster list");
  OnRun(*list, globals, arguments, ListClusters);

  CLI::App* get = AddCommand(*cluster, "get", "Show a cluster", "cleatctl cluster get ceph1");
  get->add_option(kClusterArgument, arguments->id, kWhich)->required();
  OnRun(*get, globals, arguments, GetCluster);

  CLI::App* update = AddCommand(
      *cluster, "update", "Change a cluster's labels, or how it is reached by what connects from now on",
      "cleatctl cluster update ceph1 --key-file new.keyring --wait\n"
      "cleatctl cluster update ceph1 --monitors 10.0.0.4,10.0.0.5 --label site=b");
  update->add_option(kClusterArgument, arguments->id, kWhich)->required();
  AddSpec(*update, *arguments);
  AddLabels(*update, arguments->labels);
  AddRemoveLabels(*update, arguments->labels);
  AddEtag(*update, arguments->etag);
  AddWait(*update, arguments->wait_s, "its engines know it");
  OnRun(*update, globals, arguments, UpdateCluster);

  CLI::App* remove =
      AddCommand(*cluster, "delete", "Forget a cluster without disks", "cleatctl cluster delete ceph1");
  remove->add_option(kClusterArgument, arguments->id, kWhich)->required();
  AddEtag(*remove, arguments->etag);
  AddWait(*remove, arguments->wait_s, "it is gone");
  remove->add_flag("-y,--yes", arguments->yes, "Destroy its key, if cleatd has one, without asking");
  OnRun(*remove, globals, arguments, DeleteCluster);
}

}  // namespace cleat::ctl
