#include "runtime/nvtx_listener.h"

#if NOFRAG_HAVE_NVTX
#include <atomic>
#include <bit>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include <nvtx3/nvToolsExt.h>

#include "base/utf8.h"
#include "runtime/process.h"
#include "trace/record/recorder.h"
#endif

namespace nofrag {

#if NOFRAG_HAVE_NVTX

namespace {

constexpr std::size_t kMostDomains = 1024;
constexpr std::size_t kMostTexts = 65536;
constexpr std::size_t kLongestText = 1000;  // a recording keeps no more of one
constexpr std::string_view kOwnDomain = "nofrag";

struct Domain {
  std::uint64_t number = 0;  // 0: the default one, or one too many
  std::string prefix;        // of names: "domain: "
  bool own = false;
};

// Handles point into these, so nothing is ever taken out.
struct Names {
  std::mutex mutex;
  std::map<std::string, Domain, std::less<>> domains;  // Sync: mutex
  std::set<std::string, std::less<>> texts;            // Sync: mutex
};

Names& names() {
  static auto* const all = new Names;
  return *all;
}

std::atomic<std::uint64_t> last_range{0};

Recorder* listening() {
  const Process& process = Process::instance();
  Recorder* const recorder = process.recorder();
  const bool over =
      recorder == nullptr || !recorder->active() || process.forked() || process.exiting();
  return over ? nullptr : recorder;
}

// wchar_t is UTF-32 on Linux.
std::string narrow(const wchar_t* wide) {
  std::string text;
  for (; wide != nullptr && *wide != 0; ++wide) {
    const auto point = std::bit_cast<std::uint32_t>(*wide);
    const auto put = [&text](std::uint32_t byte) { text += static_cast<char>(byte); };
    if (point < 0x80) {
      put(point);
    } else if (point < 0x800) {
      put(0xc0 | point >> 6);
      put(0x80 | (point & 63));
    } else if (point < 0x10000) {
      put(0xe0 | point >> 12);
      put(0x80 | (point >> 6 & 63));
      put(0x80 | (point & 63));
    } else if (point < 0x110000) {
      put(0xf0 | point >> 18);
      put(0x80 | (point >> 12 & 63));
      put(0x80 | (point >> 6 & 63));
      put(0x80 | (point & 63));
    }
  }
  return text;
}

std::string text_of(const char* text) {
  return text == nullptr ? std::string() : std::string(text);
}

std::string text_of(const nvtxEventAttributes_t* event) {
  if (event == nullptr) {
    return {};
  }
  switch (event->messageType) {
    case NVTX_MESSAGE_TYPE_ASCII:
      return text_of(event->message.ascii);
    case NVTX_MESSAGE_TYPE_UNICODE:
      return narrow(event->message.unicode);
    case NVTX_MESSAGE_TYPE_REGISTERED:
      return event->message.registered == nullptr
                 ? std::string()
                 : *reinterpret_cast<const std::string*>(event->message.registered);
    default:
      return {};
  }
}

const Domain& domain_of(nvtxDomainHandle_t handle) {
  static const Domain* const unnamed = new Domain;
  return handle == nullptr ? *unnamed : *reinterpret_cast<const Domain*>(handle);
}

// ---- what NVTX calls

void tell(nofrag_trace_range_kind kind,
          const Domain& domain,
          std::uint64_t key,
          const std::string& name) {
  Recorder* const recorder = listening();
  if (recorder != nullptr && !domain.own) {
    recorder->range(kind, key, domain.prefix + name);
  }
}
int push(const Domain& domain, const std::string& name) {
  tell(NOFRAG_TRACE_RANGE_PUSH, domain, domain.number, name);
  return NVTX_NO_PUSH_POP_TRACKING;
}
int pop(const Domain& domain) {
  tell(NOFRAG_TRACE_RANGE_POP, domain, domain.number, {});
  return NVTX_NO_PUSH_POP_TRACKING;
}
nvtxRangeId_t begin(const Domain& domain, const std::string& name) {
  const std::uint64_t number = last_range.fetch_add(1, std::memory_order_relaxed) + 1;
  tell(NOFRAG_TRACE_RANGE_START, domain, number, name);
  return number;
}
void mark(const Domain& domain, const std::string& text) {
  Recorder* const recorder = listening();
  if (recorder != nullptr && !domain.own) {
    recorder->mark(domain.prefix + text);
  }
}

const Domain& any() {
  return domain_of(nullptr);
}

void mark_ex(const nvtxEventAttributes_t* event) {
  mark(any(), text_of(event));
}
void mark_a(const char* text) {
  mark(any(), text_of(text));
}
void mark_w(const wchar_t* text) {
  mark(any(), narrow(text));
}
nvtxRangeId_t start_ex(const nvtxEventAttributes_t* event) {
  return begin(any(), text_of(event));
}
nvtxRangeId_t start_a(const char* text) {
  return begin(any(), text_of(text));
}
nvtxRangeId_t start_w(const wchar_t* text) {
  return begin(any(), narrow(text));
}
void end_range(nvtxRangeId_t number) {
  tell(NOFRAG_TRACE_RANGE_END, any(), number, {});
}
int push_ex(const nvtxEventAttributes_t* event) {
  return push(any(), text_of(event));
}
int push_a(const char* text) {
  return push(any(), text_of(text));
}
int push_w(const wchar_t* text) {
  return push(any(), narrow(text));
}
int pop_any() {
  return pop(any());
}
void domain_mark(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  mark(domain_of(domain), text_of(event));
}
nvtxRangeId_t domain_start(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  return begin(domain_of(domain), text_of(event));
}
void domain_end(nvtxDomainHandle_t domain, nvtxRangeId_t number) {
  tell(NOFRAG_TRACE_RANGE_END, domain_of(domain), number, {});
}
int domain_push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  return push(domain_of(domain), text_of(event));
}
int domain_pop(nvtxDomainHandle_t domain) {
  return pop(domain_of(domain));
}

// A forked child may have been given these locks as another thread held them, and nothing is recorded in it.
nvtxDomainHandle_t domain_named(const std::string& whole) {
  if (Process::instance().forked()) {
    return nullptr;
  }
  const std::string name(utf8_front(whole, kLongestText));
  Names& all = names();
  const std::lock_guard lock(all.mutex);
  auto at = all.domains.find(name);
  if (at == all.domains.end()) {
    if (all.domains.size() == kMostDomains) {
      return nullptr;
    }
    at = all.domains.emplace(name, Domain{all.domains.size() + 1, name + ": ", name == kOwnDomain})
             .first;
  }
  return reinterpret_cast<nvtxDomainHandle_t>(&at->second);
}
nvtxDomainHandle_t domain_a(const char* name) {
  return domain_named(text_of(name));
}
nvtxDomainHandle_t domain_w(const wchar_t* name) {
  return domain_named(narrow(name));
}

nvtxStringHandle_t text_named(const std::string& whole) {
  if (Process::instance().forked()) {
    return nullptr;
  }
  const std::string text(utf8_front(whole, kLongestText));
  Names& all = names();
  const std::lock_guard lock(all.mutex);
  auto at = all.texts.find(text);
  if (at == all.texts.end()) {
    at = all.texts.insert(all.texts.size() < kMostTexts ? text : std::string("(one text too many)"))
             .first;
  }
  return reinterpret_cast<nvtxStringHandle_t>(const_cast<std::string*>(&*at));
}
nvtxStringHandle_t text_a(nvtxDomainHandle_t /*domain*/, const char* text) {
  return text_named(text_of(text));
}
nvtxStringHandle_t text_w(nvtxDomainHandle_t /*domain*/, const wchar_t* text) {
  return text_named(narrow(text));
}

class Table {
 public:
  Table(const NvtxExportTableCallbacks& callbacks, NvtxCallbackModule module) {
    if (callbacks.GetModuleFunctionTable(module, &table_, &size_) == 0) {
      size_ = 0;
    }
  }
  template <typename Function>
  void set(unsigned index, Function function) {
    if (index < size_ && table_[index] != nullptr) {
      *table_[index] = reinterpret_cast<NvtxFunctionPointer>(function);
    }
  }

 private:
  NvtxFunctionTable table_ = nullptr;
  unsigned size_ = 0;
};

}  // namespace

int listen_to_nvtx(const void* (*export_table)(std::uint32_t id)) {
  const auto* const callbacks =
      static_cast<const NvtxExportTableCallbacks*>(export_table(NVTX_ETID_CALLBACKS));
  if (callbacks == nullptr || callbacks->struct_size < sizeof *callbacks) {
    return 0;
  }
  Table core(*callbacks, NVTX_CB_MODULE_CORE);
  core.set(NVTX_CBID_CORE_MarkEx, &mark_ex);
  core.set(NVTX_CBID_CORE_MarkA, &mark_a);
  core.set(NVTX_CBID_CORE_MarkW, &mark_w);
  core.set(NVTX_CBID_CORE_RangeStartEx, &start_ex);
  core.set(NVTX_CBID_CORE_RangeStartA, &start_a);
  core.set(NVTX_CBID_CORE_RangeStartW, &start_w);
  core.set(NVTX_CBID_CORE_RangeEnd, &end_range);
  core.set(NVTX_CBID_CORE_RangePushEx, &push_ex);
  core.set(NVTX_CBID_CORE_RangePushA, &push_a);
  core.set(NVTX_CBID_CORE_RangePushW, &push_w);
  core.set(NVTX_CBID_CORE_RangePop, &pop_any);
  Table domains(*callbacks, NVTX_CB_MODULE_CORE2);
  domains.set(NVTX_CBID_CORE2_DomainMarkEx, &domain_mark);
  domains.set(NVTX_CBID_CORE2_DomainRangeStartEx, &domain_start);
  domains.set(NVTX_CBID_CORE2_DomainRangeEnd, &domain_end);
  domains.set(NVTX_CBID_CORE2_DomainRangePushEx, &domain_push);
  domains.set(NVTX_CBID_CORE2_DomainRangePop, &domain_pop);
  domains.set(NVTX_CBID_CORE2_DomainRegisterStringA, &text_a);
  domains.set(NVTX_CBID_CORE2_DomainRegisterStringW, &text_w);
  domains.set(NVTX_CBID_CORE2_DomainCreateA, &domain_a);
  domains.set(NVTX_CBID_CORE2_DomainCreateW, &domain_w);
  return 1;
}

#else

int listen_to_nvtx(const void* (* /*export_table*/)(std::uint32_t id)) {
  return 0;
}

#endif

}  // namespace nofrag
