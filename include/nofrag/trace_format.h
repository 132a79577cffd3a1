/* The packed nofrag trace: what stands in the file, byte by byte.
 *
 * A C header for anyone who wants to read or write such files; docs/trace-format.md says the same
 * in words, with the reasons. All numbers are little endian. "varint" is an unsigned LEB128 number:
 * seven bits a byte, low bits first, the high bit set on every byte but the last, at most 10 bytes.
 * "zigzag" maps a signed number n to the unsigned 2n (n >= 0) or -2n-1 (n < 0).
 *
 * File  = file header, blocks, end block; nothing after the end block. A recording of a live process
 *         has RECORD blocks instead of EVENTS blocks and ends with a STOP block; one whose process was
 *         killed ends anywhere, and is good up to its last whole block.
 * Block = block header, then stored_bytes bytes of payload.
 *
 * An old reader skips blocks and columns whose kind it does not know, unless their must-understand
 * bit is set. Only a change that an old reader cannot survive raises NOFRAG_TRACE_VERSION.
 */
#ifndef NOFRAG_TRACE_FORMAT_H
#define NOFRAG_TRACE_FORMAT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The first byte is no ASCII and the CR LF shows a transfer in text mode. */
#define NOFRAG_TRACE_MAGIC "\x8eNFTRC\r\n"
#define NOFRAG_TRACE_MAGIC_BYTES 8
#define NOFRAG_TRACE_VERSION 1

/* 16 bytes. */
struct nofrag_trace_file_header {
  uint8_t magic[NOFRAG_TRACE_MAGIC_BYTES];
  uint16_t version;      /* NOFRAG_TRACE_VERSION; a reader refuses a newer one */
  uint16_t header_bytes; /* size of this header, 16; a reader skips what it does not know */
  uint32_t flags;        /* 0; a reader refuses bits that it does not know */
};

#define NOFRAG_TRACE_BLOCK_MAGIC 0x4b42464eu /* "NFBK" in the file */

/* 24 bytes. */
struct nofrag_trace_block_header {
  uint32_t magic;        /* NOFRAG_TRACE_BLOCK_MAGIC */
  uint16_t kind;         /* enum nofrag_trace_block_kind */
  uint16_t flags;        /* NOFRAG_TRACE_BLOCK_* */
  uint32_t stored_bytes; /* payload as it stands in the file */
  uint32_t raw_bytes;    /* payload after unpacking, at most NOFRAG_TRACE_MAX_RAW_BYTES */
  uint32_t items;        /* events in the block, or what the kind says */
  uint32_t header_crc32; /* CRC-32 (as in gzip) of the 20 bytes before */
};

/* The payload is one zstd frame with content size and checksum; else it is stored as it is. */
#define NOFRAG_TRACE_BLOCK_ZSTD 0x0001u
/* A reader that does not know the kind must refuse the file instead of skipping the block. */
#define NOFRAG_TRACE_BLOCK_MUST_UNDERSTAND 0x0002u

#define NOFRAG_TRACE_MAX_RAW_BYTES (64u << 20)

enum nofrag_trace_block_kind {
  NOFRAG_TRACE_BLOCK_END = 0,    /* struct nofrag_trace_totals, stored; the last block */
  NOFRAG_TRACE_BLOCK_EVENTS = 1, /* columns of `items` consecutive allocations and frees */
  NOFRAG_TRACE_BLOCK_RECORD = 2, /* columns of `items` events of a live process */
  NOFRAG_TRACE_BLOCK_INFO = 3,   /* `items` pairs of texts: a name, its value */
  NOFRAG_TRACE_BLOCK_MARKS = 4,  /* `items` annotations: varint tick, varint thread, text */
  NOFRAG_TRACE_BLOCK_THREADS =
      5, /* `items` threads: varint thread, varint kernel id, text: its name */
  NOFRAG_TRACE_BLOCK_SITES = 6, /* `items` call sites: varint site, varint frames, a text a frame */
  NOFRAG_TRACE_BLOCK_STOP = 7, /* struct nofrag_trace_stop, stored; the last block of a recording */
  NOFRAG_TRACE_BLOCK_MODULES =
      8, /* `items` programs and libraries: varint number (from 1 on), text: path,
                                     text: the bytes of its build id, empty if it has none */
  NOFRAG_TRACE_BLOCK_STACKS = 9, /* `items` call stacks, as below */
  NOFRAG_TRACE_BLOCK_RANGES =
      10, /* `items` moments of the program's own ranges (NVTX): varint tick, varint
                                     thread, varint kind (enum nofrag_trace_range_kind), varint key, text: name */
  /* Taken for later versions. */
  NOFRAG_TRACE_BLOCK_FIRST_RESERVED = 11,
  NOFRAG_TRACE_BLOCK_LAST_RESERVED = 31
};
/* A text is a varint length and so many bytes of UTF-8. */

/* The unpacked payload of an EVENTS block is a row of columns, each in any order but at most once:
 *   u8 kind, varint length in bytes, the bytes.
 * Kinds with bit 7 set must be understood; others may be skipped. */
enum nofrag_trace_column {
  /* One byte an event: 'a' allocation, 'f' free. */
  NOFRAG_TRACE_COLUMN_OP = 1,
  /* One varint an event: microseconds since the event before; of the block's first event, since
   * 0 on the recorder's clock. */
  NOFRAG_TRACE_COLUMN_TIME = 2,
  /* One zigzag varint an allocation: its id minus (the id of the allocation before it in the file
   * + 1), modulo 2^64; before the first one stands id -1. So ids 0, 1, 2, ... are all zeros. */
  NOFRAG_TRACE_COLUMN_ID = 3,
  /* The different sizes of the block's allocations: varints, in bytes as requested. */
  NOFRAG_TRACE_COLUMN_SIZE_VALUES = 4,
  /* One varint an allocation: index into SIZE_VALUES. */
  NOFRAG_TRACE_COLUMN_SIZE = 5,
  /* One varint a free: how many allocations were made in the file after the one that is freed. */
  NOFRAG_TRACE_COLUMN_FREED = 6,
  /* The different streams of the block's events: varints. */
  NOFRAG_TRACE_COLUMN_STREAM_VALUES = 7,
  /* One varint an event: index into STREAM_VALUES. */
  NOFRAG_TRACE_COLUMN_STREAM = 8
};
#define NOFRAG_TRACE_COLUMN_MUST_UNDERSTAND 0x80u

/* A row of a STACKS block: varint site (from 1 on; each is defined once), varint flags, varint native frames,
 * for each varint module and varint offset, varint Python frames, for each text: file, varint line (0: not
 * known), text: function. Frames are innermost first. A module's number stands in a MODULES block before; the
 * offset is the address less where the module was loaded: what the module's own symbol table has for it, and
 * an address within the instruction that calls. Module 0: in none; the offset is the plain address then.
 * Where a SITES block names a site too, its texts are the names of the stack. */
#define NOFRAG_TRACE_STACK_NATIVE_CUT \
  0x1u /* there were more native frames than the recorder keeps */
#define NOFRAG_TRACE_STACK_PYTHON_CUT 0x2u

/* A reader skips kinds that it does not know, and ends that have no beginning. */
enum nofrag_trace_range_kind {
  NOFRAG_TRACE_RANGE_PUSH =
      1, /* a range of the thread begins, inside of those that it is in; key: its domain */
  NOFRAG_TRACE_RANGE_POP = 2, /* the thread's innermost range of the domain `key` ends */
  NOFRAG_TRACE_RANGE_START =
      3, /* a range of the process begins, which any thread may end; key: its number */
  NOFRAG_TRACE_RANGE_END = 4 /* the range of that number ends */
};

/* What an event of a RECORD block tells. A reader skips events of kinds that it does not know. */
enum nofrag_trace_record_kind {
  NOFRAG_TRACE_RECORD_ALLOC = 1, /* a block: address, size, slack, stream, pool, site */
  NOFRAG_TRACE_RECORD_FREE = 2,  /* the caller gave it up: address */
  NOFRAG_TRACE_RECORD_FREE_COMPLETED =
      3,                          /* other streams that used it are done; where there are none, a
                                             free is complete at once and this event is not written */
  NOFRAG_TRACE_RECORD_STREAM = 4, /* the block is used on one more stream: address, stream */
  NOFRAG_TRACE_RECORD_MAP = 5,    /* physical memory can be reached: address, size */
  NOFRAG_TRACE_RECORD_UNMAP = 6,
  NOFRAG_TRACE_RECORD_CREATE = 7,  /* physical memory was taken from the driver: size */
  NOFRAG_TRACE_RECORD_RELEASE = 8, /* and given back */
  NOFRAG_TRACE_RECORD_RUNG =
      9, /* a rung of the out-of-memory ladder served: size, detail = number */
  NOFRAG_TRACE_RECORD_OUT_OF_MEMORY =
      10, /* a request failed: size, stream; address = the process's own limit (1 for 0) where that refused it;
             detail = whole MiB that the driver had free, plus 1 (0: not known) */
  NOFRAG_TRACE_RECORD_COMPOSE = 11,    /* free memory was mapped once more: address, size, detail =
                                             physical allocations in it */
  NOFRAG_TRACE_RECORD_EXISTING = 12,   /* as ALLOC, of a block that was live when recording began */
  NOFRAG_TRACE_RECORD_POOL_BEGIN = 13, /* pool */
  NOFRAG_TRACE_RECORD_POOL_END = 14,
  NOFRAG_TRACE_RECORD_POOL_RELEASE = 15,
  NOFRAG_TRACE_RECORD_RETIRE_STREAM = 16, /* stream */
  NOFRAG_TRACE_RECORD_TRIM = 17,          /* size = bytes that were kept */
  NOFRAG_TRACE_RECORD_THREAD_END = 18     /* the event's thread makes no more */
};

/* The unpacked payload of a RECORD block is a row of columns as that of an EVENTS block. Each field of
 * its events takes two columns, as SIZE_VALUES and SIZE above: number 2 * field the different values,
 * 2 * field + 1 one index an event. A field that is 0 in the whole block has no columns. Events need
 * not be in the order of their ticks, neither in a block nor across blocks. */
enum nofrag_trace_record_field {
  NOFRAG_TRACE_FIELD_ADDRESS = 2, /* its values: zigzag varints, each minus the one before */
  NOFRAG_TRACE_FIELD_SIZE = 3,    /* bytes, as requested; 0 = not known */
  NOFRAG_TRACE_FIELD_SLACK = 4,   /* bytes that the block has beyond the size rounded up to 512 */
  NOFRAG_TRACE_FIELD_STREAM = 5,
  NOFRAG_TRACE_FIELD_DEVICE = 6,
  NOFRAG_TRACE_FIELD_THREAD = 7,
  NOFRAG_TRACE_FIELD_POOL_FIRST = 8,
  NOFRAG_TRACE_FIELD_POOL_SECOND = 9,
  NOFRAG_TRACE_FIELD_DETAIL = 10,
  NOFRAG_TRACE_FIELD_SITE = 11, /* number in a SITES or STACKS block; 0 = none */
  NOFRAG_TRACE_FIELD_LAST = 11
};
enum nofrag_trace_record_column {
  NOFRAG_TRACE_RECORD_COLUMN_KIND = 1, /* one byte an event */
  NOFRAG_TRACE_RECORD_COLUMN_TICK =
      2, /* one zigzag varint an event: ticks since the event before; of the
                                           first, since 0 */
  NOFRAG_TRACE_RECORD_COLUMN_CLOCK = 3 /* u64 tick, u64 nanoseconds: both clocks, read together */
};

/* Payload of the STOP block, 32 bytes. */
struct nofrag_trace_stop {
  uint64_t events;   /* in all RECORD blocks */
  uint64_t lost;     /* that the recorder could not keep */
  uint64_t reason;   /* enum nofrag_trace_stop_reason */
  uint64_t reserved; /* 0 */
};
enum nofrag_trace_stop_reason {
  NOFRAG_TRACE_STOP_ASKED = 0, /* by the program */
  NOFRAG_TRACE_STOP_EXIT = 1,  /* the process ended */
  NOFRAG_TRACE_STOP_MAX = 2,   /* the file has the size that it may have */
  NOFRAG_TRACE_STOP_FLIGHT =
      3 /* the end of what a flight recorder had kept; its beginning is the state then */
};

/* Payload of the END block, 40 bytes: what a reader must have seen by then. */
struct nofrag_trace_totals {
  uint64_t events;
  uint64_t allocations;
  uint64_t frees;
  uint64_t peak_live_bytes; /* each size rounded up to 512 */
  uint64_t live_at_end_bytes;
};

#ifdef __cplusplus
}
#endif

#endif /* NOFRAG_TRACE_FORMAT_H */
