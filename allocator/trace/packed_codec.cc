#include "trace/packed_codec.h"

#include <zlib.h>
#include <zstd.h>

#include <memory>

namespace nofrag {

std::string pack_zstd(std::string_view raw, int level) {
  const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> context(ZSTD_createCCtx(),
                                                                     &ZSTD_freeCCtx);
  if (context == nullptr) {
    return {};
  }
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, level);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_checksumFlag, 1);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_contentSizeFlag, 1);
  std::string frame(ZSTD_compressBound(raw.size()), '\0');
  const std::size_t size =
      ZSTD_compress2(context.get(), frame.data(), frame.size(), raw.data(), raw.size());
  if (ZSTD_isError(size) != 0) {
    return {};
  }
  frame.resize(size);
  return frame;
}

bool unpack_zstd(std::string_view frame,
                 std::size_t raw_bytes,
                 std::string* raw,
                 std::string* why) {
  const unsigned long long declared = ZSTD_getFrameContentSize(frame.data(), frame.size());
  if (declared == ZSTD_CONTENTSIZE_ERROR || declared == ZSTD_CONTENTSIZE_UNKNOWN) {
    *why = "a payload that is no zstd frame with its size";
    return false;
  }
  if (declared != raw_bytes) {
    *why = "a zstd frame of " + std::to_string(declared) + " bytes";
    return false;
  }
  raw->resize(raw_bytes);
  const std::size_t size = ZSTD_decompress(raw->data(), raw_bytes, frame.data(), frame.size());
  if (ZSTD_isError(size) != 0) {
    *why = std::string("a damaged zstd frame (") + ZSTD_getErrorName(size) + ")";
    return false;
  }
  if (size != raw_bytes) {
    *why = "a zstd frame that unpacks to " + std::to_string(size) + " bytes";
    return false;
  }
  return true;
}

std::uint32_t crc32_of(std::string_view bytes) {
  return static_cast<std::uint32_t>(crc32(crc32(0, nullptr, 0),
                                          reinterpret_cast<const Bytef*>(bytes.data()),
                                          static_cast<uInt>(bytes.size())));
}

std::string packed_file_header() {
  std::string header(NOFRAG_TRACE_MAGIC, NOFRAG_TRACE_MAGIC_BYTES);
  append_little_endian<std::uint16_t>(NOFRAG_TRACE_VERSION, &header);
  append_little_endian<std::uint16_t>(sizeof(nofrag_trace_file_header), &header);
  append_little_endian<std::uint32_t>(0, &header);
  return header;
}

std::string packed_block_header(nofrag_trace_block_kind kind,
                                std::uint32_t flags,
                                std::size_t stored,
                                std::size_t raw,
                                std::size_t items) {
  std::string header;
  append_little_endian<std::uint32_t>(NOFRAG_TRACE_BLOCK_MAGIC, &header);
  append_little_endian(static_cast<std::uint16_t>(kind), &header);
  append_little_endian(static_cast<std::uint16_t>(flags), &header);
  append_little_endian(static_cast<std::uint32_t>(stored), &header);
  append_little_endian(static_cast<std::uint32_t>(raw), &header);
  append_little_endian(static_cast<std::uint32_t>(items), &header);
  append_little_endian(crc32_of(header), &header);
  return header;
}

}  // namespace nofrag
