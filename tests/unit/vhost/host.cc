// SPDX-License-Identifier: Apache-2.0
#include "host.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

namespace cleat::vhost::test {

bool WaitFor(const std::function<bool()>& done) {
  const uint64_t end_ns = MonotonicClock().NowNs() + kTestTimeoutNs;
  while (!done()) {
    if (MonotonicClock().NowNs() > end_ns) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

std::vector<std::string> OpenDescriptors() {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;  // the folder's own, too, when it is asked for
    const auto target = std::filesystem::read_symlink(entry.path(), closed);
    if (!closed && target.string().find("/fd") == std::string::npos) found.push_back(target);
  }
  std::sort(found.begin(), found.end());
  return found;
}

// ---- ReactorThread

ReactorThread::ReactorThread(std::string name, uint32_t index) {
  Reactor::Options options;
  options.name = std::move(name);
  options.index = index;
  auto made = Reactor::Make(clock_, options);
  CLEAT_CHECK(made.ok());
  reactor_ = std::move(made).value();
  thread_ = std::thread([this] { reactor_->Run(); });
}

ReactorThread::~ReactorThread() {
  reactor_->Stop();
  thread_.join();
}

void ReactorThread::Call(const std::function<void()>& function) {
  std::promise<void> done;
  reactor_->PostCall([&] {
    function();
    done.set_value();
  });
  done.get_future().get();
}

// ---- TestDisk

class TestChannel final : public block::Channel, public Poller {
 public:
  TestChannel(TestDisk& disk, Reactor& reactor) : disk_(disk), reactor_(reactor) {
    reactor_.AddPoller(*this);
  }
  ~TestChannel() override { reactor_.RemovePoller(*this); }

  void Submit(block::Request& request) override {
    ++disk_.in_storage_;
    held_.PushBack(request);
    reactor_.Activate(*this);
  }
  bool Poll() override {
    if (disk_.held_ || held_.empty()) return false;
    while (block::Request* request = held_.PopFront()) Run(*request);
    return true;
  }
  bool Arm() override { return held_.empty(); }

 private:
  void Run(block::Request& request) {
    uint64_t at = request.offset_bytes;
    if (request.op == block::Op::kRead || request.op == block::Op::kWrite) {
      for (const block::Segment& segment : request.segments) {
        for (uint32_t i = 0; i < segment.length_bytes; ++i, ++at) {
          // A guest hands a page from queue to queue; that it does so in order can't be seen from here.
          const std::atomic_ref<uint8_t> guest(segment.data()[i]);
          if (request.op == block::Op::kRead) {
            guest.store(disk_.bytes_[at].load(std::memory_order_relaxed), std::memory_order_relaxed);
          } else {
            disk_.bytes_[at].store(guest.load(std::memory_order_relaxed), std::memory_order_relaxed);
          }
        }
      }
    }
    --disk_.in_storage_;
    request.Complete(block::IoStatus::kOk);
  }
  TestDisk& disk_;
  Reactor& reactor_;
  block::RequestList held_;
};

TestDisk::TestDisk()
    : block::Device("disk",
                    [] {
                      block::Geometry geometry;
                      geometry.size_bytes = kBytes;
                      geometry.write_cache = true;
                      return geometry;
                    }()),
      bytes_(kBytes) {}

Result<std::unique_ptr<block::Channel>> TestDisk::OpenChannel(Reactor& reactor) {
  return std::unique_ptr<block::Channel>(std::make_unique<TestChannel>(*this, reactor));
}

// ---- Host

Host::Host(uint32_t io_reactors) : control_("control", 100) {
  for (uint32_t i = 0; i < io_reactors; ++i) {
    io_.push_back(std::make_unique<ReactorThread>("io" + std::to_string(i), i));
  }
  auto disk = std::make_unique<TestDisk>();
  disk_ = disk.get();
  auto pipeline = block::Pipeline::Make(std::move(disk), block::AccessMode::kReadWrite);
  CLEAT_CHECK(pipeline.ok());
  pipeline_ = std::move(pipeline).value();
  for (auto& io : io_) channels_[&io->reactor()] = nullptr;
  for (auto& io : io_) {
    io->Call([&] {
      auto channel = pipeline_->OpenChannel(io->reactor());
      CLEAT_CHECK(channel.ok());
      channels_[&io->reactor()] = std::move(channel).value();
    });
  }
}

Host::~Host() {
  for (auto& io : io_) io->Call([&] { channels_[&io->reactor()].reset(); });
}

std::vector<Reactor*> Host::io_reactors() {
  std::vector<Reactor*> reactors;
  for (auto& io : io_) reactors.push_back(&io->reactor());
  return reactors;
}

virtio::BlkModel& Host::AddModel(uint32_t queues, DiskIdentity disk) {
  models_.push_back(std::make_unique<virtio::BlkModel>(
      pipeline_->geometry(), block::AccessMode::kReadWrite, "serial", queues,
      [this, disk](Reactor& reactor) {
        return virtio::DiskChannelRef(channels_.at(&reactor).get(), nullptr, nullptr, disk);
      },
      disk));
  return *models_.back();
}

// ---- PretendLibrary

PretendLibrary::~PretendLibrary() {
  for (std::thread& thread : threads_) thread.join();
}

Result<UniqueFd> PretendLibrary::Connect(const Offer& /*offer*/) {
  if (failing_connects_ > 0) {
    --failing_connects_;
    return Error(ErrorCode::kUnavailable, "busy");
  }
  int pair[2];
  CLEAT_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  threads_.emplace_back([this, fd = pair[0]] { Serve(UniqueFd(fd)); });
  return UniqueFd(pair[1]);
}

void PretendLibrary::Serve(UniqueFd fd) {
  for (;;) {
    Message message;
    iovec io{&message.header, sizeof message.header};
    alignas(cmsghdr) uint8_t control[CMSG_SPACE(kDescriptorsMax * sizeof(int))];
    msghdr header{};
    header.msg_iov = &io;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    const ssize_t got = recvmsg(fd.get(), &header, MSG_CMSG_CLOEXEC);
    if (got <= 0) return;
    EXPECT_EQ(got, static_cast<ssize_t>(sizeof message.header)) << "part of a header";
    if (const cmsghdr* rights = CMSG_FIRSTHDR(&header)) {
      for (size_t i = 0; i < (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
        int passed = -1;
        std::memcpy(&passed, CMSG_DATA(rights) + i * sizeof passed, sizeof passed);
        message.descriptors.emplace_back(passed);
      }
    }
    const size_t size = message.header.size_bytes;
    // librte_vhost reads the payload with one blocking call.
    if (size > 0) {
      EXPECT_EQ(recv(fd.get(), message.payload.data(), size, MSG_DONTWAIT), static_cast<ssize_t>(size))
          << "half a message reached the library";
    }
    ++messages_;
    if (!Answer(fd, message)) return;
  }
}

bool PretendLibrary::Answer(const UniqueFd& fd, const Message& message) {
  const RequestShape* shape = FindRequest(message.header.request);
  EXPECT_NE(shape, nullptr);
  if (message.header.request == refused_) return false;
  EXPECT_FALSE(message.needs_reply()) << shape->name;
  const bool takes_descriptors =
      message.request() == Request::kSetMemTable || message.request() == Request::kSetLogBase;
  EXPECT_TRUE(takes_descriptors || message.descriptors.empty()) << shape->name;
  if (silent_) return true;
  Message reply = MakeAck(message, true);
  switch (message.request()) {
    case Request::kGetVringBase:
      reply.Set(VringState{message.As<VringState>().index, 0xdead});  // the relay has to know better
      break;
    case Request::kSetLogBase:
      reply.header.size_bytes = 0;
      break;
    case Request::kGetFeatures:
    case Request::kGetProtocolFeatures:
    case Request::kGetQueueNum:
    case Request::kGetInflightFd:
    case Request::kSetInflightFd:
    case Request::kGetConfig:
    case Request::kSetConfig:
      ADD_FAILURE() << shape->name << " reached the library";
      break;
    default:
      return true;
  }
  const ssize_t size = static_cast<ssize_t>(sizeof reply.header + reply.header.size_bytes);
  uint8_t bytes[sizeof(MessageHeader) + kPayloadBytesMax];
  std::memcpy(bytes, &reply.header, sizeof reply.header);
  std::memcpy(bytes + sizeof reply.header, reply.payload.data(), reply.header.size_bytes);
  return send(fd.get(), bytes, static_cast<size_t>(size), MSG_NOSIGNAL) == size;
}

// ---- TemporaryDirectory

TemporaryDirectory::TemporaryDirectory() {
  std::string name = "/tmp/cleat-vhost-XXXXXX";
  CLEAT_CHECK(mkdtemp(name.data()) != nullptr);
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

// ---- RunningEndpoint

RunningEndpoint::RunningEndpoint(Host& host, EndpointFactory& factory, virtio::DeviceModel& model,
                                 const std::string& path, SocketMode mode)
    : host_(host) {
  host_.control_thread().Call([&] {
    EndpointOptions options;
    options.name = "controllers/c";
    options.socket_path = path;
    options.mode = mode;
    options.io_reactors = host_.io_reactors();
    auto made = factory.Make(options, model, nullptr);
    ASSERT_TRUE(made.ok()) << made.error().message;
    endpoint_ = std::move(made).value();
    const Status started = endpoint_->Start();
    ASSERT_TRUE(started.ok()) << started.error().message;
  });
}

RunningEndpoint::~RunningEndpoint() {
  Stop();
  host_.control_thread().Call([&] { endpoint_.reset(); });
}

void RunningEndpoint::Stop() {
  host_.control_thread().Await<void>([&] { return endpoint_->Stop(); });
}

Status RunningEndpoint::Yield(uint64_t within_ns) {
  return host_.control_thread().Await<Status>(
      [&] { return endpoint_->Yield(host_.control().now_ns() + within_ns); });
}

EndpointStatus RunningEndpoint::status() {
  EndpointStatus status;
  host_.control_thread().Call([&] { status = endpoint_->status(); });
  return status;
}

bool RunningEndpoint::WaitState(EndpointState state) {
  const bool reached = WaitFor([&] { return status().state == state; });
  if (!reached) {
    const EndpointStatus now = status();
    ADD_FAILURE() << "state " << static_cast<int>(now.state) << ": " << now.message;
  }
  return reached;
}

bool RunningEndpoint::WaitMessage(const std::string& part) {
  const bool reached = WaitFor([&] { return status().message.find(part) != std::string::npos; });
  if (!reached) ADD_FAILURE() << "the message stays '" << status().message << "', without '" << part << "'";
  return reached;
}

}  // namespace cleat::vhost::test
