/* nofrag headroom: how much memory is left, and when it ends if use goes on as it does (C11).
 *
 * For servers that shed load before they die: nofrag_get_headroom answers at once; a callback is told when
 * headroom becomes low. The forecast is silent while memory use shows no steady rise. docs/oom-guide.md
 * says how it is made and how good it is.
 *
 * Units:    bytes, seconds. Threads: any. Structures: as in nofrag.h.
 */
#ifndef NOFRAG_HEADROOM_H
#define NOFRAG_HEADROOM_H

#include <nofrag/nofrag.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nofrag_headroom {
  uint32_t struct_size;
  uint32_t version;
  int32_t device;
  int32_t low;             /* in callbacks: 1 = below what was asked for, 0 = no longer */
  uint64_t headroom_bytes; /* what live memory may grow by: limit, driver and held memory counted */
  double seconds;          /* until it is used up at the present trend; negative: no trend */
  double bytes_per_second; /* the trend; 0: none */
  double confidence;       /* of the forecast, 0.5 to 1; 0: none */
  uint64_t reserved[4];
} nofrag_headroom;
#define NOFRAG_HEADROOM_VERSION 1u

/* The caller fills headroom->struct_size. Asks the driver for its free memory. */
NOFRAG_API nofrag_status nofrag_get_headroom(int device, nofrag_headroom* headroom) NOFRAG_NOEXCEPT;

/* Called by a thread of nofrag's own, at most ten times a second for all devices together. It may call
 * nofrag. `headroom` holds during the call. A Python callback (ctypes) must be unset before the interpreter
 * ends (atexit). */
typedef void (*nofrag_headroom_callback)(const nofrag_headroom* headroom, void* user);

/* From now on `callback` is told when a device has fewer than `below_bytes` left or a forecast of fewer than
 * `below_seconds`; again every second while that lasts, and once when it is over (low = 0). One callback a
 * process: the latest; NULL unsets it, and a call of it that has begun may still finish after that. */
NOFRAG_API nofrag_status nofrag_set_headroom_callback(nofrag_headroom_callback callback,
                                                      void* user,
                                                      uint64_t below_bytes,
                                                      double below_seconds) NOFRAG_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
