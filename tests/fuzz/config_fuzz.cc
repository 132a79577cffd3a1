// Any bytes as a configuration: no crash, one problem or more exactly when the parser says so, and
// whatever was accepted is written back as text that means the same.
#include <cstdint>
#include <string>

#include "config/parser.h"
#include "config/torch_conf.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  nofrag::Options options;
  std::vector<std::string> problems;
  nofrag::OptionSet given;
  const bool good = nofrag::parse_options(text, &options, &problems, &given);
  NOFRAG_CHECK(good == problems.empty(), "parse_options and its problems disagree");

  for (std::size_t i = 0; i < nofrag::kOptionCount; ++i) {
    const std::string value = nofrag::option_value(options, static_cast<nofrag::OptionId>(i));
    nofrag::Options again;
    std::vector<std::string> none;
    NOFRAG_CHECK(nofrag::parse_option(
                     nofrag::option_key(static_cast<nofrag::OptionId>(i)), value, &again, &none),
                 "an accepted value is refused when written back");
    NOFRAG_CHECK(nofrag::option_value(again, static_cast<nofrag::OptionId>(i)) == value,
                 "an accepted value changes when written back");
  }

  // PyTorch's configuration: what is taken from it must be options of ours.
  for (const nofrag::TorchDoor door : {nofrag::TorchDoor::kHooks, nofrag::TorchDoor::kNative}) {
    const nofrag::TorchConf conf = nofrag::read_torch_conf(text, door);
    nofrag::Options taken;
    std::vector<std::string> none;
    NOFRAG_CHECK(nofrag::parse_options(conf.options, &taken, &none), "a taken option is refused");
  }
  return 0;
}
