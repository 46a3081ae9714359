// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <array>
#include <optional>
#include <utility>

#include "ctl/ask.h"
#include "ctl/commands.h"
#include "ctl/nvmf_secrets.h"
#include "ctl/secret_file.h"
#include "ctl/subsystem_discovery.h"

namespace cleat::ctl {
namespace {

using Stub = v1::Cleat::Stub;

constexpr std::array<std::pair<const char*, v1::Reservations>, 3> kReservations{
    {{"off", v1::RESERVATIONS_OFF},
     {"exclusive", v1::RESERVATIONS_EXCLUSIVE},
     {"proof", v1::RESERVATIONS_PROOF}}};

struct SubsystemArguments {
  std::string id;
  std::string nqn;
  std::vector<std::string> addresses;
  std::string discover;            // the discovery service that has the addresses; or where to discover
  std::string discover_transport;  // "", or kOverTcp, kOverRdma
  bool discover_with_secrets = false;
  bool watch = false;
  std::string host_nqn;
  std::string host_id;
  std::optional<bool> header_digest;
  std::optional<bool> data_digest;
  uint32_t keep_alive_ms = 0;
  std::optional<uint32_t> dscp;
  std::string reservations;  // "", or one of kReservations
  std::optional<bool> quiesce_time_proves;
  SecretArguments secrets = SecretsOfSubsystem();
  LabelArguments labels;
  std::string etag;
  int wait_s = -1;
  bool yes = false;
};

std::string SubsystemName(const SubsystemArguments& arguments) {
  return FullName("subsystems/", arguments.id);
}

bool ChangesSubsystem(const SubsystemArguments& arguments) {
  return ChangesAny(arguments.secrets) || !arguments.addresses.empty() || !arguments.host_nqn.empty() ||
         !arguments.host_id.empty() || arguments.header_digest || arguments.data_digest ||
         arguments.keep_alive_ms != 0 || arguments.dscp || !arguments.reservations.empty() ||
         arguments.quiesce_time_proves;
}

// What was given; the rest stays as it is.
Status ChangeSubsystem(const SubsystemArguments& arguments, v1::SubsystemSpec& spec) {
  if (!arguments.nqn.empty()) spec.set_nqn(arguments.nqn);
  if (!arguments.addresses.empty())
    spec.mutable_addresses()->Assign(arguments.addresses.begin(), arguments.addresses.end());
  if (!arguments.host_nqn.empty()) spec.set_host_nqn(arguments.host_nqn);
  if (!arguments.host_id.empty()) spec.set_host_id(arguments.host_id);
  if (arguments.header_digest) spec.set_header_digest(*arguments.header_digest);
  if (arguments.data_digest) spec.set_data_digest(*arguments.data_digest);
  if (arguments.keep_alive_ms != 0) spec.set_keep_alive_ms(arguments.keep_alive_ms);
  if (arguments.dscp) spec.set_dscp(*arguments.dscp);
  for (const auto& [text, reservations] : kReservations) {
    if (arguments.reservations == text) spec.set_reservations(reservations);
  }
  if (arguments.quiesce_time_proves) spec.set_quiesce_time_proves(*arguments.quiesce_time_proves);
  if (arguments.discover_with_secrets && !AnyGiven(arguments.secrets)) {
    return Error(
        ErrorCode::kInvalidArgument,
        "--discover-with-secrets: no secret is given; give --dhchap-secret-file or --tls-psk-file as well");
  }
  return ReadSecrets(arguments.secrets, spec);
}

// With the secrets of `spec`, if there are any.
v1::DiscoverSubsystemsRequest DiscoveryOf(const SubsystemArguments& arguments,
                                          const v1::SubsystemSpec& spec) {
  v1::DiscoverSubsystemsRequest request;
  request.set_address(arguments.discover);
  request.set_host_nqn(arguments.host_nqn);
  request.set_host_id(arguments.host_id);
  if (spec.has_dhchap_secret()) *request.mutable_dhchap_secret() = spec.dhchap_secret();
  if (spec.has_dhchap_ctrl_secret()) *request.mutable_dhchap_ctrl_secret() = spec.dhchap_ctrl_secret();
  if (spec.has_tls_psk()) *request.mutable_tls_psk() = spec.tls_psk();
  return request;
}

ExitCode CreateSubsystem(Client& client, const SubsystemArguments& arguments) {
  v1::CreateSubsystemRequest request;
  request.set_subsystem_id(std::string(IdOf(arguments.id)));
  ChangeLabels(arguments.labels, *request.mutable_subsystem()->mutable_labels());
  v1::SubsystemSpec& spec = *request.mutable_subsystem()->mutable_spec();
  if (auto status = ChangeSubsystem(arguments, spec); !status.ok()) {
    WipeSecrets(spec);
    return Fail(kUsage, status.error().message);
  }
  if (!arguments.discover.empty()) {
    auto discovery = DiscoveryOf(arguments, arguments.discover_with_secrets ? spec : v1::SubsystemSpec());
    const WantedAddresses wanted{
        .nqn = arguments.nqn, .transport = arguments.discover_transport, .with_tls = spec.has_tls_psk()};
    const ExitCode found = DiscoverAddresses(client, discovery, wanted, *spec.mutable_addresses());
    WipeSecrets(discovery);
    if (found != kOk) {
      WipeSecrets(spec);
      return found;
    }
  }
  v1::Subsystem subsystem;
  const ExitCode code = client.Call(&Stub::CreateSubsystem, request, subsystem);
  WipeSecrets(spec);
  return code != kOk ? code : ShowOne(client, subsystem, Detail::kLine);
}

ExitCode DiscoverSubsystems(Client& client, const SubsystemArguments& arguments) {
  v1::SubsystemSpec secrets;
  const Status read = ReadSecrets(arguments.secrets, secrets);
  auto request = DiscoveryOf(arguments, secrets);
  WipeSecrets(secrets);
  ExitCode code = kOk;
  v1::DiscoverSubsystemsResponse response;
  if (!read.ok()) {
    code = Fail(kUsage, read.error().message);
  } else if (arguments.watch) {
    code = WatchDiscovery(client, request);
  } else {
    code = client.Call(&Stub::DiscoverSubsystems, request, response);
  }
  WipeSecrets(request);
  if (code != kOk || arguments.watch) return code;
  client.Show(response, [&] { return DescribeDiscovery(response); });
  return kOk;
}

ExitCode GetSubsystem(Client& client, const SubsystemArguments& arguments) {
  v1::GetSubsystemRequest request;
  request.set_name(SubsystemName(arguments));
  v1::Subsystem subsystem;
  if (const ExitCode code = client.Call(&Stub::GetSubsystem, request, subsystem); code != kOk) return code;
  return ShowOne(client, subsystem, Detail::kAll);
}

ExitCode ListSubsystems(Client& client, const SubsystemArguments&) {
  return ListAll(client, &Stub::ListSubsystems, v1::ListSubsystemsRequest(),
                 &v1::ListSubsystemsResponse::subsystems);
}

// Reads the subsystem, changes what was given, and writes it back, unless somebody else changed it meanwhile.
ExitCode UpdateSubsystem(Client& client, const SubsystemArguments& arguments) {
  v1::Subsystem subsystem;
  if (!ChangesSubsystem(arguments)) {
    const ExitCode code = UpdateLabels(client, &Stub::GetSubsystem, &Stub::UpdateSubsystem,
                                       &v1::UpdateSubsystemRequest::mutable_subsystem,
                                       SubsystemName(arguments), arguments.etag, arguments.labels, subsystem);
    return code != kOk ? code : ShowOne(client, subsystem, Detail::kLine);
  }
  v1::GetSubsystemRequest get;
  get.set_name(SubsystemName(arguments));
  if (const ExitCode code = client.Call(&Stub::GetSubsystem, get, subsystem); code != kOk) return code;
  v1::UpdateSubsystemRequest request;
  *request.mutable_subsystem() = subsystem;
  if (!arguments.etag.empty()) request.mutable_subsystem()->set_etag(arguments.etag);
  v1::SubsystemSpec& spec = *request.mutable_subsystem()->mutable_spec();
  if (auto status = ChangeSubsystem(arguments, spec); !status.ok()) {
    WipeSecrets(spec);
    return Fail(kUsage, status.error().message);
  }
  request.mutable_update_mask()->add_paths("spec");
  if (!arguments.labels.set.empty() || !arguments.labels.remove.empty()) {
    ChangeLabels(arguments.labels, *request.mutable_subsystem()->mutable_labels());
    request.mutable_update_mask()->add_paths("labels");
  }
  const ExitCode code = client.Call(&Stub::UpdateSubsystem, request, subsystem);
  WipeSecrets(spec);
  return code != kOk ? code : ShowOne(client, subsystem, Detail::kLine);
}

ExitCode DeleteSubsystem(Client& client, const SubsystemArguments& arguments) {
  v1::DeleteSubsystemRequest request;
  request.set_name(SubsystemName(arguments));
  request.set_etag(arguments.etag);
  v1::DeleteSubsystemResponse response;
  if (const ExitCode code = CallSparingKey(client, &Stub::DeleteSubsystem, request, response, arguments.yes);
      code != kOk)
    return code;
  return WaitAndShowGone(client, request.name(), arguments.wait_s, response);
}

// --NAME and --no-NAME. CLI11's own flags say "no" where neither was given.
void AddSwitch(CLI::App& command, const std::string& name, std::optional<bool>& value,
               const std::string& description) {
  command.add_flag_callback(
      "--" + name, [&value] { value = true; }, description);
  command.add_flag_callback(
      "--no-" + name, [&value] { value = false; }, "Without these");
}

std::vector<std::string> ReservationTexts() {
  std::vector<std::string> texts;
  for (const auto& [text, reservations] : kReservations) texts.emplace_back(text);
  return texts;
}

void AddHostIdentity(CLI::App& command, SubsystemArguments& arguments) {
  command.add_option("--host-nqn", arguments.host_nqn,
                     "Who this host is to the subsystem, with --host-id; without both, cleatd makes them");
  command.add_option("--host-id", arguments.host_id, "This host's identifier, a UUID");
}

void AddSubsystemSpec(CLI::App& command, SubsystemArguments& arguments) {
  AddHostIdentity(command, arguments);
  AddSwitch(command, "header-digest", arguments.header_digest,
            "Checksums of the headers of what is sent and received");
  AddSwitch(command, "data-digest", arguments.data_digest, "... and of the data");
  command.add_option("--keep-alive-ms", arguments.keep_alive_ms,
                     "After that long without a sign of life the other side is taken for dead: 1000 to "
                     "600000, 5000 by default");
  command
      .add_option("--dscp", arguments.dscp,
                  "The code point (DSCP) that all packets of its connections carry: 0 to 63, 0 by default")
      ->type_name("DSCP");
  command
      .add_option("--reservations", arguments.reservations,
                  "Whether its disks keep other hosts from writing to their namespaces: off (the default), "
                  "exclusive, or proof, which also believes its target that what a broken path left is over: "
                  "only of targets that docs/nvmeof.md names for it")
      ->check(CLI::IsMember(ReservationTexts()))
      ->type_name("off|exclusive|proof");
  AddSwitch(
      command, "quiesce-time-proves", arguments.quiesce_time_proves,
      "Its target promises that what a broken path left is over once its Command Quiesce Time has passed: "
      "only of targets that docs/nvmeof.md names for it");
  AddSecrets(command, arguments.secrets);
}

CLI::Option* AddAddress(CLI::App& command, SubsystemArguments& arguments, const std::string& more) {
  return command
      .add_option(
          "--address", arguments.addresses,
          "Where a port of it is: 10.0.0.1:4420 or [fd00::1]:4420 over NVMe/TCP, rdma://10.0.0.1:4420 or "
          "rdma://[fd00::1]:4420 over NVMe/RDMA, numbers alone. The port is 4420 where none is given. With "
          ",from=10.0.0.9 behind it, its connections "
          "come from that address of this host. " +
              more)
      ->allow_extra_args(false)
      ->type_name("ADDRESS");
}

void AddDiscover(CLI::App& subsystem, Globals& globals,
                 const std::shared_ptr<SubsystemArguments>& arguments) {
  CLI::App* discover =
      AddCommand(subsystem, "discover", "Show what an NVMe-oF discovery service has for this host",
                 "cleatctl subsystem discover --address 10.0.0.1\n"
                 "cleatctl subsystem discover --address 10.0.0.1 --watch\n"
                 "cleatctl subsystem discover --address rdma://10.0.0.1:4420\n"
                 "cleatctl subsystem create array1 --nqn nqn.2014-08.org.example:array1 --discover 10.0.0.1");
  discover
      ->add_option("--address", arguments->discover,
                   "Where the service is: 10.0.0.1:8009 or [fd00::1]:8009, over RDMA rdma://10.0.0.1:8009, "
                   "numbers alone; the port is 8009 where none is given")
      ->required()
      ->type_name("ADDRESS");
  AddHostIdentity(*discover, *arguments);
  AddSecrets(*discover, arguments->secrets);
  discover->add_flag("--watch", arguments->watch,
                     "Stay, and show what has come, gone and changed each time that the service tells of it, "
                     "until interrupted");
  OnRun(*discover, globals, arguments, DiscoverSubsystems);
}

// One of the two is needed.
void AddWhere(CLI::App& create, SubsystemArguments& arguments) {
  CLI::App* where = create.add_option_group("where", "Where it is");
  AddAddress(*where, arguments, "Given again for each port");
  CLI::Option* discover =
      where
          ->add_option("--discover", arguments.discover,
                       "A discovery service, as 10.0.0.1:8009 or rdma://10.0.0.1:8009: "
                       "all NVMe/TCP and NVMe/RDMA ports that it has for the NQN, as they "
                       "are now")
          ->type_name("ADDRESS");
  where->require_option(1);
  create
      .add_option(
          "--discover-transport", arguments.discover_transport,
          "Of what the service has, only what is reached by this one: tcp or rdma. Both unless it is said")
      ->check(CLI::IsMember({kOverTcp, kOverRdma}))
      ->type_name("tcp|rdma")
      ->needs(discover);
  create
      .add_flag("--discover-with-secrets", arguments.discover_with_secrets,
                "The discovery service is asked with the secrets that are given for the subsystem; without, "
                "in plain text and without authentication")
      ->needs(discover);
}

}  // namespace

void AddSubsystemCommands(CLI::App& app, Globals& globals) {
  CLI::App* subsystem =
      AddCommand(app, "subsystem",
                 "NVMe-oF subsystems that have disks: create, list, get, update, delete, discover", "");
  subsystem->require_subcommand(1);
  const auto arguments = std::make_shared<SubsystemArguments>();
  constexpr const char* kWhich = "ID or subsystems/ID";

  CLI::App* create = AddCommand(
      *subsystem, "create", "Make an NVMe-oF subsystem known, for disks to be made of its namespaces",
      "cleatctl subsystem create array1 --nqn nqn.2014-08.org.example:array1 --address 10.0.0.1:4420 "
      "--address 10.0.1.1:4420\n"
      "cleatctl subsystem create array2 --nqn nqn.2014-08.org.example:array2 --address rdma://10.0.2.1 "
      "--address 10.0.0.2\n"
      "cleatctl subsystem create array3 --nqn nqn.2014-08.org.example:array3 --address "
      "10.0.0.1,from=10.0.0.9 --address 10.0.1.1,from=10.0.1.9 --dscp 26\n"
      "cleatctl disk create root --size 10G --nvme-tcp array1 --namespace "
      "4c0f7d1e-8a55-4d0b-9a53-0b6b0f4d2f11");
  create->add_option("ID", arguments->id, "Its id: small letters, digits, dashes; a letter first")
      ->required();
  create->add_option("--nqn", arguments->nqn, "Its NVMe qualified name")->required();
  AddWhere(*create, *arguments);
  AddSubsystemSpec(*create, *arguments);
  AddLabels(*create, arguments->labels);
  OnRun(*create, globals, arguments, CreateSubsystem);

  AddDiscover(*subsystem, globals, arguments);

  CLI::App* list = AddCommand(*subsystem, "list", "Show all subsystems", "cleatctl subsystem list");
  OnRun(*list, globals, arguments, ListSubsystems);

  CLI::App* get = AddCommand(*subsystem, "get", "Show a subsystem", "cleatctl subsystem get array1");
  get->add_option(kSubsystemArgument, arguments->id, kWhich)->required();
  OnRun(*get, globals, arguments, GetSubsystem);

  CLI::App* update =
      AddCommand(*subsystem, "update",
                 "Change a subsystem's labels; its addresses, DSCP, reservations and secrets while no disk "
                 "of it is attached; "
                 "without disks, all but its NQN",
                 "cleatctl subsystem update array1 --address 10.0.0.1:4420 --address 10.0.1.1:4420\n"
                 "nvme gen-dhchap-key | cleatctl subsystem update array1 --dhchap-secret-file -\n"
                 "cleatctl subsystem update array1 --label site=b");
  update->add_option(kSubsystemArgument, arguments->id, kWhich)->required();
  AddAddress(*update, *arguments, "Those that are given replace the present ones");
  AddSubsystemSpec(*update, *arguments);
  AddRemoveSecrets(*update, arguments->secrets);
  AddLabels(*update, arguments->labels);
  AddRemoveLabels(*update, arguments->labels);
  AddEtag(*update, arguments->etag);
  OnRun(*update, globals, arguments, UpdateSubsystem);

  CLI::App* remove = AddCommand(*subsystem, "delete", "Forget a subsystem without disks",
                                "cleatctl subsystem delete array1");
  remove->add_option(kSubsystemArgument, arguments->id, kWhich)->required();
  AddEtag(*remove, arguments->etag);
  AddWait(*remove, arguments->wait_s, "it is gone");
  remove->add_flag("-y,--yes", arguments->yes, "Destroy its secrets, if cleatd has any, without asking");
  OnRun(*remove, globals, arguments, DeleteSubsystem);
}

}  // namespace cleat::ctl
