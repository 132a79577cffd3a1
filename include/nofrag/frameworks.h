/* nofrag for frameworks: what an allocator that a framework brings itself needs beyond nofrag.h: pools that
 * are counted and put back, a walk over all memory, news of it as it changes, memory for other processes.
 *
 * Status, threads, fork, exit, versions: as in nofrag.h. Structures begin with struct_size and version.
 * Visitors and listeners run under a lock of nofrag: they must not call nofrag, nor wait for anybody who
 * does; the structures they are given hold during the call.
 */
#ifndef NOFRAG_FRAMEWORKS_H
#define NOFRAG_FRAMEWORKS_H

#include <nofrag/nofrag.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Pools ---- */

/* One more use of the pool, made if it is new, without filling it: nofrag_pool_malloc may allocate from it.
 * Undone by nofrag_pool_release. */
NOFRAG_API nofrag_status nofrag_pool_retain(int device, nofrag_pool pool) NOFRAG_NOEXCEPT;
/* nofrag_malloc_single into one pool, which must exist. */
NOFRAG_API void* nofrag_pool_malloc_single(size_t size, int device, void* stream, nofrag_pool pool)
    NOFRAG_NOEXCEPT;
/* Nonzero: before a request of the default pool fails, free memory of this pool serves it, if it is free
 * for the request's stream. The block then belongs to this pool. */
NOFRAG_API nofrag_status nofrag_pool_lend_when_short(int device,
                                                     nofrag_pool pool,
                                                     int lends) NOFRAG_NOEXCEPT;
/* Gives the idle memory of a released pool back to the driver (that of one in use stays). *given_back, if
 * not NULL, gets the bytes. NOFRAG_INVALID_ARGUMENT if there is no such pool (any more). */
NOFRAG_API nofrag_status nofrag_pool_trim(int device,
                                          nofrag_pool pool,
                                          uint64_t* given_back) NOFRAG_NOEXCEPT;

typedef struct nofrag_pool_block {
  void* address;
  uint64_t requested_size; /* as it was passed to nofrag_pool_malloc */
  void* stream;
} nofrag_pool_block;

/* Makes exactly these the live blocks of a pool in use: all its others are freed, those that are missing
 * are allocated again at their addresses. They must all have been live in the pool at one moment since it
 * was made. All or nothing: NOFRAG_NOT_READY, and nothing has changed, if some place is not free (its block
 * waits for another stream) or not the pool's. NOFRAG_NOT_SUPPORTED without virtual memory. */
NOFRAG_API nofrag_status nofrag_pool_restore(int device,
                                             nofrag_pool pool,
                                             const nofrag_pool_block* blocks,
                                             size_t count) NOFRAG_NOEXCEPT;

/* ---- All memory of a device ---- */

typedef enum nofrag_span_state {
  NOFRAG_SPAN_LIVE = 0,    /* a caller's block */
  NOFRAG_SPAN_KEPT = 1,    /* freed, and kept by a thread for its next requests */
  NOFRAG_SPAN_PENDING = 2, /* freed, but another stream may still touch it */
  NOFRAG_SPAN_FREE = 3,
  NOFRAG_SPAN_UNUSABLE = 4 /* the driver would neither make it usable nor take it back */
} nofrag_span_state;

typedef struct nofrag_span {
  uint32_t struct_size;
  uint32_t version;
  void* address;
  uint64_t size;
  uint64_t requested_size; /* of a live block */
  void* stream;            /* of a live or pending block */
  uint64_t pool_first;
  uint64_t pool_second;
  uint32_t state; /* nofrag_span_state */
  int32_t device;
} nofrag_span;
#define NOFRAG_SPAN_VERSION 1u

typedef void (*nofrag_span_visitor)(const nofrag_span* span, void* user);
/* Visits every mapped byte once, in no order: memory in use at its block's address; free memory, which may
 * be mapped at several, where it was mapped first. The sizes add up to what is reserved (less what is
 * mapped nowhere). Takes as long as there are blocks. Nothing is visited on a device that was not used. */
NOFRAG_API nofrag_status nofrag_walk(int device,
                                     nofrag_span_visitor visitor,
                                     void* user) NOFRAG_NOEXCEPT;
/* The same into an array, for callers that cannot run under a lock. *count is the room in `spans` (0 asks for
 * the number alone) and gets how many there are; NOFRAG_BUFFER_TOO_SMALL if that is more. */
NOFRAG_API nofrag_status nofrag_spans(int device,
                                      nofrag_span* spans,
                                      size_t* count) NOFRAG_NOEXCEPT;

/* Takes in what streams have finished: deferred frees whose work is done are completed. Waits for nothing;
 * does nothing while a pool is being filled. */
NOFRAG_API nofrag_status nofrag_settle(int device) NOFRAG_NOEXCEPT;

/* ---- News ---- */

typedef enum nofrag_memory_event_kind {
  NOFRAG_MEMORY_CREATED = 0,  /* physical memory was taken from the driver: size, allocation */
  NOFRAG_MEMORY_RELEASED = 1, /* and given back */
  NOFRAG_MEMORY_MAPPED = 2, /* can be reached at address; only: there was no other mapping of it */
  NOFRAG_MEMORY_UNMAPPED = 3, /* no longer; only: there is no other mapping left */
  NOFRAG_FREE_DEFERRED =
      4, /* the block at address was freed, but another stream may still touch it;
                               * said inside nofrag_free */
  NOFRAG_FREE_COMPLETED = 5 /* now none can; only for those that were deferred */
} nofrag_memory_event_kind;

typedef struct nofrag_memory_event {
  uint32_t struct_size;
  uint32_t version;
  uint32_t kind; /* nofrag_memory_event_kind */
  int32_t device;
  void* address;
  uint64_t size;
  uint64_t allocation;     /* the physical allocation, as in nofrag_part */
  uint64_t reserved_bytes; /* held from the driver once this has happened */
  uint32_t only;
  uint32_t reserved32;
} nofrag_memory_event;
#define NOFRAG_MEMORY_EVENT_VERSION 1u

typedef void (*nofrag_memory_listener)(const nofrag_memory_event* event, void* user);
/* Told of all devices, in each device's order: first of what there is, then of what happens. One listener
 * a process; NULL ends it. It may be set before anything is used, and starts nothing. */
NOFRAG_API nofrag_status nofrag_set_memory_listener(nofrag_memory_listener listener,
                                                    void* user) NOFRAG_NOEXCEPT;

/* ---- Memory for other processes ---- */

typedef struct nofrag_part {
  uint64_t allocation; /* its name in this process until it is released */
  void* address;       /* where it is mapped, before the block's first byte perhaps */
  uint64_t size;       /* of all of it, whole granules */
} nofrag_part;

/* The physical allocations under the live block that holds `block`, in the order of addresses. *count is
 * the room in `parts` and gets how many there are; NOFRAG_BUFFER_TOO_SMALL if that is more. They stay the
 * block's until it is freed. NOFRAG_NOT_SUPPORTED without virtual memory. */
NOFRAG_API nofrag_status nofrag_parts(const void* block,
                                      nofrag_part* parts,
                                      size_t* count) NOFRAG_NOEXCEPT;
/* A file descriptor of one of them, the caller's to close, which other processes may import. */
NOFRAG_API nofrag_status nofrag_export(const void* block,
                                       uint64_t allocation,
                                       int* descriptor) NOFRAG_NOEXCEPT;
/* Maps what was exported, part after part, at a new address, for all streams of `device`. Descriptors stay
 * the caller's. */
NOFRAG_API nofrag_status nofrag_import(int device,
                                       const int* descriptors,
                                       const uint64_t* sizes,
                                       size_t count,
                                       void** address) NOFRAG_NOEXCEPT;
/* Undoes nofrag_import; waits for the device. NOFRAG_CAPTURING, and nothing was done, while a pool of the
 * device is being filled or a stream that nofrag has seen is captured: such a wait would end the capture.
 * After any failure call it again later: it goes on where it stopped. The memory must not be used from the
 * first call on. */
NOFRAG_API nofrag_status nofrag_close_import(int device, void* address) NOFRAG_NOEXCEPT;

/* Before the first use: memory is made so that nofrag_export can pass it on, unless the configuration says
 * otherwise (shareable_handles). NOFRAG_ALREADY_INITIALIZED if nofrag is in use with memory that cannot be. */
NOFRAG_API nofrag_status nofrag_prefer_exportable(void) NOFRAG_NOEXCEPT;

/* From now on kernels of `peer` may use all memory of `device`. */
NOFRAG_API nofrag_status nofrag_grant_access(int device, int peer) NOFRAG_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
