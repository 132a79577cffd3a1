// CUB and Thrust in a loop with random sizes, as a server would: temporary storage and device_vectors come and
// go. Results are checked against the host. Times cudaMalloc and cudaFree of the temporaries alone, with the
// device idle, so that waiting for kernels is no part of it.
//
// usage: library_loop ROUNDS SEED; prints "wrong N" and "RESULT {json}".
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include <cub/cub.cuh>
#include <thrust/device_vector.h>
#include <thrust/scan.h>
#include <thrust/sort.h>
#include <thrust/unique.h>

namespace {

double spent_us = 0;
long calls = 0;
long failures = 0;

template <typename Call>
void timed(Call call) {
  if (cudaDeviceSynchronize() != cudaSuccess) {
    ++failures;
  }
  const auto begin = std::chrono::steady_clock::now();
  if (call() != cudaSuccess) {
    ++failures;
  }
  spent_us +=
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
  ++calls;
}

template <typename T>
T* take(std::size_t count) {
  void* p = nullptr;
  timed([&] { return cudaMalloc(&p, count * sizeof(T)); });
  return static_cast<T*>(p);
}

void give(void* p) {
  timed([&] { return cudaFree(p); });
}

long with_cub(const std::vector<unsigned>& host) {
  const std::size_t count = host.size();
  unsigned* in = take<unsigned>(count);
  unsigned* out = take<unsigned>(count);
  unsigned* sums = take<unsigned>(count);
  unsigned* distinct = take<unsigned>(count);
  unsigned* number = take<unsigned>(1);
  cudaMemcpy(in, host.data(), count * 4, cudaMemcpyHostToDevice);
  std::size_t bytes = 0;
  cub::DeviceRadixSort::SortKeys(nullptr, bytes, in, out, count);
  void* storage = take<char>(bytes);
  cub::DeviceRadixSort::SortKeys(storage, bytes, in, out, count);
  give(storage);
  cub::DeviceScan::ExclusiveSum(nullptr, bytes, out, sums, count);
  storage = take<char>(bytes);
  cub::DeviceScan::ExclusiveSum(storage, bytes, out, sums, count);
  give(storage);
  cub::DeviceSelect::Unique(nullptr, bytes, out, distinct, number, count);
  storage = take<char>(bytes);
  cub::DeviceSelect::Unique(storage, bytes, out, distinct, number, count);
  give(storage);
  std::vector<unsigned> sorted(count);
  std::vector<unsigned> summed(count);
  unsigned found = 0;
  cudaMemcpy(sorted.data(), out, count * 4, cudaMemcpyDeviceToHost);
  cudaMemcpy(summed.data(), sums, count * 4, cudaMemcpyDeviceToHost);
  cudaMemcpy(&found, number, 4, cudaMemcpyDeviceToHost);
  for (unsigned* p : {in, out, sums, distinct, number}) {
    give(p);
  }
  std::vector<unsigned> expected = host;
  std::sort(expected.begin(), expected.end());
  std::vector<unsigned> expected_sums(count);
  std::exclusive_scan(expected.begin(), expected.end(), expected_sums.begin(), 0u);
  std::vector<unsigned> once = expected;
  once.erase(std::unique(once.begin(), once.end()), once.end());
  return static_cast<long>(sorted != expected) + static_cast<long>(summed != expected_sums) +
         static_cast<long>(found != once.size());
}

long with_thrust(const std::vector<unsigned>& host) {
  thrust::device_vector<unsigned> values(host.begin(), host.end());
  thrust::sort(values.begin(), values.end());
  thrust::device_vector<unsigned> sums(values.size());
  thrust::inclusive_scan(values.begin(), values.end(), sums.begin());
  values.erase(thrust::unique(values.begin(), values.end()), values.end());
  std::vector<unsigned> once = host;
  std::sort(once.begin(), once.end());
  const unsigned total = std::accumulate(once.begin(), once.end(), 0u);
  once.erase(std::unique(once.begin(), once.end()), once.end());
  std::vector<unsigned> back(values.size());
  thrust::copy(values.begin(), values.end(), back.begin());
  return static_cast<long>(back != once) + static_cast<long>(sums.back() != total);
}

}  // namespace

int main(int count, char** words) {
  const int rounds = count > 1 ? std::atoi(words[1]) : 100;
  std::mt19937 random(count > 2 ? static_cast<unsigned>(std::atoi(words[2])) : 1u);
  long wrong = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (int round = 0; round < rounds; ++round) {
    std::vector<unsigned> host((std::size_t{1} << (8 + random() % 12)) + random() % 5000);
    for (unsigned& value : host) {
      value = random() % 100000;
    }
    wrong += with_cub(host) + with_thrust(host);
    if (round == rounds / 5) {
      spent_us = 0;  // caches are warm, modules loaded
      calls = 0;
    }
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("wrong %ld, failures %ld\n", wrong, failures);
  std::printf(
      "RESULT {\"wrong\": %ld, \"failures\": %ld, \"calls\": %ld, \"us_a_call\": %.3f, "
      "\"seconds\": %.2f}\n",
      wrong,
      failures,
      calls,
      spent_us / static_cast<double>(calls),
      seconds);
  return wrong == 0 && failures == 0 ? 0 : 1;
}
