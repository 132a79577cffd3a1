// Device files: what the built-in ones hold, and what a bad one is told.
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "driver/simulated/device_spec.h"

namespace nofrag {
namespace {

std::string constant_costs() {
  std::string text = "{";
  for (std::size_t i = 0; i < kDriverCallCount; ++i) {
    text += i == 0 ? "\"" : ", \"";
    text += to_string(static_cast<DriverCall>(i));
    text += "\": 1";
  }
  return text + "}";
}

// A valid file that the tests damage.
nlohmann::json valid_file() {
  nlohmann::json file = {{"format", "nofrag.device/1"},
                         {"name", "test card"},
                         {"source", "made up"},
                         {"total_memory", 1073741824},
                         {"granularity", 2097152}};
  file["capabilities"] = {{"virtual_memory", true}, {"shareable_fd", true}};
  file["costs_us"] = parse_json(constant_costs());
  return file;
}

std::string error_of(const std::string& text) {
  SimulatedDeviceFile file;
  std::string error;
  EXPECT_FALSE(parse_simulated_device(text, "card.json", &file, &error)) << text;
  return error;
}

TEST(DeviceFile, BuiltInH100) {
  SimulatedDeviceFile file;
  std::string error;
  ASSERT_TRUE(load_simulated_device("h100-80g", &file, &error)) << error;
  const DeviceInfo& info = file.spec.info;
  EXPECT_EQ(info.name, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(info.total_memory, Bytes(85029158912));
  EXPECT_EQ(info.granularity, 2 * kMiB);
  EXPECT_TRUE(info.virtual_memory && info.rdma_with_vmm && info.shareable_fd &&
              info.shareable_fabric && info.compression && info.host_numa_vmm);
  EXPECT_NE(file.source.find("driver 580"), std::string::npos);
}

TEST(DeviceFile, EveryBuiltInLoads) {
  const std::vector<std::string_view> names = builtin_simulated_devices();
  ASSERT_FALSE(names.empty());
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  for (const std::string_view name : names) {
    SimulatedDeviceFile file;
    std::string error;
    EXPECT_TRUE(load_simulated_device(name, &file, &error)) << error;
  }
}

TEST(DeviceFile, UnknownNameListsTheKnownOnes) {
  SimulatedDeviceFile file;
  std::string error;
  EXPECT_FALSE(load_simulated_device("h100", &file, &error));
  EXPECT_NE(error.find("'h100'"), std::string::npos) << error;
  EXPECT_NE(error.find("h100-80g"), std::string::npos) << error;
  EXPECT_FALSE(load_simulated_device("no/such/card.json", &file, &error));
  EXPECT_NE(error.find("no/such/card.json: cannot be read"), std::string::npos) << error;
  EXPECT_FALSE(load_simulated_device("", &file, &error));
}

TEST(DeviceFile, ReadsAFile) {
  const std::string path = testing::TempDir() + "/nofrag_device_file_test.json";
  std::ofstream(path) << valid_file().dump();
  SimulatedDeviceFile file;
  std::string error;
  ASSERT_TRUE(load_simulated_device(path, &file, &error)) << error;
  EXPECT_EQ(file.spec.info.name, "test card");
  EXPECT_FALSE(file.spec.info.compression) << "abilities not named are absent";
  EXPECT_DOUBLE_EQ(file.spec.costs[DriverCall::kMap].microseconds(kGiB), 1);
}

TEST(DeviceFile, BadFilesNameFileKeyAndExpectation) {
  using Json = nlohmann::json;
  struct Case {
    const char* pointer;
    Json value;
    const char* key;
    const char* expectation;
  };
  const std::vector<Case> cases = {
      {"/format", "nofrag.device/9", "format", "nofrag.device/1"},
      {"/name", 7, "name", "non-empty string"},
      {"/total_memory", -5, "total_memory", "whole number of bytes"},
      {"/total_memory", "80G", "total_memory", "whole number of bytes"},
      {"/total_memory", 0, "total_memory", "more than 0"},
      {"/granularity", 3000000, "granularity", "power of two"},
      {"/capabilities", true, "capabilities", "object"},
      {"/capabilities/virtual_memory", "yes", "capabilities.virtual_memory", "true or false"},
      {"/capabilities/teleport", true, "capabilities.teleport", "virtual_memory"},
      {"/color", "green", "color", "one of format"},
      {"/costs_us", 3, "costs_us", "object"},
      {"/costs_us/mapp", 3, "costs_us.mapp", "name of a driver call"},
      {"/costs_us/map", -1, "costs_us.map", "0 to 1e9"},
      {"/costs_us/map", "cheap", "costs_us.map", "points_mib"},
      {"/costs_us/map", Json::object(), "costs_us.map.points_mib", "present"},
      {"/costs_us/map", {{"points_mib", Json::array()}}, "costs_us.map.points_mib", "pairs"},
      {"/costs_us/map", {{"points_mib", {{1, 2, 3}}}}, "costs_us.map.points_mib", "pairs"},
      {"/costs_us/map", {{"points_mib", {{4, 1}, {2, 1}}}}, "costs_us.map.points_mib", "ascend"},
      {"/costs_us/map", {{"points_mib", {{2, 1}}}, {"fail", 1}}, "costs_us.map.fail", "failure"}};
  for (const Case& bad : cases) {
    Json file = valid_file();
    file[Json::json_pointer(bad.pointer)] = bad.value;
    const std::string error = error_of(file.dump());
    EXPECT_NE(error.find("card.json: " + std::string(bad.key)), std::string::npos)
        << bad.pointer << " -> " << error;
    EXPECT_NE(error.find(bad.expectation), std::string::npos) << bad.pointer << " -> " << error;
  }
}

TEST(DeviceFile, MissingKeysAreNamed) {
  for (const char* key :
       {"format", "name", "source", "total_memory", "granularity", "capabilities", "costs_us"}) {
    nlohmann::json file = valid_file();
    file.erase(key);
    EXPECT_NE(error_of(file.dump()).find(std::string("card.json: ") + key), std::string::npos);
  }
  nlohmann::json file = valid_file();
  file["costs_us"].erase("set_access");
  EXPECT_NE(error_of(file.dump()).find("costs_us.set_access"), std::string::npos);
}

TEST(DeviceFile, DamagedTextGivesTheByte) {
  EXPECT_NE(error_of("{\"format\": ").find("card.json: byte 12"), std::string::npos)
      << error_of("{\"format\": ");
  EXPECT_EQ(error_of("{\"format\": "),
            "card.json: byte 12: expected JSON (unexpected end of input)");
  EXPECT_EQ(error_of("{\"format\": 1e999}"), "card.json: number overflow parsing '1e999'");
  EXPECT_NE(error_of("").find("card.json: byte"), std::string::npos);
  EXPECT_NE(error_of("[1, 2]").find("JSON object"), std::string::npos);
  EXPECT_NE(error_of(std::string("\0\x80\xff", 3)).find("card.json"), std::string::npos);
  EXPECT_FALSE(error_of(std::string(200000, '[')).empty());
}

TEST(DeviceFile, AFailedLoadTouchesNothing) {
  SimulatedDeviceFile file;
  file.source = "before";
  std::string error;
  EXPECT_FALSE(parse_simulated_device("{}", "card.json", &file, &error));
  EXPECT_EQ(file.source, "before");
}

}  // namespace
}  // namespace nofrag
