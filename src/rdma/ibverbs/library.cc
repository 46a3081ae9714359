// SPDX-License-Identifier: Apache-2.0
#include "rdma/ibverbs/library.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>

#include "base/mutex.h"

namespace cleat::rdma {
namespace {

constexpr const char* kIbverbs = "libibverbs.so.1";
constexpr const char* kRdmacm = "librdmacm.so.1";

// One library. After the first function that is missing it has none.
class Loaded {
 public:
  Loaded(const char* name, const char* package) : name_(name), package_(package) {
    handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) Fail(fmt::format("cannot be loaded: {}", Reason()));
  }

  // A function may be there in several versions, whose types differ: the one that the headers mean is named.
  template <typename Function>
  void Find(const char* symbol, const char* version, Function& function) {
    if (!status_.ok()) return;
    function = reinterpret_cast<Function>(dlvsym(handle_, symbol, version));
    if (function == nullptr) Fail(fmt::format("has no {}@{}", symbol, version));
  }

  const Status& status() const { return status_; }

 private:
  static std::string Reason() {
    const char* reason = dlerror();  // NOLINT(concurrency-mt-unsafe): a thread has its own in glibc
    return reason == nullptr ? "no reason given" : reason;
  }
  void Fail(const std::string& what) {
    status_ =
        Error(ErrorCode::kUnavailable,
              fmt::format("RDMA: the library {} {}: install {} and ibverbs-providers, then see `rdma link`",
                          name_, what, package_));
  }

  const char* name_;
  const char* package_;
  void* handle_ = nullptr;
  Status status_;
};

void FindVerbs(Loaded& from, Library& library) {
  constexpr const char* kFirst = "IBVERBS_1.0";
  constexpr const char* kSecond = "IBVERBS_1.1";
  from.Find("ibv_query_device", kSecond, library.query_device);
  from.Find("ibv_alloc_pd", kSecond, library.alloc_pd);
  from.Find("ibv_dealloc_pd", kSecond, library.dealloc_pd);
  from.Find("ibv_reg_mr", kSecond, library.reg_mr);
  from.Find("ibv_dereg_mr", kSecond, library.dereg_mr);
  from.Find("ibv_create_comp_channel", kFirst, library.create_comp_channel);
  from.Find("ibv_destroy_comp_channel", kFirst, library.destroy_comp_channel);
  from.Find("ibv_create_cq", kSecond, library.create_cq);
  from.Find("ibv_destroy_cq", kSecond, library.destroy_cq);
  from.Find("ibv_get_cq_event", kSecond, library.get_cq_event);
  from.Find("ibv_ack_cq_events", kSecond, library.ack_cq_events);
  from.Find("ibv_create_srq", kSecond, library.create_srq);
  from.Find("ibv_destroy_srq", kSecond, library.destroy_srq);
  from.Find("ibv_modify_qp", kSecond, library.modify_qp);
  from.Find("ibv_get_async_event", kSecond, library.get_async_event);
  from.Find("ibv_ack_async_event", kSecond, library.ack_async_event);
  from.Find("ibv_event_type_str", kSecond, library.event_type_str);
}

void FindManager(Loaded& from, Library& library) {
  constexpr const char* kFirst = "RDMACM_1.0";
  from.Find("rdma_create_event_channel", kFirst, library.create_event_channel);
  from.Find("rdma_destroy_event_channel", kFirst, library.destroy_event_channel);
  from.Find("rdma_get_cm_event", kFirst, library.get_cm_event);
  from.Find("rdma_ack_cm_event", kFirst, library.ack_cm_event);
  from.Find("rdma_create_id", kFirst, library.create_id);
  from.Find("rdma_destroy_id", kFirst, library.destroy_id);
  from.Find("rdma_set_option", kFirst, library.set_option);
  from.Find("rdma_bind_addr", kFirst, library.bind_addr);
  from.Find("rdma_listen", kFirst, library.listen);
  from.Find("rdma_resolve_addr", kFirst, library.resolve_addr);
  from.Find("rdma_resolve_route", kFirst, library.resolve_route);
  from.Find("rdma_create_qp", kFirst, library.create_qp);
  from.Find("rdma_destroy_qp", kFirst, library.destroy_qp);
  from.Find("rdma_connect", kFirst, library.connect);
  from.Find("rdma_accept", kFirst, library.accept);
  from.Find("rdma_reject", kFirst, library.reject);
  from.Find("rdma_disconnect", kFirst, library.disconnect);
}

}  // namespace

Result<Library> LoadLibraryFrom(const char* ibverbs, const char* rdmacm) {
  Library library;
  Loaded verbs(ibverbs, "libibverbs1");
  FindVerbs(verbs, library);
  CLEAT_TRY(verbs.status());
  Loaded manager(rdmacm, "librdmacm1");
  FindManager(manager, library);
  CLEAT_TRY(manager.status());
  return library;
}

Result<const Library*> GetLibrary() {
  static Mutex mutex;
  static const Library* loaded = nullptr;
  MutexLock lock(mutex);
  if (loaded == nullptr) {
    CLEAT_ASSIGN(Library library, LoadLibraryFrom(kIbverbs, kRdmacm));
    loaded = new Library(library);  // for as long as the process lives
  }
  return loaded;
}

Result<EventChannel> MakeEventChannel(const Library& library) {
  rdma_event_channel* made = library.create_event_channel();
  if (made == nullptr) {
    const int error = errno;
    if (error == ENODEV || error == ENOENT || error == ENOSYS || error == EPERM)
      return Error(ErrorCode::kUnavailable,
                   fmt::format("RDMA: this machine has no adapter that can be used: {}", kHowToGetAnAdapter));
    return ErrnoError(error,
                      "RDMA: the kernel's connection manager, /dev/infiniband/rdma_cm, cannot be opened");
  }
  EventChannel channel(made, DestroyChannel{&library});
  const int flags = fcntl(made->fd, F_GETFL);
  if (flags < 0 || fcntl(made->fd, F_SETFL, flags | O_NONBLOCK) < 0)
    return ErrnoError(errno, "RDMA: the descriptor of the connection manager's events");
  return channel;
}

Result<CmId> MakeCmId(const Library& library, rdma_event_channel& channel, void* context) {
  rdma_cm_id* made = nullptr;
  if (library.create_id(&channel, &made, context, RDMA_PS_TCP) != 0)
    return ErrnoError(errno, "RDMA: the kernel's connection manager gives no further identifier");
  return CmId(made, DestroyId{&library});
}

}  // namespace cleat::rdma
