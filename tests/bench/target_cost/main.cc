// SPDX-License-Identifier: Apache-2.0
// What a read of 4 KiB costs the engine's target by itself, over RDMA and over TCP: a host in this process offers a batch of reads, one turn of the I/O
// reactor answers it, through transport, queue, pipeline and a disk that does nothing, with counters and stage stamps on. The adapter and the kernel's
// sockets are played by functions of this program, which do as little as they can.
//
// For valgrind, which counts the instructions of BenchTarget::CountedTurn without those functions (scripts/instruction_gate.py). By itself it prints how
// often the clock was looked at, a request.
//
//   target_cost --transport rdma|tcp [--depth 32] [--requests 100000] [--no-flow-control]
#include <arpa/inet.h>
#include <netinet/in.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "base/unique_fd.h"
#include "tests/bench/target_cost/bench_target.h"
#include "tests/bench/target_cost/fake_adapter.h"

namespace cleat::bench {
namespace {

struct Arguments {
  std::string transport = "rdma";
  uint32_t depth = 32;
  uint64_t requests = 100'000;
  bool flow_control = true;
};

// A port that nobody has at the moment.
uint16_t FreePort() {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0)
    Fail("no port is free");
  return ntohs(address.sin_port);
}

void Run(const Arguments& arguments, BenchTarget& target, BenchHost& host) {
  host.Connect(target, arguments.flow_control);
  const uint64_t readings = target.clock().readings();
  uint64_t done = 0, turns = 0;
  while (done < arguments.requests) {
    host.SendReads(arguments.depth);
    for (uint32_t answered = 0; answered < arguments.depth; ++turns) {
      target.CountedTurn();
      answered += host.TakeAnswers();
    }
    done += arguments.depth;
  }
  std::printf("{\"requests\": %llu, \"turns\": %llu, \"clock_readings\": %.3f}\n",
              static_cast<unsigned long long>(done), static_cast<unsigned long long>(turns),
              static_cast<double>(target.clock().readings() - readings) / static_cast<double>(done));
}

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app(
      "Reads of a disk that does nothing from the engine's target, in a loop: what one costs the target.");
  app.add_option("--transport", arguments.transport)
      ->check(CLI::IsMember({"rdma", "tcp"}))
      ->capture_default_str();
  app.add_option("--depth", arguments.depth, "Reads a turn")
      ->check(CLI::Range(1, 127))
      ->capture_default_str();
  app.add_option("--requests", arguments.requests)->capture_default_str();
  app.add_flag("!--no-flow-control", arguments.flow_control,
               "The host does without the head of its queue: over TCP success goes with the data");
  CLI11_PARSE(app, argc, argv);
  spdlog::set_level(spdlog::level::warn);
  FakeAdapter adapter;
  const bool is_rdma = arguments.transport == "rdma";
  const uint16_t port = is_rdma ? 4420 : FreePort();
  BenchTarget target(
      (is_rdma ? "rdma://" + std::string(kFakeAddress) : "127.0.0.1") + ":" + std::to_string(port),
      MakeFakeLibrary(adapter));
  const auto host = is_rdma ? MakeRdmaHost(adapter) : MakeTcpHost(port);
  Run(arguments, target, *host);
  return 0;
}

}  // namespace
}  // namespace cleat::bench

int main(int argc, char** argv) {
  return cleat::bench::Main(argc, argv);
}
