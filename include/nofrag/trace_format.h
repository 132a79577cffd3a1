/* The packed nofrag trace: what stands in the file, byte by byte.
 *
 * A C header for anyone who wants to read or write such files; docs/trace-format.md says the same
 * in words, with the reasons. All numbers are little endian. "varint" is an unsigned LEB128 number:
 * seven bits a byte, low bits first, the high bit set on every byte but the last, at most 10 bytes.
 * "zigzag" maps a signed number n to the unsigned 2n (n >= 0) or -2n-1 (n < 0).
 *
 * File  = file header, blocks, end block; nothing after the end block.
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
  /* Taken for later versions: map and unmap, ladder rungs, pools, threads, annotations. */
  NOFRAG_TRACE_BLOCK_FIRST_RESERVED = 2,
  NOFRAG_TRACE_BLOCK_LAST_RESERVED = 31
};

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
