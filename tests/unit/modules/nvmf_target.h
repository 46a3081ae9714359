// SPDX-License-Identifier: Apache-2.0
// A small NVMe/TCP target for the tests of the initiator: real sockets on the loopback, a thread a connection that blocks, a namespace in
// memory. It puts its bytes together itself, by the offsets of the specifications' figures, and shares no code with src/nvme, so that an
// offset that is wrong there is wrong against this one; nor does its side of authentication (tests/unit/nvme/auth/controller.h).
//
// The target misbehaves on demand (Faults). What it got is counted, and can be waited for: no test looks at a clock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/nvme/auth/controller.h"
#include "tests/unit/nvme/host/reservation_target.h"

namespace cleat::test {

class NvmfTarget {
 public:
  static constexpr uint32_t kNsid = 7;
  static constexpr uint32_t kBlockBytes = 512;
  static constexpr const char* kSubsystem = "nqn.2016-06.io.spdk:test-subsystem";
  static constexpr const char* kDiscovery = "nqn.2014-08.org.nvmexpress.discovery";  // answered too
  static constexpr std::array<uint8_t, 16> kUuid = {0x5a, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  static constexpr std::array<uint8_t, 16> kNguid = {0x77, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1};

  struct Options {
    uint64_t size_bytes = uint64_t{8} << 20;
    uint8_t mdts = 5;                    // 128 KiB
    uint32_t capsule_data_bytes = 8192;  // of I/O queues
    uint32_t r2t_bytes = 65536;          // the most that one R2T asks for
    uint32_t c2h_bytes = 48 * 1024;      // the most that one C2HData brings
    uint32_t h2c_bytes_max = 16384;      // MAXH2CDATA
    bool digests = true;                 // granted when asked for
    bool success_flag = false;           // reads end with their data, without a capsule
    bool write_cache = true;             // a volatile one
    bool write_zeroes = true;            // the command is there
    bool ana = false;                    // says how good a way it is (Faults::ana_state)
    bool reservations = false;           // the namespace takes reservations
    uint16_t command_quiesce_ms = 0;     // CQT; it does not do what that promises
    bool chap = false;                   // knows DH-HMAC-CHAP, with kHostSecret and kOwnSecret
    bool strict = false;                 // also checks what no initiator under test does wrong
  };
  // As the host has them.
  static constexpr const char* kHostSecret = nvme::auth::kTestSecrets[1].text;
  static constexpr const char* kOwnSecret = nvme::auth::kTestSecrets[3].text;

  // Any of them may change at any time.
  struct Faults {
    std::atomic<bool> never_icresp{false};
    std::atomic<bool> bytewise{false};           // each byte that it sends is a system call
    std::atomic<bool> wrong_data_digest{false};  // of data to the host
    std::atomic<bool> wrong_header_digest{false};
    std::atomic<bool> lose_writes{false};  // answered, not stored
    std::atomic<bool> lose_write{false};   // likewise, the next one alone
    std::atomic<bool> wrong_reads{false};  // a byte of what I/O queues read is another one
    std::atomic<bool> cut_in_data{false};  // the connection is closed in the midst of data to the host
    std::atomic<bool> mute_io{false};      // commands of I/O queues are read, not executed, and not answered
    std::atomic<bool> mute_r2t{false};     // writes that need R2T get none
    std::atomic<bool> cut_io{false};  // the next command of an I/O queue ends its connection, not executed
    std::atomic<bool> mute_writes{false};   // as mute_io, but all else is served
    std::atomic<bool> refuse_host{false};   // Connect: this host is not allowed
    std::atomic<bool> refuse_queue{false};  // the next Connect of an I/O queue: the controller is busy
    std::atomic<bool> detached{false};      // the namespace is not there for this host
    std::atomic<bool> write_protected{false};
    std::atomic<uint64_t> shows_bytes{0};          // 0: all of the namespace; else it knows of so many alone
    std::atomic<bool> write_cache_appears{false};  // to controllers from now on
    std::atomic<uint32_t> io_queues{8};            // granted
    std::atomic<bool> asks_on_admin{false};  // Connect: authentication is required on this kind of queue
    std::atomic<bool> asks_on_io{false};
    std::atomic<bool> other_host_secret{false};  // it has another one than the host
    std::atomic<bool> other_own_secret{false};
    std::atomic<bool> mute_chap{false};     // its messages of authentication never come
    std::atomic<bool> cut_in_chap{false};   // the connection is closed as soon as the host has its challenge
    std::atomic<uint8_t> chap_group{0};     // the Diffie-Hellman group that it chooses
    std::atomic<bool> mute_log{false};      // pages of the discovery log are not answered
    std::atomic<bool> changing_log{false};  // it has another generation each time
    std::atomic<uint64_t> log_records{2};   // that it says it has, of which the first two are there
    std::atomic<uint8_t> log_transport{3};  // of the first record (TRTYPE): TCP
    std::atomic<uint8_t> ana_state{1};  // ANA: 1 optimized, 2 non-optimized, 3 inaccessible: I/O is refused
  };
  struct Counts {
    std::atomic<uint32_t> ic_requests{0};
    std::atomic<uint32_t> accepted{0};      // connections
    std::atomic<uint32_t> admin_queues{0};  // connected
    std::atomic<uint32_t> discoveries{0};   // of these, of the discovery controller
    std::atomic<uint32_t> farewells{0};     // of hosts that told their controller to shut down
    std::atomic<uint32_t> io_queues{0};
    std::atomic<uint32_t> io_commands{0};  // received
    std::atomic<uint32_t> muted{
        0};  // received, and neither executed nor answered (Faults::mute_io, mute_writes)
    std::atomic<uint32_t> reads{0};  // executed
    std::atomic<uint32_t> writes{0};
    std::atomic<uint32_t> r2t_writes{0};
    std::atomic<uint32_t> zeroes{0};
    std::atomic<uint32_t> discards{0};
    std::atomic<uint32_t> flushes{0};
    std::atomic<uint32_t> conflicts{0};       // writes of hosts that are no registrants
    std::atomic<uint32_t> refused{0};         // as the ANA state is inaccessible
    std::atomic<uint32_t> challenges{0};      // given
    std::atomic<uint32_t> accepted_hosts{0};  // queues whose host has proved itself
    std::atomic<uint32_t> proofs{0};          // queues whose host has accepted its own
    std::atomic<uint32_t> too_early{0};       // other commands, before the authentication that was required
    std::atomic<uint32_t> keep_alives{0};
    std::atomic<uint32_t> digest_errors{0};  // in what the host sent
    std::atomic<uint64_t> longest_bytes{0};  // of reads and writes
  };

  NvmfTarget() : NvmfTarget(Options{}) {}
  explicit NvmfTarget(const Options& options) : NvmfTarget(options, nullptr) {}
  // Another way to the namespace of `beside`, which lives longer: with connections, faults and counts of its own.
  NvmfTarget(const Options& options, const NvmfTarget* beside);
  ~NvmfTarget();
  NvmfTarget(const NvmfTarget&) = delete;
  NvmfTarget& operator=(const NvmfTarget&) = delete;

  uint16_t port() const { return port_; }
  // Stop: nobody listens and no connection is left; Start: again on the same port, with what the namespace held.
  void Stop();
  void Start();
  // Ends all connections, and goes on listening.
  void CutAll();

  Faults faults;
  Counts counts;
  // A copy of what the namespace holds.
  std::vector<uint8_t> Read(uint64_t offset, uint64_t bytes);
  // Makes the namespace larger.
  void Grow(uint64_t size_bytes);
  // Tells each controller's host that the namespace has changed, if the host has asked to be told.
  void NotifyNamespace() { Notify(0x00040002); }
  void NotifyAna() { Notify(0x000c0302); }
  // The discovery log says that it has so many records from now on, and hosts are told.
  void ChangeLog(uint64_t records);
  // The namespace.
  void Write(uint64_t offset, std::span<const uint8_t> data);
  // Its reservations: `look` at them, or change them, while no command is executed.
  void Reservations(const std::function<void(nvme::host::reservation_test::ReservationTarget&)>& look) {
    const std::lock_guard lock(store_->mutex);
    look(store_->reservations);
  }

 private:
  struct Session;
  struct Store {
    std::mutex mutex;
    std::vector<uint8_t> bytes;                                    // under mutex
    nvme::host::reservation_test::ReservationTarget reservations;  // likewise
    std::atomic<uint64_t> size_bytes{0};
  };
  void Notify(uint32_t event);
  void Accept();
  void JoinAll();
  void Reap();

  const Options options_;
  uint16_t port_ = 0;
  std::atomic<int> listener_{-1};
  std::thread acceptor_;
  const std::shared_ptr<Store> store_;
  std::mutex mutex_;  // of what follows
  std::list<std::unique_ptr<Session>> sessions_;
  uint16_t next_controller_ = 1;
  std::map<uint16_t, std::array<uint8_t, 16>> hosts_;  // of controllers
  uint64_t ana_changes_ = 1;
  uint64_t log_generation_ = 1;  // of the discovery log
  bool stopping_ = false;
};

}  // namespace cleat::test
