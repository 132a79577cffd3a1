#include "api/edge.h"
#include "config/torch_conf.h"
#include "runtime/process.h"
#include "torch_plugin/hooks.h"

nofrag_status nofrag_torch_configure(const char* conf,
                                     int native,
                                     char* buffer,
                                     std::size_t capacity,
                                     std::size_t* needed) noexcept {
  if (conf == nullptr) {
    return nofrag::invalid_argument("conf is NULL");
  }
  const nofrag::TorchDoor door =
      native != 0 ? nofrag::TorchDoor::kNative : nofrag::TorchDoor::kHooks;
  const nofrag::TorchConf read = nofrag::read_torch_conf(conf, door);
  if (!read.refusal.empty()) {
    return nofrag::to_status(
        nofrag::set_last_error({nofrag::Errc::kNotSupported}, "%s", read.refusal.c_str()));
  }
  const nofrag::Status preferred =
      nofrag::Process::instance().prefer("PYTORCH_CUDA_ALLOC_CONF", read.options);
  if (!preferred) {
    return nofrag::to_status(preferred.error());
  }
  std::string notes;
  for (const std::string& note : read.notes) {
    notes += note + "\n";
  }
  return nofrag::copy_text(notes, buffer, capacity, needed);
}
