// read_oom_message: what an out-of-memory message of another allocator says, as a Failure.
//
// Layer: diagnose. Knows the wordings of PyTorch 0.4 to 2.14 (CUDA, HIP, XPU, MPS; the native and the
// cudaMallocAsync backend), CuPy, JAX and TensorFlow (BFC allocator), RMM, ONNX Runtime, llama.cpp, vLLM, and the
// programs of application_messages.cc and program_message.cc, plain CUDA errors, nofrag's own, and those of the machine's
// memory: Linux's OOM killer, what containers and batch systems make of it, PyTorch's data loader and shared memory,
// numpy, NCCL, Ray. The text may be a whole log: the last message counts, and its traceback and the lines close before it tell the moment.
// Invariants: any bytes are accepted. Threads: pure functions. Failure: a text without a message gives a Failure with an
// empty source. Cost: a few passes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "diagnose/failure.h"

namespace nofrag {

struct OomMessage {
  Failure failure;
  // The verdict that nofrag, which had the history, wrote beside its numbers.
  std::optional<Cause> said_cause;
  double said_confidence = 0;
  // Only words that any program has for its memory, and nothing that names a GPU's.
  bool vague = false;
};

[[nodiscard]] OomMessage read_oom_message(std::string_view text);

// What a pasted text may look like instead of plain UTF-8: UTF-16 of either order, NUL bytes, terminal
// colours. The result is fit for read_oom_message.
[[nodiscard]] std::string plain_text(std::string_view bytes);

namespace detail {
// Notes sizes below zero, and such as can be read in two ways, in the message's own words.
void refuse_unclear(std::string_view message, Failure* failure);
// Each fills *message and returns true if the text has such a message.
bool read_host_message(std::string_view text, OomMessage* message);
// Memory of other programs and languages (Java's heap, a database), whose words a GPU's messages have too; and the text
// without those words, in which a GPU's message is still to be found.
bool read_program_message(std::string_view text, OomMessage* message);
std::string without_program_messages(std::string_view text);
// Of a text in which nothing else is found: a process that was killed, an error that any memory may raise.
bool guess_host_message(std::string_view text, OomMessage* message);
bool read_nofrag_message(std::string_view text, OomMessage* message);
bool read_torch_message(std::string_view text, OomMessage* message);
bool read_bfc_message(std::string_view text, OomMessage* message);
bool read_application_message(std::string_view text, OomMessage* message);
// A server that goes on in pinned memory: what counts only where nothing else is told.
bool read_triton_warning(std::string_view text, Failure* failure);
bool read_other_message(std::string_view text, OomMessage* message);
// Where the last message of each kind is, or kNowhere: PyTorch's; one whose beginning is known; plain words.
std::size_t last_torch_message(std::string_view text);
std::size_t last_headline(std::string_view text);
std::size_t last_plain_sign(std::string_view text);
// Of a text with several failures, from shortly before the last one on, where that is told in other words than the one
// before and far behind it: which of them a reader of the whole text finds is a matter of its order. Else empty.
std::string_view text_of_last_failure(std::string_view text);
// Where the message is that was read as this failure, or kNowhere.
std::size_t place_of(std::string_view text, const Failure& failure);
// What the failure's own traceback, before the message or behind it, or a line close before says of its moment.
Moment moment_near(std::string_view text, std::size_t at);
// The rest of the line, and the frames directly behind it.
std::string words_behind(std::string_view text, std::size_t at);
// What a program that runs on another framework adds to that one's message.
void note_application(std::string_view text, Failure* failure);
// Is what stands at `at` told of a process that has ended, by Ollama, which started it? That process has said more of it.
bool is_ollamas_summary(std::string_view text, std::size_t at);
// Which of several failures this one is, and how the first one reads.
void note_several_failures(std::string_view text, Failure* failure);
}  // namespace detail

}  // namespace nofrag
