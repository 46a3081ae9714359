// SPDX-License-Identifier: Apache-2.0
// libibverbs and librdmacm, loaded when the first adapter is asked for: a process that has no RDMA needs neither, nor any adapter's driver. What is
// inline in their headers (ibv_post_send, ibv_poll_cq, ibv_alloc_mw) goes through the adapter's own functions and is not listed here.
//
// Any thread. Both stay loaded for as long as the process lives. Sources: verbs.h and rdma_cma.h of rdma-core; the versions of symbols are those of its
// libibverbs.map and librdmacm.map.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <memory>

#include "base/result.h"

namespace cleat::rdma {

struct Library {
  // libibverbs
  decltype(&::ibv_query_device) query_device = nullptr;
  decltype(&::ibv_alloc_pd) alloc_pd = nullptr;
  decltype(&::ibv_dealloc_pd) dealloc_pd = nullptr;
  decltype(&::ibv_reg_mr) reg_mr = nullptr;
  decltype(&::ibv_dereg_mr) dereg_mr = nullptr;
  decltype(&::ibv_create_comp_channel) create_comp_channel = nullptr;
  decltype(&::ibv_destroy_comp_channel) destroy_comp_channel = nullptr;
  decltype(&::ibv_create_cq) create_cq = nullptr;
  decltype(&::ibv_destroy_cq) destroy_cq = nullptr;
  decltype(&::ibv_get_cq_event) get_cq_event = nullptr;
  decltype(&::ibv_ack_cq_events) ack_cq_events = nullptr;
  decltype(&::ibv_create_srq) create_srq = nullptr;
  decltype(&::ibv_destroy_srq) destroy_srq = nullptr;
  decltype(&::ibv_modify_qp) modify_qp = nullptr;
  decltype(&::ibv_get_async_event) get_async_event = nullptr;
  decltype(&::ibv_ack_async_event) ack_async_event = nullptr;
  decltype(&::ibv_event_type_str) event_type_str = nullptr;
  // librdmacm
  decltype(&::rdma_create_event_channel) create_event_channel = nullptr;
  decltype(&::rdma_destroy_event_channel) destroy_event_channel = nullptr;
  decltype(&::rdma_get_cm_event) get_cm_event = nullptr;
  decltype(&::rdma_ack_cm_event) ack_cm_event = nullptr;
  decltype(&::rdma_create_id) create_id = nullptr;
  decltype(&::rdma_destroy_id) destroy_id = nullptr;
  decltype(&::rdma_set_option) set_option = nullptr;
  decltype(&::rdma_bind_addr) bind_addr = nullptr;
  decltype(&::rdma_listen) listen = nullptr;
  decltype(&::rdma_resolve_addr) resolve_addr = nullptr;
  decltype(&::rdma_resolve_route) resolve_route = nullptr;
  decltype(&::rdma_create_qp) create_qp = nullptr;
  decltype(&::rdma_destroy_qp) destroy_qp = nullptr;
  decltype(&::rdma_connect) connect = nullptr;
  decltype(&::rdma_accept) accept = nullptr;
  decltype(&::rdma_reject) reject = nullptr;
  decltype(&::rdma_disconnect) disconnect = nullptr;
};

// Of libraries of these names, as dlopen(3) takes them. kUnavailable: one of them is not there, or lacks a function.
Result<Library> LoadLibraryFrom(const char* ibverbs, const char* rdmacm);
// Loads this machine's libraries. A call that fails is tried again by the next one; after the first success each call returns the same.
Result<const Library*> GetLibrary();

// What people do about an adapter that is not there.
inline constexpr const char* kHowToGetAnAdapter =
    "`rdma link` (iproute2) lists adapters; their driver is a kernel module and a library of the package "
    "ibverbs-providers, and the module rdma_ucm "
    "is needed as well";

struct DestroyChannel {
  const Library* library = nullptr;
  void operator()(rdma_event_channel* channel) const { library->destroy_event_channel(channel); }
};
using EventChannel = std::unique_ptr<rdma_event_channel, DestroyChannel>;
// Whose descriptor does not block.
Result<EventChannel> MakeEventChannel(const Library& library);

// Waits until each event of its own that was taken from its channel is acknowledged. All are acknowledged as they are taken.
struct DestroyId {
  const Library* library = nullptr;
  void operator()(rdma_cm_id* id) const { library->destroy_id(id); }
};
using CmId = std::unique_ptr<rdma_cm_id, DestroyId>;
// Of a reliable connection. `context`: what its events belong to.
Result<CmId> MakeCmId(const Library& library, rdma_event_channel& channel, void* context);

}  // namespace cleat::rdma
