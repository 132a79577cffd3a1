/* Statistics of one device as a C structure. The same numbers, under the same names, are in the
 * text and JSON of nofrag_stats_text and nofrag_stats_json; docs/stats.md explains each.
 *
 * Units: bytes, or counts since the device was first used.
 *   requested <= live <= allocated <= mapped_in_use <= reserved
 *   allocated == live + pending
 *   reserved  == mapped_in_use + free_handles
 */
#ifndef NOFRAG_STATS_H
#define NOFRAG_STATS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NOFRAG_DEVICE_STATS_VERSION 1u

typedef struct nofrag_device_stats {
  uint32_t struct_size; /* in: sizeof(nofrag_device_stats) of the caller. out: bytes filled in */
  uint32_t version;     /* out: NOFRAG_DEVICE_STATS_VERSION of the library */

  uint64_t requested_bytes;     /* what live blocks were asked for */
  uint64_t live_bytes;          /* the same, each with its whole size (a multiple of 512) */
  uint64_t pending_bytes;       /* freed, but another stream may still touch it */
  uint64_t allocated_bytes;     /* live + pending */
  uint64_t mapped_in_use_bytes; /* physical allocations with an allocated byte, and pinned ones */
  uint64_t reserved_bytes;      /* physical memory held from the driver */
  uint64_t limit_bytes;         /* most that reserved may be; UINT64_MAX = no limit of ours */
  uint64_t largest_free_run_bytes; /* longest contiguous mapped free range */
  uint64_t free_handles_bytes;     /* all other physical allocations: movable and returnable */
  uint64_t stranded_bytes;         /* free in the middle of used ones, and all in pinned ones */
  uint64_t peak_live_bytes;        /* highest since start or nofrag_reset_peaks, as the next two */
  uint64_t peak_allocated_bytes;
  uint64_t peak_reserved_bytes;
  uint64_t live_blocks;
  uint64_t allocations; /* successful ones */
  uint64_t frees;
  uint64_t failed_allocations;      /* out of memory, by the driver or by a limit */
  uint64_t pools;                   /* the default pool counts */
  uint64_t rung_own_free;           /* requests served at each rung of the out-of-memory ladder: */
  uint64_t rung_own_mappable;       /*   own free memory, own free memory mapped anew, */
  uint64_t rung_grow;               /*   new memory from the driver, */
  uint64_t rung_other_pools;        /*   idle memory of other streams and pools, */
  uint64_t rung_device_wait;        /*   memory of other streams after a wait on the device, */
  uint64_t rung_pressure_callbacks; /* memory that callbacks gave back */

  uint64_t free_ends_bytes;  /* free at the ends of used physical allocations */
  uint64_t composable_bytes; /* the most that two such ends can add to one block */

  uint64_t pinned_bytes; /* physical allocations that nofrag_pin holds where they are */

  uint64_t kept_bytes; /* freed, and kept by threads for their next requests */

  uint64_t reserved[4]; /* zero; later versions put new fields here */
} nofrag_device_stats;

#ifdef __cplusplus
}
#endif

#endif
