/* nofrag: recording what the allocator does (docs/recording.md). Part of the C interface: nofrag.h says
 * what its calls have in common.
 *
 * A recording is a file that `nofrag replay` plays and other tools read (docs/trace-format.md). It is
 * written while the program runs; one whose program is killed is good up to its last second.
 * A process has one recording at a time; the environment variable NOFRAG_TRACE starts one at the first use
 * of nofrag. A child of fork records nothing: there every call but nofrag_trace_state fails with NOFRAG_FORKED.
 */
#ifndef NOFRAG_TRACE_H
#define NOFRAG_TRACE_H

#include <nofrag/nofrag.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Records from now on. `spec` is what NOFRAG_TRACE takes: "[flight:]FILE[,max=SIZE][,keep=SIZE]
 * [,stacks=N][,stacks_from=SIZE][,signal]".
 * Blocks that are live now are in the file too.
 * NOFRAG_ALREADY_INITIALIZED if the process is being recorded already; NOFRAG_INVALID_ARGUMENT for a
 * spec that cannot be read and a file that cannot be written: nofrag_last_error says which. */
NOFRAG_API nofrag_status nofrag_trace_start(const char* spec) NOFRAG_NOEXCEPT;
/* Completes the file. NOFRAG_INVALID_ARGUMENT if nothing is being recorded. */
NOFRAG_API nofrag_status nofrag_trace_stop(void) NOFRAG_NOEXCEPT;
/* When it returns, the file has everything that happened before the call; a flight recorder writes its
 * file. NOFRAG_INVALID_ARGUMENT if nothing is being recorded any more. */
NOFRAG_API nofrag_status nofrag_trace_flush(void) NOFRAG_NOEXCEPT;
/* An annotation at this moment ("step 100"; cut to 1000 bytes). Does nothing where nothing is recorded. */
NOFRAG_API nofrag_status nofrag_trace_mark(const char* text) NOFRAG_NOEXCEPT;

typedef struct nofrag_trace_info {
  uint32_t struct_size;
  uint32_t version;
  int32_t active; /* 1: events are being recorded */
  int32_t reserved32;
  uint64_t events; /* written so far */
  uint64_t bytes;  /* in the file; of a flight recorder: in memory */
  uint64_t reserved[4];
} nofrag_trace_info;
#define NOFRAG_TRACE_INFO_VERSION 1u

/* How the recording stands; all 0 if there was none. The caller fills info->struct_size. The file's name
 * (which differs from the spec's where that has %p, or was taken by another process) goes to
 * buffer; its rule: nofrag_stats_text. */
NOFRAG_API nofrag_status nofrag_trace_state(nofrag_trace_info* info,
                                            char* buffer,
                                            size_t capacity,
                                            size_t* needed) NOFRAG_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
