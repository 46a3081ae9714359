// SPDX-License-Identifier: Apache-2.0
// The subcommands, a file a resource. Each call adds its own to the parser; what they do runs when they are
// parsed.
#pragma once

#include <google/protobuf/repeated_ptr_field.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include "ctl/client.h"
#include "ctl/show.h"
#include "ctl/wait.h"

namespace cleat::ctl {

void AddDiskCommands(CLI::App& app, Globals& globals);
void AddControllerCommands(CLI::App& app, Globals& globals);
void AddAttachmentCommands(CLI::App& app, Globals& globals);
void AddEngineCommands(CLI::App& app, Globals& globals);  // and watch

inline void Print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

// Negative: don't wait.
inline void AddWait(CLI::App& command, int& seconds, const std::string& what) {
  constexpr int kWaitSecondsMax = 86400;
  command.add_flag("--wait{30}", seconds, "Wait until " + what + "; --wait=SECONDS, 30 if not given")
      ->check(CLI::Range(0, kWaitSecondsMax));
  seconds = -1;  // CLI11 makes it 0, which would be a wait without time
}

// All pages as one list. `call` asks for a page, `field` finds the list in it.
template <typename Response, typename Request, typename Call, typename Field>
bool ListAll(Client& client, Request request, Response& all, Call call, Field field) {
  for (;;) {
    grpc::ClientContext context;
    Response page;
    if (!client.Check(call(&context, request, &page))) return false;
    field(all)->MergeFrom(*field(page));
    if (page.next_page_token().empty()) return true;
    request.set_page_token(page.next_page_token());
  }
}

template <typename Response, typename Field>
void PrintAll(const Globals& globals, Response& all, Field field) {
  Print(globals.json ? ToJson(all, true) : TableOf(*field(all)).Rows());
}

}  // namespace cleat::ctl
