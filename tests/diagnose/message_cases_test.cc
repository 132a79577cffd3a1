// Messages that are easily read wrongly: the verdict on each as a whole.
#include <string>

#include <gtest/gtest.h>

#include "diagnose/classify.h"
#include "diagnose/message/text_scan.h"
#include "diagnose/report.h"
#include "message_reading.h"

namespace nofrag {
namespace {

// As PyTorch prints it where it does not find itself among the processes of the card.
std::string in_container(const std::string& requested,
                         const std::string& card,
                         const std::string& processes,
                         const std::string& held) {
  return "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate " + requested +
         ". GPU 0 has a total capacity of " + card + " is free. " + processes +
         "Of the allocated memory " + held + " is reserved by PyTorch but unallocated.";
}

TEST(Container, AProcessThatHoldsWhatPyTorchDoesIsThisOne) {
  const Failure f = failure_in(in_container("4.00 GiB",
                                            "23.64 GiB of which 102.81 MiB",
                                            "Process 2211734 has 23.53 GiB memory in use. ",
                                            "22.70 GiB is allocated by PyTorch, and 400.22 MiB"));
  EXPECT_EQ(f.process_in_use, size_at("23.53 GiB"));
  EXPECT_EQ(f.others, std::nullopt);
  EXPECT_EQ(f.other_processes, 0U);
  const Diagnosis d = classify(f);
  EXPECT_NE(d.cause, Cause::kOtherProcess);
  EXPECT_TRUE(says(d.evidence, "process 2211734 is taken for this one: its 23.53 GiB"));
  EXPECT_FALSE(says(d.advice, "2211734"));
  EXPECT_FALSE(says(d.advice, "nvidia-smi"));
}

TEST(Container, OfSeveralTheClosestAboveIsThisOne) {
  const auto with = [](const std::string& processes, const std::string& requested) {
    return failure_in(in_container(requested,
                                   "79.25 GiB of which 1.10 GiB",
                                   processes,
                                   "46.70 GiB is allocated by PyTorch, and 400.22 MiB"));
  };
  const Failure f =
      with("Process 17 has 30.00 GiB memory in use. Process 18 has 48.10 GiB memory in use. ",
           "4.00 GiB");
  EXPECT_EQ(f.process_in_use, size_at("48.10 GiB"));
  EXPECT_EQ(f.others, size_at("30.00 GiB"));
  EXPECT_EQ(f.largest_other, "process 17");
  const Diagnosis d = classify(f);
  EXPECT_EQ(d.cause, Cause::kOtherProcess) << "what the other one holds is truly another's";
  EXPECT_TRUE(says(d.advice, "process 17"));
  EXPECT_FALSE(says(d.advice, "process 18"));
  EXPECT_EQ(with("Process 1 has 49.00 GiB memory in use. Process 2 has 47.50 GiB memory in use. ",
                 "1 GiB")
                .process_in_use,
            size_at("47.50 GiB"));
  // Less than PyTorch itself holds is none of it.
  EXPECT_EQ(with("Process 1 has 30.00 GiB memory in use. ", "4.00 GiB").process_in_use,
            std::nullopt);
}

TEST(Container, FarMoreThanPyTorchHoldsIsThisOneWhereBothHaveNoRoom) {
  const std::string process = "Process 99 has 78.05 GiB memory in use. ";
  const std::string held =
      "60.90 GiB is allocated by PyTorch, with 10.50 GiB allocated in private pools (e.g., CUDA "
      "Graphs), and 14.22 GiB";
  const Failure f =
      failure_in(in_container("2.00 GiB", "79.11 GiB of which 1.05 GiB", process, held));
  EXPECT_EQ(f.process_in_use, size_at("78.05 GiB"));
  const Diagnosis d = classify(f);
  EXPECT_EQ(d.cause, Cause::kFragmentation);
  EXPECT_FALSE(says(d.advice, "process 99"));
  // On a card that has room for both it is another's.
  const Failure roomy =
      failure_in(in_container("2.00 GiB", "183.00 GiB of which 1.05 GiB", process, held));
  EXPECT_EQ(roomy.process_in_use, std::nullopt);
  EXPECT_EQ(roomy.others, size_at("78.05 GiB"));
}

TEST(Container, WhereThisProcessIsNamedTheOthersAreOthers) {
  const Failure f = failure_in(
      in_container("4.00 GiB",
                   "23.64 GiB of which 102.81 MiB",
                   "Process 7 has 11.20 GiB memory in use. Including non-PyTorch memory, this "
                   "process has 11.50 GiB memory in use. ",
                   "10.70 GiB is allocated by PyTorch, and 100.22 MiB"));
  EXPECT_EQ(f.process_in_use, size_at("11.50 GiB"));
  EXPECT_EQ(f.others, size_at("11.20 GiB"));
  EXPECT_EQ(classify(f).cause, Cause::kOtherProcess);
}

TEST(RefusedBelow, IsNothingThatRemappingWouldServe) {
  const Failure f = failure_in(
      "RuntimeError: CUDA out of memory. Tried to allocate 86.00 MiB (GPU 0; 7.79 GiB total "
      "capacity; 0 bytes already allocated; 6.52 GiB free; 0 bytes reserved in total by PyTorch)");
  const Diagnosis d = classify(f);
  EXPECT_EQ(d.cause, Cause::kRefusedBelow);
  EXPECT_FALSE(d.recoverable_by_remapping);
  EXPECT_EQ(full_report(f, d, {}).find("remaps"), std::string::npos);
}

}  // namespace
}  // namespace nofrag
