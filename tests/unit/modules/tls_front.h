// SPDX-License-Identifier: Apache-2.0
// TLS before an NvmfTarget, for tests: takes connections on the loopback, shakes hands by OpenSSL, and passes on in the clear what comes,
// and encrypted what goes back. A thread a connection. Misbehaves on demand (Faults).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "nvme/tls/psk.h"
#include "tests/unit/nvme/tls/server.h"

namespace cleat::test {

class TlsFront {
 public:
  // Whose connections are taken, by which of the key's identities.
  struct Names {
    const char* psk = kTlsKeys[0];
    std::string host_nqn;
    std::string subsystem_nqn;
    nvme::tls::IdentityVersion identity = nvme::tls::IdentityVersion::kV0;
  };
  // Any of them may change at any time.
  struct Faults {
    std::atomic<bool> bytewise{false};      // each byte to the host is a system call
    std::atomic<bool> mute{false};          // nothing is sent to the host
    std::atomic<bool> deaf{false};          // nothing of the host's is read
    std::atomic<bool> updates_keys{false};  // before each piece of data, and asks for the host's update
    std::atomic<uint8_t> alert{0};          // ends handshakes with it, before a look at the key; 0: does not
    // Behind so many bytes to the host on one connection a byte is changed, or the connection ends.
    std::atomic<uint64_t> change_at{UINT64_MAX};
    std::atomic<uint64_t> cut_at{UINT64_MAX};
  };
  struct Counts {
    std::atomic<uint32_t> accepted{0};
    std::atomic<uint32_t> established{0};
    std::atomic<uint32_t> refused{0};   // whose handshake failed
    std::atomic<uint32_t> alerts{0};    // of Faults::alert
    std::atomic<uint32_t> sends{0};     // of what is due to a host by then; its kernel has them
    std::atomic<uint32_t> goodbyes{0};  // whose host has said the orderly end, or broken a rule of TLS
  };

  // `target_port`: of the target, on the loopback.
  TlsFront(Names names, uint16_t target_port);
  ~TlsFront();
  TlsFront(const TlsFront&) = delete;
  TlsFront& operator=(const TlsFront&) = delete;

  uint16_t port() const { return port_; }
  // Ends all connections, with what each host has been sent, and resets those of hosts that send more.
  void CutAll();

  Faults faults;
  Counts counts;

 private:
  struct Session;
  void Accept();

  const Names names_;
  const uint16_t target_port_;
  uint16_t port_ = 0;
  int listener_ = -1;
  std::mutex mutex_;  // of what follows
  std::list<std::unique_ptr<Session>> sessions_;
  bool stopping_ = false;
  std::thread acceptor_;
};

}  // namespace cleat::test
