// SPDX-License-Identifier: Apache-2.0
#include "bare_commands.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/nvme_ioctl.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "modules/nvme/command_entry.h"
#include "nvme/command.h"

namespace cleat {
namespace {

constexpr uint32_t kReadBytes = 4096;

void Check(bool works, const char* what) {
  if (works) return;
  std::fprintf(stderr, "namespace_loop: %s: %s\n", what, std::strerror(errno));
  std::exit(2);
}

// Ends the program when what a call of liburing returned is an error.
void CheckResult(int result, const char* what) {
  errno = result < 0 ? -result : 0;
  Check(result >= 0, what);
}

}  // namespace

BareCommands::BareCommands(const Options& options) : options_(options) {
  const UniqueFd block(open(options.device.c_str(), O_RDONLY | O_CLOEXEC));
  int block_bytes = 0;
  Check(block && ioctl(block.get(), BLKSSZGET, &block_bytes) == 0, "the block device");
  block_bytes_ = static_cast<uint32_t>(block_bytes);
  const std::string node = "/dev/ng" + options.device.substr(std::strlen("/dev/nvme"));
  node_ = UniqueFd(open(node.c_str(), O_RDWR | O_CLOEXEC));
  Check(node_.valid(), "the node for commands");
  const int nsid = ioctl(node_.get(), NVME_IOCTL_ID);
  Check(nsid > 0, "the namespace's number");
  nsid_ = static_cast<uint32_t>(nsid);
  const size_t bytes = size_t{options.depth} * kReadBytes;
  memory_ = static_cast<uint8_t*>(std::aligned_alloc(kReadBytes, bytes));
  std::memset(memory_, 0, bytes);  // its pages are there
  CheckResult(
      io_uring_queue_init(options.depth, &ring_,
                          modules::kCommandRingFlags | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_COOP_TASKRUN),
      "an io_uring");
  const int file = node_.get();
  CheckResult(io_uring_register_files(&ring_, &file, 1), "registering the file");
  if (!options.registered) return;
  const iovec all{memory_,
                  bytes};  // as a guest's memory would be: a large piece, and commands for parts of it
  CheckResult(io_uring_register_buffers(&ring_, &all, 1), "registering the memory");
}

BareCommands::~BareCommands() {
  io_uring_queue_exit(&ring_);
  std::free(memory_);
}

void BareCommands::Begin(uint64_t slot) {
  const uint32_t blocks = kReadBytes / block_bytes_;
  const uint64_t first = random_.Below(options_.bytes / kReadBytes) * blocks;
  const iovec piece{memory_ + slot * kReadBytes, kReadBytes};
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  Check(entry != nullptr, "an entry of the ring");
  const nvme::Command read = nvme::OnBlocks(nvme::Opcode::kRead, nsid_, first, blocks, 0);
  const std::optional<uint16_t> place = options_.registered ? std::optional<uint16_t>(0) : std::nullopt;
  modules::FillCommandEntry(*entry, 0, IOSQE_FIXED_FILE, read, {&piece, 1}, 0, place);
  entry->user_data = slot;
}

void BareCommands::Run(uint64_t requests) {
  uint64_t begun = 0;
  uint64_t done = 0;
  for (; begun < std::min<uint64_t>(options_.depth, requests); ++begun) Begin(begun);
  while (done < requests) {
    CheckResult(io_uring_submit_and_wait(&ring_, 1), "submitting");
    io_uring_cqe* entry = nullptr;
    while (io_uring_peek_cqe(&ring_, &entry) == 0) {
      CheckResult(entry->res, "a read");
      Check(entry->res == 0, "a read's NVMe status");
      const uint64_t slot = entry->user_data;
      io_uring_cqe_seen(&ring_, entry);
      ++done;
      if (begun == requests) continue;
      Begin(slot);
      ++begun;
    }
  }
}

}  // namespace cleat
