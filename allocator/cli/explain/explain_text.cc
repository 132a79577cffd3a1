#include <algorithm>

#include "cli/explain/explain.h"
#include "diagnose/advice.h"
#include "diagnose/classify.h"
#include "diagnose/message/oom_message.h"

namespace nofrag {
namespace {

// The numbers say what was short, and of what; the words that nofrag put beside them had the history too.
void take_said(const OomMessage& message, Diagnosis* d) {
  if (!message.said_cause || *message.said_cause == Cause::kUnknown) {
    return;
  }
  if (*message.said_cause != d->cause) {
    d->evidence.clear();
  }
  d->cause = *message.said_cause;
  d->confidence = message.said_confidence;
  d->evidence.insert(d->evidence.begin(), "nofrag's own report, which had the history, says so");
}

}  // namespace

Explained explain_text(std::string_view bytes) {
  Explained explained;
  const std::string text = plain_text(bytes);
  OomMessage message = read_oom_message(text);
  explained.kind = message.failure.source.empty() ? "nothing" : "message";
  explained.failure = std::move(message.failure);
  explained.diagnosis = classify(explained.failure);
  if (message.said_cause) {
    take_said(message, &explained.diagnosis);
    explained.diagnosis.advice = advise(explained.failure, explained.diagnosis);
  }
  if (explained.kind == "nothing") {
    explained.diagnosis.missing.insert(explained.diagnosis.missing.begin(),
                                       bytes.empty()
                                           ? "any text: the input is empty"
                                           : "an out-of-memory message that is known here");
  }
  return explained;
}

}  // namespace nofrag
