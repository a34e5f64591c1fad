// Threads: every worker runs every task once, barriers hold, teams come and go; a session gives the same bits
// on any number of them. Also run under -fsanitize=thread (label `threads`).
#include "model/thread_team.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <numeric>

#include "memory/log.h"
#include "tests/model/support.h"

namespace duet::model {
namespace {

struct Counts {
  std::array<std::atomic<int>, 8> per_worker{};
  std::atomic<int> wrong_counts{0};
  int workers = 0;
};

TEST(ThreadTeam, RunsEveryTaskOnceOnEveryWorker) {
  for (int workers = 1; workers <= 8; ++workers) {
    auto team = ThreadTeam::create(workers);
    ASSERT_TRUE(team);
    EXPECT_EQ((*team)->workers(), workers);
    Counts counts;
    counts.workers = workers;
    constexpr int kTasks = 100;
    for (int i = 0; i < kTasks; ++i) {
      (*team)->run(
          [](void* context, Worker worker) {
            auto& c = *static_cast<Counts*>(context);
            ++c.per_worker[static_cast<size_t>(worker.index)];
            if (worker.count != c.workers) ++c.wrong_counts;
          },
          &counts);
      // run() returns when all are done, not before.
      for (int w = 0; w < workers; ++w)
        ASSERT_EQ(counts.per_worker[static_cast<size_t>(w)], i + 1) << workers << " workers";
    }
    EXPECT_EQ(counts.wrong_counts, 0);
    for (size_t w = static_cast<size_t>(workers); w < 8; ++w) EXPECT_EQ(counts.per_worker[w], 0);
  }
}

struct Phases {
  ThreadTeam* team;
  std::array<int, 8> at{};  // not atomic: the barriers alone order these, which the thread sanitizer checks
  std::atomic<int> early{0};
};

TEST(ThreadTeam, NobodyPassesABarrierBeforeAllHaveArrived) {
  for (int workers = 1; workers <= 8; ++workers) {
    auto team = ThreadTeam::create(workers);
    ASSERT_TRUE(team);
    Phases phases{team->get()};
    for (int call = 0; call < 3; ++call) {
      (*team)->run(
          [](void* context, Worker worker) {
            auto& p = *static_cast<Phases*>(context);
            for (int phase = 0; phase < 40; ++phase) {
              ++p.at[static_cast<size_t>(worker.index)];
              p.team->barrier();
              for (int w = 0; w < worker.count; ++w)
                if (p.at[static_cast<size_t>(w)] != p.at[static_cast<size_t>(worker.index)]) ++p.early;
              p.team->barrier();
            }
          },
          &phases);
    }
    EXPECT_EQ(phases.early, 0) << workers << " workers";
    for (int w = 0; w < workers; ++w) EXPECT_EQ(phases.at[static_cast<size_t>(w)], 120);
  }
}

TEST(ThreadTeam, ComesAndGoesManyTimesUsedOrNot) {
  for (int i = 0; i < 200; ++i) {
    auto team = ThreadTeam::create(1 + i % 8);
    ASSERT_TRUE(team);
    if (i % 3 == 0) continue;
    std::atomic<int> ran{0};
    (*team)->run([](void* context, Worker) { ++*static_cast<std::atomic<int>*>(context); }, &ran);
    ASSERT_EQ(ran, 1 + i % 8);
  }
}

TEST(Worker, SharesCoverEveryItemOnce) {
  for (int64_t items : {0, 1, 2, 7, 8, 100, 1001}) {
    for (int count = 1; count <= 9; ++count) {
      int64_t next = 0;
      for (int w = 0; w < count; ++w) {
        auto [begin, end] = Worker{w, count}.share(items);
        EXPECT_EQ(begin, next);
        EXPECT_GE(end, begin);
        EXPECT_LE(end - begin, items / count + 1);
        next = end;
      }
      EXPECT_EQ(next, items);
    }
  }
}

// Prefill of three sentences and greedy steps: all outputs, then all state.
std::vector<std::byte> everything(Session& session) {
  std::vector<std::byte> bytes;
  auto keep = [&](const TensorView& view) { bytes.insert(bytes.end(), view.data, view.data + view.bytes()); };
  auto call = [&](const char* method, std::vector<TensorView> inputs) {
    auto outputs = session.execute(session.find_method(method), inputs);
    ASSERT_TRUE(outputs) << outputs.error().message;
    for (const TensorView& output : *outputs) keep(output);
  };
  std::vector<int32_t> source = {1, 2, 3, 4, 0, 5, 0, 6, 7, 0}, lengths = {5, 2, 3}, slots = {2, 0, 3},
                       prompt = {11, 11, 1, 2, 11}, prompts = {1, 3, 1}, limits = {5, 5, 4};
  call("reset_encode_prefill", {view_of(source), view_of(lengths), view_of(slots), view_of(prompt),
                                view_of(prompts), view_of(limits)});
  for (int i = 0; i < 3; ++i) {
    std::vector<int32_t> going;
    for (int32_t slot : slots)
      if (session.shared("slots.status").as<int32_t>()[slot] == 1) going.push_back(slot);
    if (going.empty()) break;
    call("decode", {view_of(going)});
  }
  for (const SharedBuffer& buffer : session.program().definition().shared) keep(session.shared(buffer.name));
  return bytes;
}

TEST(Session, GivesTheSameBitsOnAnyNumberOfThreads) {
  memory::set_log_level(memory::LogLevel::kError);
  TemporaryDirectory directory;
  MultiEntryPointExporter exporter;
  build_small_marian(exporter);
  auto program = save_and_open(exporter, directory);
  ASSERT_TRUE(program);
  std::vector<std::byte> one;
  for (int threads : {1, 2, 3, 4, 8}) {
    auto session = open_session(program, {{"slots", 4}}, threads);
    ASSERT_TRUE(session);
    session->poison_workspace();
    auto all = everything(*session);
    if (threads == 1) one = all;
    EXPECT_GT(all.size(), 1000u);
    EXPECT_EQ(one, all) << threads << " threads";
  }
}

TEST(Session, ReportsTheFailureOfAParallelStepFromAnyThread) {
  memory::set_log_level(memory::LogLevel::kError);
  TemporaryDirectory directory;
  MultiEntryPointExporter exporter;
  exporter.dynamic("rows", 1, 64);
  exporter.constant("W", std::vector<float>(16 * 4, 1.0f), {16, 4}, Layout::kPanels);
  exporter.constant("P", std::vector<float>(16 * 4, 1.0f), {16, 4});
  auto& m = exporter.method("run");
  auto ids = m.input("ids", DType::kI32, {"rows"});
  auto x = m.call("embed", "embedding", {ids, ids, "W", "P"}, {{"scale", 1.0}});
  m.output("y", m.call("linear", "l", {x, "W"}));
  auto program = save_and_open(exporter, directory);
  ASSERT_TRUE(program);
  for (int threads : {1, 2, 4, 8}) {
    auto session = open_session(program, {}, threads);
    ASSERT_TRUE(session);
    for (int i = 0; i < 200; ++i) {
      std::vector<int32_t> values(64, 3);
      values[static_cast<size_t>(i * 7 % 64)] = i % 2 ? 16 : 3;
      TensorView view = view_of(values);
      auto outputs = session->execute(session->find_method("run"), {&view, 1});
      ASSERT_EQ(static_cast<bool>(outputs), i % 2 == 0) << threads << " threads, call " << i;
      if (!outputs) expect_error(outputs, ErrorCode::kUsage, {"method run", "embedding", "token id 16"});
    }
  }
}

}  // namespace
}  // namespace duet::model
