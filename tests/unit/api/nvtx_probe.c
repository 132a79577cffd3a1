/* A program with NVTX ranges of its own, every kind of them; nvtx_listener_test.cc judges what of it is recorded. */
#include <stdio.h>
#include <wchar.h>

#include <nvtx3/nvToolsExt.h>

#include <nofrag/trace.h>

static nvtxEventAttributes_t attributes(void) {
  const nvtxEventAttributes_t none = {0};
  nvtxEventAttributes_t event = none;
  event.version = NVTX_VERSION;
  event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  return event;
}

int main(void) {
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
