/* A C11 program on the simulated device: every kind of call once, answers checked. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <nofrag/headroom.h>
#include <nofrag/nofrag.h>

#define EXPECT(condition)                                                   \
  do {                                                                      \
    if (!(condition)) {                                                     \
      const char* message = NULL;                                           \
      nofrag_last_error(&message);                                          \
      fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, message); \
      exit(1);                                                              \
    }                                                                       \
  } while (0)

static int every_stream(void* stream, void* user) {
  (void)stream;
  ++*(int*)user;
  return 1;
}

static void versions(void) {
  char numbers[32];
  snprintf(numbers,
           sizeof numbers,
           "%d.%d.%d",
           NOFRAG_VERSION_MAJOR,
           NOFRAG_VERSION_MINOR,
           NOFRAG_VERSION_PATCH);
  EXPECT(strcmp(numbers, NOFRAG_VERSION_STRING) == 0);
  EXPECT(strcmp(NOFRAG_VERSION_STRING, NOFRAG_PROJECT_VERSION) == 0);
  EXPECT(strcmp(nofrag_version(), NOFRAG_VERSION_STRING) == 0);
}

static void blocks(void) {
  int stream_a = 0;
  int stream_b = 0;
  void* block = nofrag_malloc(100000, 0, &stream_a);
  nofrag_block_info info = {.struct_size = sizeof info};
  EXPECT(block != NULL);
  EXPECT(nofrag_find((char*)block + 99999, &info) == NOFRAG_OK && info.address == block);
  EXPECT(nofrag_record_stream(block, &stream_b) == NOFRAG_OK);
  EXPECT(nofrag_free(block) == NOFRAG_OK);
  EXPECT(nofrag_free(block) == NOFRAG_UNKNOWN_POINTER);
}

static void pools(void) {
  const nofrag_pool pool = {1, 2};
  int asked = 0;
  EXPECT(nofrag_pool_begin(0, pool, every_stream, &asked) == NOFRAG_OK);
  void* block = nofrag_malloc(512, 0, NULL);
  EXPECT(nofrag_pool_end(0, pool) == NOFRAG_OK);
  EXPECT(asked > 0);
  nofrag_block_info info = {.struct_size = sizeof info};
  EXPECT(nofrag_find(block, &info) == NOFRAG_OK && info.pool_first == 1 && info.pool_second == 2);
  EXPECT(nofrag_free(block) == NOFRAG_OK);
  EXPECT(nofrag_pool_release(0, pool) == NOFRAG_OK);
}

static void statistics(void) {
  nofrag_device_stats stats = {.struct_size = sizeof stats};
  EXPECT(nofrag_get_stats(0, &stats) == NOFRAG_OK);
  EXPECT(stats.live_blocks == 0 && stats.allocations == 2 && stats.frees == 2);
  size_t needed = 0;
  EXPECT(nofrag_stats_json(NULL, 0, &needed) == NOFRAG_OK);
  char* json = malloc(needed + 64);
  EXPECT(json != NULL && nofrag_stats_json(json, needed + 64, NULL) == NOFRAG_OK);
  EXPECT(strstr(json, "\"schema_version\":1") != NULL);
  free(json);
  EXPECT(nofrag_trim(0, 0, NULL) == NOFRAG_OK);
  EXPECT(nofrag_check(0) == NOFRAG_OK);
}

int main(void) {
  versions();
  nofrag_config config = NOFRAG_CONFIG_INIT;
  config.conf = "driver:sim:h100-80g,limit:1GiB";
  EXPECT(nofrag_init(&config) == NOFRAG_OK);
  blocks();
  pools();
  EXPECT(nofrag_malloc((size_t)2 << 30, 0, NULL) == NULL);
  EXPECT(nofrag_last_error(NULL) == NOFRAG_LIMIT);
  statistics();
  return 0;
}
