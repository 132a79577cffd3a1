/* A program with NVTX ranges of its own, every kind of them; nvtx_listener_test.cc judges what of it is recorded. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include <nvtx3/nvToolsExt.h>
#include <sys/wait.h>

#include <nofrag/trace.h>

static nvtxEventAttributes_t attributes(void) {
  const nvtxEventAttributes_t none = {0};
  nvtxEventAttributes_t event = none;
  event.version = NVTX_VERSION;
  event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  return event;
}

static atomic_int over;

static void* register_names(void* argument) {
  (void)argument;
  while (!atomic_load(&over)) {
    nvtxDomainRegisterStringA(NULL, "from the thread");
  }
  return NULL;
}

/* Forks again and again while another thread registers names; each child registers some too. */
static int fork_often(void) {
  enum { FORKS = 200, PATIENCE_S = 10 };
  nvtxRangePushA("before the forks");
  nvtxRangePop();
  pthread_t thread;
  if (pthread_create(&thread, NULL, &register_names, NULL) != 0) {
    return 1;
  }
  for (int i = 0; i < FORKS; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(PATIENCE_S); /* not inherited */
      nvtxRangePushA("in the child");
      nvtxDomainRegisterStringA(nvtxDomainCreateA("the child's"), "name");
      nvtxRangePop();
      _exit(0);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
      return 1;
    }
  }
  atomic_store(&over, 1);
  pthread_join(thread, NULL);
  puts("done");
  return 0;
}

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "fork") == 0) {
    void* const held = nofrag_malloc(1000, 0, NULL);
    return held == NULL ? 1 : fork_often();
  }
  nvtxRangePushA("before nofrag is used");
  void* const block = nofrag_malloc(1000, 0, NULL);
  nvtxRangePop();

  nvtxRangePushA("step");
  nvtxRangePushW(L"stra\u00dfe \u20ac");
  nvtxMarkA("a mark");
  nvtxRangePop();
  nvtxEventAttributes_t event = attributes();
  event.messageType = NVTX_MESSAGE_TYPE_ASCII;
  event.message.ascii = "by attributes";
  nvtxRangePushEx(&event);
  nvtxRangePop();
  nvtxRangePop();

  const nvtxRangeId_t range = nvtxRangeStartA("started");
  nvtxRangeEnd(range);

  const nvtxDomainHandle_t domain = nvtxDomainCreateA("library");
  const nvtxStringHandle_t text = nvtxDomainRegisterStringA(domain, "registered");
  nvtxEventAttributes_t registered = attributes();
  registered.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  registered.message.registered = text;
  nvtxDomainRangePushEx(domain, &registered);
  nvtxDomainMarkEx(domain, &registered);
  nvtxDomainRangePop(domain);
  const nvtxRangeId_t other = nvtxDomainRangeStartEx(domain, &registered);
  nvtxDomainRangeEnd(domain, other);
  nvtxDomainDestroy(domain);

  nvtxRangePushEx(NULL);
  nvtxRangePop();
  nofrag_free(block);
  nvtxRangePushA("never popped");
  puts("done");
  return 0;
}
