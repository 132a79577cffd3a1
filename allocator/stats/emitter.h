// Emitter: a tree of named values, written as JSON or as indented text.
//
// One walk over the statistics feeds either writer, so the two can never disagree on a name or a
// number. The root is an object, open from the start; take() closes it. Layer: stats. Units: byte
// values are plain integers in JSON; text adds MiB or GiB. Invariants: opens and closes are
// balanced (checked at the end). Threads: one object, one thread. Failure: none. Cost: appends to
// one string.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nofrag {

enum class StatUnit : unsigned char { kBytes, kCount };

class Emitter {
 public:
  Emitter() = default;
  Emitter(const Emitter&) = delete;
  Emitter& operator=(const Emitter&) = delete;
  virtual ~Emitter() = default;

  virtual void open_object(std::string_view key) = 0;
  // An object in a list; `label` heads it in text and is left out of JSON.
  virtual void open_item(std::string_view label) = 0;
  virtual void close_object() = 0;
  virtual void open_list(std::string_view key) = 0;
  virtual void close_list() = 0;
  virtual void number(std::string_view key, std::uint64_t value, StatUnit unit) = 0;
  // `decimals` digits after the point; not-a-number and infinity are written as 0.
  virtual void real(std::string_view key, double value, int decimals) = 0;
  virtual void text(std::string_view key, std::string_view value) = 0;
};

class JsonEmitter final : public Emitter {
 public:
  void open_object(std::string_view key) override;
  void open_item(std::string_view label) override;
  void close_object() override;
  void open_list(std::string_view key) override;
  void close_list() override;
  void number(std::string_view key, std::uint64_t value, StatUnit unit) override;
  void real(std::string_view key, double value, int decimals) override;
  void text(std::string_view key, std::string_view value) override;
  std::string take();

 private:
  void begin_value(std::string_view key);

  std::string out_ = "{";
  int depth_ = 1;
  bool first_ = true;  // nothing written yet in the innermost object or list
};

class TextEmitter final : public Emitter {
 public:
  void open_object(std::string_view key) override;
  void open_item(std::string_view label) override;
  void close_object() override;
  void open_list(std::string_view key) override;
  void close_list() override;
  void number(std::string_view key, std::uint64_t value, StatUnit unit) override;
  void real(std::string_view key, double value, int decimals) override;
  void text(std::string_view key, std::string_view value) override;
  std::string take();

 private:
  void line(std::string_view key, std::string_view value);

  std::string out_;
  int depth_ = 0;
};

}  // namespace nofrag
