#include "pipeline/stage_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "core/check.h"
#include "tests/support/error_of.h"

namespace ferry {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(StageLayout, EvenStagesHoldEveryLayer) {
  EXPECT_THAT(even_stages(6, 3),
              ElementsAre(StageLayers{true, 0, 2, false}, StageLayers{false, 2, 2, false},
                          StageLayers{false, 4, 2, true}));
  EXPECT_THAT(even_stages(4, 1), ElementsAre(StageLayers{true, 0, 4, true}));
  EXPECT_THAT(error_of(ExitCode::Internal, [] { even_stages(7, 2); }),
              HasSubstr("7 layers in 2 equal stages"));
}

TEST(StageLayout, RepetitionsAreWrittenOut) {
  const std::map<std::string, std::string> layouts = {
      {"Et*3|(tt|)*2t*3L", "Ettt|tt|tt|tttL"},
      {"E,tt | tt,L", "Ett|ttL"},
      {"E(t|t)*2L", "Et|tt|tL"},
      {"E|*3tL", "E|||tL"},
      {"Et*3|(tt|)*29,t*3L", "Ettt|" +
                                 [] {
                                   std::string pairs;
                                   for (int i = 0; i < 29; ++i) pairs += "tt|";
                                   return pairs;
                                 }() +
                                 "tttL"},
  };
  for (const auto& [layout, flat] : layouts) EXPECT_EQ(unroll_layout(layout), flat) << layout;
  for (const char* illegal :
       {"Ett|ttX", "E(tt|)ttL", "E(t*2|*2", "Et*|tttL", "Et*0ttttL", "E((t)*2)*2L",
        "Et*99999999999999999999L", "Et*4)L", "Et*65537L", "E(tttt)*16385L", "EtmL", "*2", "E2L"}) {
    EXPECT_EQ(unroll_layout(illegal), std::nullopt) << illegal;
    EXPECT_EQ(num_layout_stages(illegal), std::nullopt) << illegal;
  }
  EXPECT_EQ(num_layout_stages("Et*3|(tt|)*29,tL"), 31);
}

TEST(StageLayout, LayoutsBecomeStages) {
  EXPECT_THAT(parse_layout("Et*3||(t|)*2,L", 5),
              ElementsAre(StageLayers{true, 0, 3, false}, StageLayers{false, 3, 0, false},
                          StageLayers{false, 3, 1, false}, StageLayers{false, 4, 1, false},
                          StageLayers{false, 5, 0, true}));
  EXPECT_EQ(parse_layout("E(t*2|)*3,t*2L", 8).size(), 4u);
  EXPECT_EQ(parse_layout("(E)*1t(L)*1", 1), even_stages(1, 1));
}

TEST(StageLayout, TextAndStagesAreTheSame) {
  const std::map<std::string, int64_t> layouts = {
      {"Et*3|t*2|t*2|t*3L", 10}, {"EtL", 1}, {"E|t|L", 1}, {"E||t*4L", 4}, {"EL", 0}};
  for (const auto& [layout, num_layers] : layouts)
    EXPECT_EQ(layout_text(parse_layout(layout, num_layers)), layout);
  EXPECT_EQ(layout_text(even_stages(32, 4)), "Et*8|t*8|t*8|t*8L");
  for (const int64_t stages : {1, 2, 3, 4, 6, 12})
    EXPECT_EQ(parse_layout(layout_text(even_stages(12, stages)), 12), even_stages(12, stages));
}

TEST(StageLayout, RefusalsSayWhatIsWrong) {
  const auto refusal = [](const std::string& layout, int64_t num_layers) {
    return error_of(ExitCode::Usage, [&] { parse_layout(layout, num_layers); });
  };
  EXPECT_THAT(refusal("Ett|tx", 3), AllOf(HasSubstr("pipeline layout 'Ett|tx' cannot be read"),
                                          HasSubstr("why : it consists of E, t, L and |"),
                                          HasSubstr("try : \"Et*3|(tt|)*2t*3L\"")));
  EXPECT_THAT(refusal("Ett|tmL", 3),
              AllOf(HasSubstr("has a layer for multi-token prediction (m)"),
                    HasSubstr("one output layer"), HasSubstr("try : a layout without m")));
  for (const char* layout : {"tE|tL", "Et|tLt", "EtE|tL", "Et|LtL", "|EttL", "EttL|", "", "tt"})
    EXPECT_THAT(refusal(layout, 2), AllOf(HasSubstr("does not begin with E and end with L"),
                                          HasSubstr("try : E first, L last, each once")))
        << layout;
  EXPECT_THAT(refusal("Et*3|tL", 5),
              AllOf(HasSubstr("has the wrong number of layers"),
                    HasSubstr("4 times t for 5 layers"), HasSubstr("try : 5 times t")));
  EXPECT_EQ(layout_problems("tE|tL", 3).size(), 2u);
  EXPECT_TRUE(layout_problems("tE|tL", 3)[1].about_layers);
  EXPECT_THAT(layout_problems("Et|tL", 2), IsEmpty());
}

TEST(StageLayout, StagesGoAroundTheRanks) {
  const std::vector<StageLayers> stages = parse_layout("Et|tt|ttt|tL", 7);
  EXPECT_THAT(stages_of_rank(stages, 0, 2), ElementsAre(stages[0], stages[2]));
  EXPECT_THAT(stages_of_rank(stages, 1, 2), ElementsAre(stages[1], stages[3]));
  EXPECT_THAT(stages_of_rank(stages, 3, 4), ElementsAre(stages[3]));
  EXPECT_EQ(stages_of_rank(stages, 0, 1), stages);
  EXPECT_THAT(error_of(ExitCode::Internal, [&] { stages_of_rank(stages, 0, 3); }),
              HasSubstr("4 stages on 3 pipeline ranks"));
  EXPECT_THAT(error_of(ExitCode::Internal, [&] { stages_of_rank(stages, 2, 2); }),
              HasSubstr("rank 2 of 2"));
}

TEST(StageLayout, NoLayerIsLostOrHeldTwice) {
  const std::vector<StageLayers> legal = parse_layout("Et|tt|tL", 4);
  const auto complaint = [&](const std::function<void(std::vector<StageLayers>&)>& damage) {
    std::vector<StageLayers> stages = legal;
    damage(stages);
    return error_of(ExitCode::Internal, [&] { check_stages(stages, 4); });
  };
  check_stages(legal, 4);
  EXPECT_THAT(complaint([](auto& stages) { stages[1].num_layers = 1; }),
              HasSubstr("stage 2 of 3 holds 1 layers from layer 3, but layer 2 comes next"));
  EXPECT_THAT(complaint([](auto& stages) { stages[1].first_layer = 0; }),
              HasSubstr("stage 1 of 3 holds 2 layers from layer 0, but layer 1 comes next"));
  EXPECT_THAT(complaint([](auto& stages) { stages[2].num_layers = 0; }),
              HasSubstr("the stages hold 3 of 4 layers"));
  EXPECT_THAT(complaint([](auto& stages) { stages[2].num_layers = 2; }),
              HasSubstr("the stages hold 5 of 4 layers"));
  EXPECT_THAT(complaint([](auto& stages) { stages[0].embedding = false; }),
              HasSubstr("stage 0 of 3 has no embedding"));
  EXPECT_THAT(complaint([](auto& stages) { stages[1].embedding = true; }),
              HasSubstr("stage 1 of 3 has an embedding"));
  EXPECT_THAT(complaint([](auto& stages) { stages[1].head = true; }),
              HasSubstr("stage 1 of 3 has a head"));
  EXPECT_THAT(complaint([](auto& stages) { stages[2].head = false; }),
              HasSubstr("stage 2 of 3 has no head"));
  EXPECT_THAT(complaint([](auto& stages) { stages.clear(); }), HasSubstr("at least one stage"));
}

}  // namespace
}  // namespace ferry
