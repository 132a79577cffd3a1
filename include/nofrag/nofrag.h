/* nofrag: GPU memory without fragmentation. The C interface (C11, standard headers only).
 *
 * Status:   calls that can fail return a nofrag_status. Those that return a block return NULL instead;
 *           nofrag_last_error says why, for the calling thread. No call crashes on a wrong device, an
 *           unknown pointer or a double free. Host memory that runs out ends the process.
 * Threads:  every call may be made from any thread at any time, unless it says otherwise.
 * Streams:  a stream is a CUstream or cudaStream_t passed as void*, of the device's primary context
 *           (the CUDA runtime's) or a green context made from it; memory of another context's stream
 *           is never passed on to other streams. NULL is the LEGACY default stream: a program built
 *           for per-thread default streams passes CU_STREAM_PER_THREAD (2) instead. A block belongs to the stream it was allocated on: freed, that stream may reuse it at
 *           once, because its work runs in order. Other streams that used the block must be named by
 *           nofrag_record_stream before it is freed; then its reuse waits for them. Before a stream
 *           is destroyed, nofrag_retire_stream must be called if nofrag has seen it.
 * Start:    the first call that needs the driver starts nofrag with NOFRAG_CONF, NOFRAG_LOG and
 *           NOFRAG_STATS from the environment (docs/options.md). nofrag_init may do so earlier.
 * Fork:     a child of a process that has used nofrag cannot use the GPU. There, every call fails
 *           with NOFRAG_FORKED and changes nothing; the first free says so on stderr.
 * Exit:     nothing is given back when the process ends (the driver does that). From the moment exit
 *           handlers run, frees do nothing and succeed, and every other call fails with
 *           NOFRAG_EXITING. The library stays in memory when dlclose'd.
 * Versions: structures begin with struct_size and version. Fill both by the *_INIT macro. A caller
 *           built against an older or newer header than the library is served the fields both know.
 * Callbacks are called without any lock of nofrag, unless they say otherwise; no C++ exception may
 *           leave one. A failure inside a callback calls no callback of the same kind. Host functions
 *           queued on a stream (cuLaunchHostFunc) must not call nofrag: it may be waiting for them.
 */
#ifndef NOFRAG_NOFRAG_H
#define NOFRAG_NOFRAG_H

#include <stddef.h>
#include <stdint.h>

#include <nofrag/stats.h>
#include <nofrag/version.h>

#if defined(__GNUC__)
#define NOFRAG_API __attribute__((visibility("default")))
#else
#define NOFRAG_API
#endif

#ifdef __cplusplus
#define NOFRAG_NOEXCEPT noexcept
extern "C" {
#else
#define NOFRAG_NOEXCEPT
#endif

/* Values never change their meaning; new ones are added at the end. */
typedef enum nofrag_status {
  NOFRAG_OK = 0,
  NOFRAG_OUT_OF_MEMORY = 1,        /* the device has no memory left for this request */
  NOFRAG_LIMIT = 2,                /* a limit set here refused it (nofrag_set_limit, options) */
  NOFRAG_INVALID_ARGUMENT = 3,     /* no such device or pool, null pointer, bad struct_size, ... */
  NOFRAG_UNKNOWN_POINTER = 4,      /* not a live block of nofrag: foreign, or freed already */
  NOFRAG_NOT_SUPPORTED = 5,        /* this driver, device or library version cannot do it */
  NOFRAG_NOT_READY = 6,            /* asked-for work is still running */
  NOFRAG_NOT_INITIALIZED = 7,      /* the driver could not be opened */
  NOFRAG_DRIVER_FAILURE = 8,       /* the driver failed otherwise; the message has its number */
  NOFRAG_CAPTURING = 9,            /* not allowed while the stream is being captured */
  NOFRAG_ALREADY_INITIALIZED = 10, /* nofrag_init came after first use, or twice */
  NOFRAG_BAD_CONFIG = 11,          /* an unknown option or a bad value; the message names it */
  NOFRAG_FORKED = 12,              /* child of a process that used nofrag */
  NOFRAG_EXITING = 13,             /* the process is running its exit handlers */
  NOFRAG_BUFFER_TOO_SMALL = 14     /* the text was cut; *needed says how much room it takes */
} nofrag_status;

/* "out of memory", ... Static; never NULL. */
NOFRAG_API const char* nofrag_status_name(nofrag_status status) NOFRAG_NOEXCEPT;

/* What made the last failing call of this thread fail: its status and, in *message if message is not NULL, a
 * sentence; after an allocation that ended out of memory three lines more: its root cause, why, and what to
 * do. The text belongs to the library and holds until this thread's next call that fails. Calls that succeed
 * leave both as they were, with one exception: after an allocation of size 0 the status is NOFRAG_OK and
 * the sentence empty. */
NOFRAG_API nofrag_status nofrag_last_error(const char** message) NOFRAG_NOEXCEPT;

/* "0.1.0": the library's version, not the header's. Static. */
NOFRAG_API const char* nofrag_version(void) NOFRAG_NOEXCEPT;

/* ---- Start ---- */

typedef struct nofrag_config {
  uint32_t struct_size;
  uint32_t version;
  const char* conf;     /* options as in NOFRAG_CONF, stronger than the environment; NULL = none */
  uint64_t reserved[6]; /* zero */
} nofrag_config;
#define NOFRAG_CONFIG_VERSION 1u
#define NOFRAG_CONFIG_INIT                                          \
  {                                                                 \
    (uint32_t)sizeof(nofrag_config), NOFRAG_CONFIG_VERSION, NULL, { \
      0, 0, 0, 0, 0, 0                                              \
    }                                                               \
  }

/* Opens the driver. config may be NULL. Nothing of *config is kept.
 * NOFRAG_ALREADY_INITIALIZED after first use or an earlier successful init (nothing changes);
 * NOFRAG_BAD_CONFIG for a fault in config->conf; NOFRAG_NOT_INITIALIZED if the driver cannot be
 * opened. After a failure nofrag_init may be called again. */
NOFRAG_API nofrag_status nofrag_init(const nofrag_config* config) NOFRAG_NOEXCEPT;

/* "cuda" or "sim:h100-80g"; see nofrag_stats_text for the buffer rule. */
NOFRAG_API nofrag_status nofrag_driver_name(char* buffer,
                                            size_t capacity,
                                            size_t* needed) NOFRAG_NOEXCEPT;
NOFRAG_API nofrag_status nofrag_device_count(int* count) NOFRAG_NOEXCEPT;

/* ---- Blocks ---- */

/* A block of at least `size` bytes on `device`, for work queued on `stream`. Aligned to 512 bytes; up to an
 * eighth larger than asked for where it comes from a thread's cache.
 * The caller owns it until nofrag_free. Does not wait for the GPU unless memory is short.
 * NULL on failure (NOFRAG_OUT_OF_MEMORY, NOFRAG_LIMIT, NOFRAG_INVALID_ARGUMENT for a wrong device,
 * ...) and for size 0, which is not an error: then the last status is NOFRAG_OK. */
NOFRAG_API void* nofrag_malloc(size_t size, int device, void* stream) NOFRAG_NOEXCEPT;

/* As nofrag_malloc, but the block lies in one physical allocation of the driver from its first byte to
 * its last, so that it can be exported (IPC, dma-buf) or registered (NCCL, RDMA) as one. Physical
 * allocations are whole granules (2 MiB): a block that no free one holds gets its own, rounded up. Idle
 * memory is given back to the driver to make room for it, which may wait for the GPU. It is freed like
 * any other. Pin it for as long as others know it (nofrag_pin). */
NOFRAG_API void* nofrag_malloc_single(size_t size, int device, void* stream) NOFRAG_NOEXCEPT;

/* Gives a block back. Does not wait, but on a device without virtual memory, where it waits for the
 * GPU as the driver's own free does. The pointer must be what nofrag_malloc returned; NULL is fine.
 * NOFRAG_UNKNOWN_POINTER for anything else and for a second free: one that begins after the first has
 * returned, as far as the two threads know of each other, and before the address is given out again. Of two
 * frees of one block at the very same time one succeeds and the other is refused with thread_caches:false;
 * with thread caches, which take frees without a lock, both may be taken, and the block is then given out
 * twice. (To tell them apart would cost every free an atomic exchange.) */
NOFRAG_API nofrag_status nofrag_free(void* block) NOFRAG_NOEXCEPT;

/* Work on `stream` uses this block (any address inside it): after its free it is not reused before
 * the work queued there until the free is done. Call it before nofrag_free. */
NOFRAG_API nofrag_status nofrag_record_stream(void* address, void* stream) NOFRAG_NOEXCEPT;

/* Until nofrag_unpin, the memory of the live block that holds `address` (anywhere inside it) stays where
 * it is: its physical allocations stay mapped at these addresses, are not given back to the driver
 * (nofrag_trim, lower limits, memory pressure) and are mapped nowhere else. Pin what is exported (IPC,
 * dma-buf) or registered (NCCL, RDMA) before it is, and unpin it when that is undone. Any stream; nothing
 * is waited for.
 * A pin outlives its block: the block may be freed, and its bytes may serve later blocks at the same
 * addresses. Pins count: each needs its own unpin. Pins of blocks that overlap (one was freed, the next
 * begins inside it) are one, and hold all their memory until the last is undone. On a device without
 * virtual memory nothing moves, and the call does nothing.
 * NOFRAG_UNKNOWN_POINTER if no live block holds the address. */
NOFRAG_API nofrag_status nofrag_pin(const void* address) NOFRAG_NOEXCEPT;
/* Undoes one nofrag_pin: `address` is any that was pinned, its block live or freed.
 * NOFRAG_UNKNOWN_POINTER if nothing is pinned there. */
NOFRAG_API nofrag_status nofrag_unpin(const void* address) NOFRAG_NOEXCEPT;

/* REQUIRED before a stream of `device` that nofrag has seen is destroyed: a last event is recorded on
 * it, and its handle is not used again. (The driver gives the handle to the next stream made, while
 * the old one's work may still run, and asking about a dead handle can crash it. With a driver for
 * CUDA 12 or newer and check_streams:true, or thread_caches:false, memory is not reused too early even if
 * the call is forgotten.) Blocks allocated on
 * the stream may be freed before or after. NOFRAG_CAPTURING while it is being captured. */
NOFRAG_API nofrag_status nofrag_retire_stream(int device, void* stream) NOFRAG_NOEXCEPT;

typedef struct nofrag_block_info {
  uint32_t struct_size;
  uint32_t version;
  void* address;           /* first byte of the block */
  uint64_t size;           /* its size, rounded up to 512 bytes or a size class */
  uint64_t requested_size; /* what was asked for */
  void* stream;            /* the stream it was allocated on */
  uint64_t pool_first;     /* its pool; 0, 0 is the default pool */
  uint64_t pool_second;
  int32_t device;
  uint32_t reserved32;
  uint64_t reserved[4];
} nofrag_block_info;
#define NOFRAG_BLOCK_INFO_VERSION 1u

/* The live block that holds `address`, wherever it points inside. The caller fills
 * info->struct_size. NOFRAG_UNKNOWN_POINTER if there is none. */
NOFRAG_API nofrag_status nofrag_find(const void* address, nofrag_block_info* info) NOFRAG_NOEXCEPT;

/* ---- Pools: blocks that share memory only with each other, as CUDA graphs need it ---- */

typedef struct nofrag_pool {
  uint64_t first; /* any pair of numbers but 0, 0, which is the default pool */
  uint64_t second;
} nofrag_pool;

/* Nonzero if allocations on `stream` belong to the pool. Called by the allocating thread without any
 * lock; never again once nofrag_pool_end has returned. */
typedef int (*nofrag_stream_filter)(void* stream, void* user);

/* From begin to end, allocations on `device` whose stream passes `filter` (NULL: every stream) go to
 * `pool`, which is made if it is new and used once more. Begins nest; the latest is asked first.
 * `user` must stay valid until the end. NOFRAG_INVALID_ARGUMENT for pool {0, 0} and for an end
 * without a begin. As with PyTorch's pools, memory that graphs of the pool have for their own use may serve
 * what a stream that was captured into it allocates between begin and end: launch none of them from the begin
 * until what was allocated so is no longer in use. */
NOFRAG_API nofrag_status nofrag_pool_begin(int device,
                                           nofrag_pool pool,
                                           nofrag_stream_filter filter,
                                           void* user) NOFRAG_NOEXCEPT;
NOFRAG_API nofrag_status nofrag_pool_end(int device, nofrag_pool pool) NOFRAG_NOEXCEPT;
/* Undoes one use. At the last, the pool's idle memory is free for all; live blocks stay valid. */
NOFRAG_API nofrag_status nofrag_pool_release(int device, nofrag_pool pool) NOFRAG_NOEXCEPT;
/* nofrag_malloc into one pool, which must exist. In a pool that graphs were captured into, such a block may lie
 * in memory that a graph has for its own use once it has run: launch none of them while the block is in use. */
NOFRAG_API void* nofrag_pool_malloc(size_t size, int device, void* stream, nofrag_pool pool)
    NOFRAG_NOEXCEPT;

/* ---- Limits ---- */

/* Most physical memory to hold on `device`, in bytes; UINT64_MAX = no limit. A request beyond it
 * first makes room, then fails with NOFRAG_LIMIT. Memory above a new limit that is idle is given
 * back, and this may wait for the GPU. */
NOFRAG_API nofrag_status nofrag_set_limit(int device, uint64_t bytes) NOFRAG_NOEXCEPT;
/* The same as a fraction (0 to 1) of the device's memory; the lower of both limits holds. */
NOFRAG_API nofrag_status nofrag_set_memory_fraction(int device, double fraction) NOFRAG_NOEXCEPT;
/* Gives idle memory back to the driver until at most `keep` bytes are held. *given_back, if not
 * NULL, gets the bytes. Waits for work that still uses them. */
NOFRAG_API nofrag_status nofrag_trim(int device,
                                     uint64_t keep,
                                     uint64_t* given_back) NOFRAG_NOEXCEPT;

/* ---- Statistics ---- */

/* stats->struct_size must be set by the caller. Reads counters; does not call the driver. */
NOFRAG_API nofrag_status nofrag_get_stats(int device, nofrag_device_stats* stats) NOFRAG_NOEXCEPT;
/* Peaks start again from the present values. */
NOFRAG_API nofrag_status nofrag_reset_peaks(int device) NOFRAG_NOEXCEPT;
/* All used devices and the driver's ledger (calls and microseconds a kind of call), for people and
 * for programs (docs/stats.md). The text is written to buffer, always ended by a zero byte, and cut
 * to capacity: then the answer is NOFRAG_BUFFER_TOO_SMALL. *needed, if not NULL, gets the size of
 * the whole text with its zero byte. capacity 0 with buffer NULL asks for that size alone. Numbers
 * may grow between two calls: leave some room. */
NOFRAG_API nofrag_status nofrag_stats_text(char* buffer,
                                           size_t capacity,
                                           size_t* needed) NOFRAG_NOEXCEPT;
NOFRAG_API nofrag_status nofrag_stats_json(char* buffer,
                                           size_t capacity,
                                           size_t* needed) NOFRAG_NOEXCEPT;

/* ---- Out of memory ---- */

typedef struct nofrag_oom_report {
  uint32_t struct_size;
  uint32_t version;
  int32_t device;
  int32_t limit_reached; /* 1: a limit set here refused it; 0: the driver did */
  void* stream;
  uint64_t requested_bytes;   /* 0: nothing has failed on this device yet */
  uint64_t driver_free_bytes; /* free on the device by the driver's own count; 0 = unknown */
  uint64_t driver_total_bytes;
  uint64_t live_bytes; /* this and the following: see stats.h; taken at the failure */
  uint64_t pending_bytes;
  uint64_t reserved_bytes;
  uint64_t limit_bytes;
  uint64_t free_handles_bytes;
  uint64_t stranded_bytes;
  uint64_t largest_free_run_bytes;
  uint64_t free_ends_bytes;
  uint64_t composable_bytes; /* the most that two such ends can add to one block */
  uint64_t reserved[4];
} nofrag_oom_report;
#define NOFRAG_OOM_REPORT_VERSION 1u

/* The last allocation that failed on `device`. The caller fills report->struct_size. */
NOFRAG_API nofrag_status nofrag_get_oom_report(int device,
                                               nofrag_oom_report* report) NOFRAG_NOEXCEPT;
/* The same as a sentence; empty if none failed. Buffer rule: nofrag_stats_text. */
NOFRAG_API nofrag_status nofrag_oom_message(int device,
                                            char* buffer,
                                            size_t capacity,
                                            size_t* needed) NOFRAG_NOEXCEPT;

/* Called by the allocating thread when an allocation has failed, before it returns NULL. `report`
 * holds during the call. It may call nofrag. */
typedef void (*nofrag_oom_callback)(int device, const nofrag_oom_report* report, void* user);
/* Called by the allocating thread before an allocation fails: nonzero if it freed something (then
 * the allocation is tried again). It may free, trim and allocate. */
typedef int (*nofrag_pressure_callback)(int device, uint64_t needed_bytes, void* user);

/* For all devices. Each (callback, user) pair is held once: adding it again is NOFRAG_OK and changes
 * nothing. Up to 32 of each kind; NOFRAG_NOT_SUPPORTED beyond. Removing one that is not there is
 * NOFRAG_INVALID_ARGUMENT; one that another thread is inside may still finish after its removal. */
NOFRAG_API nofrag_status nofrag_add_oom_callback(nofrag_oom_callback callback,
                                                 void* user) NOFRAG_NOEXCEPT;
NOFRAG_API nofrag_status nofrag_remove_oom_callback(nofrag_oom_callback callback,
                                                    void* user) NOFRAG_NOEXCEPT;
NOFRAG_API nofrag_status nofrag_add_pressure_callback(nofrag_pressure_callback callback,
                                                      void* user) NOFRAG_NOEXCEPT;
NOFRAG_API nofrag_status nofrag_remove_pressure_callback(nofrag_pressure_callback callback,
                                                         void* user) NOFRAG_NOEXCEPT;

/* ---- Debugging ---- */

/* Walks every structure of `device` and aborts the process, with a message, on a broken invariant.
 * Slow. */
NOFRAG_API nofrag_status nofrag_check(int device) NOFRAG_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
