#include "cli/usage.h"

#include <string_view>

#include <fmt/format.h>

namespace nofrag {
namespace {

bool holds(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Is `name` a word of the text? "--to" is none of "--torch".
bool names(std::string_view text, std::string_view name) {
  for (std::size_t at = text.find(name); at != std::string_view::npos;
       at = text.find(name, at + 1)) {
    const std::size_t end = at + name.size();
    const bool begins = at == 0 || text[at - 1] == ' ';
    if (begins && (end == text.size() || text[end] == ' ' || text[end] == ':')) {
      return true;
    }
  }
  return false;
}

const CLI::Option* option_in(const CLI::App& command, std::string_view text) {
  for (const CLI::Option* option : command.get_options()) {
    bool named = !option->get_name().empty() && names(text, option->get_name());
    for (const std::string& name : option->get_lnames()) {
      named = named || names(text, name);  // some messages leave out the dashes
    }
    if (named) {
      return option;
    }
  }
  return nullptr;
}

}  // namespace

std::string file_hint(std::string_view word) {
  return fmt::format("; a file called '{0}' is written './{0}'", word);
}

std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const auto subcommands = app.get_subcommands();
  const CLI::App& command = subcommands.empty() ? app : *subcommands.front();
  const std::string program = &command == &app ? "nofrag" : "nofrag " + command.get_name();
  const std::string help = fmt::format("; see '{} --help'", program);
  const std::string_view said = error.what();
  const CLI::Option* option = option_in(command, said);
  if (option == nullptr) {
    return std::string(said) + help;
  }
  const std::string name = option->get_name();
  const std::string meaning = fmt::format(" ({})", option->get_description());
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    return fmt::format("{}: {} is missing{}{}{}",
                       command.get_name(),
                       name,
                       meaning,
                       command.get_name() == "convert" ? kConvertExample : "",
                       help);
  }
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) {
    const std::size_t value = said.find(" = ");
    const std::string_view given = value == std::string_view::npos ? "" : said.substr(value + 3);
    return fmt::format("{}: expected a number, found '{}'{}{}", name, given, meaning, help);
  }
  if (holds(said, "flag override")) {
    return fmt::format("{} takes no value: leave out what follows it after '='{}", name, help);
  }
  if (holds(said, "missing")) {
    return fmt::format("{}: its value is missing{}{}", name, meaning, help);
  }
  if (holds(said, "At Most")) {
    return fmt::format("{}: given more than once; give it once{}", name, help);
  }
  return std::string(said) + help;
}

}  // namespace nofrag
