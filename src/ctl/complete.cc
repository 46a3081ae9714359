// SPDX-License-Identifier: Apache-2.0
#include "ctl/complete.h"

#include <algorithm>
#include <cstdlib>

#include "ctl/commands.h"
#include "ctl/reasons.h"

namespace cleat::ctl {
namespace {

constexpr std::string_view kFiles = ":files";

bool TakesValue(const CLI::Option& option) {
  return option.get_items_expected_min() > 0;
}

// What kind of value it takes: a kind of commands.h, or anything else.
std::string KindOf(const CLI::Option& option) {
  return option.get_lnames().empty() ? option.get_single_name() : option.get_type_name();
}

// Walks over a command line as the parser does.
class Walk {
 public:
  Walk(const CLI::App& app, Globals& globals) : command_(&app), globals_(globals) {
    AllOptions([&](const CLI::Option& option) {
      if (const char* value = std::getenv(option.get_envname().c_str())) Remember(option, value);
    });
  }

  void Pass(const std::string& word) {
    if (const CLI::Option* option = std::exchange(pending_, nullptr)) return Remember(*option, word);
    if (options_ended_ || !word.starts_with('-') || word == "-") return PassPlain(word);
    if (word == "--") {
      options_ended_ = true;
      return;
    }
    const size_t equals = word.find('=');
    const CLI::Option* option = Find(word.substr(0, equals));
    if (option == nullptr || !TakesValue(*option)) return;
    if (equals == std::string::npos) {
      pending_ = option;
    } else {
      Remember(*option, word.substr(equals + 1));
    }
  }

  // The option whose value comes next, or null.
  const CLI::Option* pending() const { return pending_; }
  const CLI::App& command() const { return *command_; }
  bool options_ended() const { return options_ended_; }
  const std::vector<std::string>& positionals() const { return positionals_; }

  // The positional argument that comes next, or null.
  const CLI::Option* NextPositional() const {
    size_t index = 0;
    for (const CLI::Option* option : command_->get_options()) {
      if (!option->get_positional()) continue;
      if (index++ == positionals_.size() || option->get_expected_max() > 1) return option;
    }
    return nullptr;
  }

  // The options of the command, of its option groups, and of the commands above it.
  template <typename Visit>
  void AllOptions(Visit visit) const {
    for (const CLI::App* app = command_; app != nullptr; app = app->get_parent()) {
      for (const CLI::Option* option : app->get_options()) {
        visit(*option);
      }
      for (const CLI::App* group : app->get_subcommands([](const CLI::App*) { return true; })) {
        if (!group->get_name().empty()) continue;  // a command
        for (const CLI::Option* option : group->get_options()) visit(*option);
      }
    }
  }

  const CLI::Option* Find(const std::string& name) const {
    const CLI::Option* found = nullptr;
    AllOptions([&](const CLI::Option& option) {
      if (found == nullptr && option.check_name(name)) found = &option;
    });
    return found;
  }

 private:
  void PassPlain(const std::string& word) {
    const CLI::App* next = positionals_.empty() ? FindCommand(*command_, word) : nullptr;
    if (next != nullptr) {
      command_ = next;
      return;
    }
    positionals_.push_back(word);
  }

  void Remember(const CLI::Option& option, const std::string& value) {
    const std::string& name = option.get_single_name();
    ConnectionOptions& connection = globals_.connection;
    if (name == "address") connection.address = value;
    if (name == "ca") connection.ca = value;
    if (name == "cert") connection.cert = value;
    if (name == "key") connection.key = value;
  }

  const CLI::App* command_;
  Globals& globals_;
  const CLI::Option* pending_ = nullptr;
  bool options_ended_ = false;
  std::vector<std::string> positionals_;
};

// Of "TEXT:{blk,scsi}", which is how CLI11 tells a choice.
std::vector<std::string> ChoicesOf(const std::string& kind) {
  const size_t open = kind.find('{');
  const size_t close = kind.find('}');
  if (open == std::string::npos || close == std::string::npos) return {};
  return CLI::detail::split(kind.substr(open + 1, close - open - 1), ',');
}

void AddCommands(const CLI::App& command, std::vector<std::string>& found) {
  for (const CLI::App* next : CommandsOf(command)) {
    found.push_back(next->get_name() + "\t" + next->get_description());
  }
}

std::vector<std::string> Values(const CLI::Option& option, const CLI::App& app, const Walk& walk,
                                const FindIds& find_ids) {
  const std::string kind = KindOf(option);
  if (kind == kFileArgument) return {std::string(kFiles)};
  std::vector<std::string> found = ChoicesOf(option.get_type_name());
  if (kind == kReasonArgument) {
    for (const ExplainedReason& reason : AllReasons())
      found.push_back(reason.name + "\t" + reason.info.meaning());
  } else if (kind == kCommandArgument) {
    const CLI::App* command = &app;
    for (const std::string& word : walk.positionals()) {
      const CLI::App* next = FindCommand(*command, word);
      if (next == nullptr) return {};
      command = next;
    }
    AddCommands(*command, found);
  } else if (kind == kDiskArgument || kind == kDeletedDiskArgument || kind == kClusterArgument ||
             kind == kSubsystemArgument || kind == kPoolArgument || kind == kGroupArgument ||
             kind == kControllerArgument || kind == kExportArgument || kind == kEngineArgument ||
             kind == kNameArgument) {
    found = find_ids(kind, "");
  } else if (kind == kWhichArgument && !walk.positionals().empty()) {
    found = find_ids(kind, walk.positionals().back());
  }
  return found;
}

void AddOptions(const Walk& walk, std::vector<std::string>& found) {
  walk.AllOptions([&](const CLI::Option& option) {
    for (const std::string& name : option.get_lnames()) {
      const std::string word = "--" + name;
      const bool there = std::any_of(found.begin(), found.end(), [&](const std::string& other) {
        return other.substr(0, other.find('\t')) == word;
      });
      if (!there) found.push_back(word + "\t" + option.get_description());
    }
  });
}

}  // namespace

std::vector<std::string> Complete(const CLI::App& app, const std::vector<std::string>& words,
                                  Globals& globals, const FindIds& find_ids) {
  Walk walk(app, globals);
  for (size_t i = 0; i + 1 < words.size(); ++i) walk.Pass(words[i]);
  const std::string word = words.empty() ? std::string() : words.back();
  const size_t equals = word.find('=');

  std::vector<std::string> found;
  std::string prefix;  // of the word, before the value
  if (walk.pending() != nullptr) {
    found = Values(*walk.pending(), app, walk, find_ids);
  } else if (!walk.options_ended() && word.starts_with("--") && equals != std::string::npos) {
    prefix = word.substr(0, equals + 1);
    if (const CLI::Option* option = walk.Find(word.substr(0, equals)))
      found = Values(*option, app, walk, find_ids);
  } else if (!walk.options_ended() && word.starts_with('-')) {
    AddOptions(walk, found);
  } else {
    if (walk.positionals().empty()) AddCommands(walk.command(), found);
    if (const CLI::Option* option = walk.NextPositional()) {
      std::vector<std::string> values = Values(*option, app, walk, find_ids);
      found.insert(found.end(), values.begin(), values.end());
    }
  }
  std::vector<std::string> fitting;
  for (const std::string& candidate : found) {
    if (candidate == kFiles) {
      fitting.push_back(candidate);
    } else if ((prefix + candidate).starts_with(word)) {
      fitting.push_back(prefix + candidate);
    }
  }
  return fitting;
}

std::vector<std::string> FindIdsOfCleatd(const Globals& globals, std::string_view kind,
                                         const std::string& parent) {
  constexpr std::chrono::milliseconds kPatience{700};
  const auto deadline = std::chrono::system_clock::now() + kPatience;
  const auto channel = Connect(globals.connection, kPatience);
  if (!channel.ok()) return {};
  const auto stub = v1::Cleat::NewStub(*channel);
  const bool all = kind == kNameArgument;
  std::vector<std::string> found;
  // The first page: nobody reads more than that.
  const auto list = [&](auto method, auto request, auto response, auto field) {
    grpc::ClientContext context;
    context.set_deadline(deadline);
    if (!(stub.get()->*method)(&context, request, &response).ok()) return;
    for (const auto& resource : field(response)) {
      found.push_back(all ? resource.name() : std::string(IdOf(resource.name())));
    }
  };
  if (all || kind == kDiskArgument) {
    list(&v1::Cleat::Stub::ListDisks, v1::ListDisksRequest(), v1::ListDisksResponse(),
         [](auto& r) { return r.disks(); });
  }
  if (kind == kDeletedDiskArgument) {
    v1::ListDisksRequest request;
    request.set_show_deleted(true);
    list(&v1::Cleat::Stub::ListDisks, request, v1::ListDisksResponse(),
         [](auto& r) { return DeletedOf(r.disks()); });
  }
  if (all || kind == kClusterArgument) {
    list(&v1::Cleat::Stub::ListClusters, v1::ListClustersRequest(), v1::ListClustersResponse(),
         [](auto& r) { return r.clusters(); });
  }
  if (all || kind == kSubsystemArgument) {
    list(&v1::Cleat::Stub::ListSubsystems, v1::ListSubsystemsRequest(), v1::ListSubsystemsResponse(),
         [](auto& r) { return r.subsystems(); });
  }
  if (all || kind == kPoolArgument) {
    list(&v1::Cleat::Stub::ListPools, v1::ListPoolsRequest(), v1::ListPoolsResponse(),
         [](auto& r) { return r.pools(); });
  }
  if (all || kind == kGroupArgument) {
    list(&v1::Cleat::Stub::ListGroups, v1::ListGroupsRequest(), v1::ListGroupsResponse(),
         [](auto& r) { return r.groups(); });
  }
  if (all || kind == kControllerArgument) {
    list(&v1::Cleat::Stub::ListControllers, v1::ListControllersRequest(), v1::ListControllersResponse(),
         [](auto& r) { return r.controllers(); });
  }
  if (kind == kExportArgument) {
    list(&v1::Cleat::Stub::ListControllers, v1::ListControllersRequest(), v1::ListControllersResponse(),
         [](auto& r) { return ExportsOf(r.controllers()); });
  }
  if (all || kind == kWhichArgument) {
    v1::ListAttachmentsRequest request;
    request.set_parent(all ? "controllers/-" : FullName("controllers/", parent));
    list(&v1::Cleat::Stub::ListAttachments, request, v1::ListAttachmentsResponse(),
         [](auto& r) { return r.attachments(); });
  }
  if (all || kind == kEngineArgument) {
    list(&v1::Cleat::Stub::ListEngines, v1::ListEnginesRequest(), v1::ListEnginesResponse(),
         [](auto& r) { return r.engines(); });
  }
  return found;
}

}  // namespace cleat::ctl
