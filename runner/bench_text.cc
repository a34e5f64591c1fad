#include "runner/bench_text.h"

namespace duet::runner {

std::span<const char* const> bench_text() {
  static constexpr const char* kLines[] = {
      "Good morning.",
      "Where is the nearest train station?",
      "I have lived in this town since I was a child.",
      "She forgot her umbrella at the office, and now it is raining.",
      "Please close the door when you leave.",
      "How much does this jacket cost?",
      "My brother plays the guitar every evening after dinner.",
      "We are going to the lake on Saturday if the weather is good.",
      "He has already read the newspaper.",
      "Can you help me carry these boxes to the second floor?",
      "The soup is still too hot to eat.",
      "I do not remember the name of that film.",
      "They moved to a bigger house because they wanted a garden for the children.",
      "What time does the bank open tomorrow?",
      "The cat is sleeping on the sofa.",
      "It took us almost three hours to find a parking place in the city.",
      "I would like a cup of tea without sugar.",
      "Her grandfather told us a long story about the winter when the river froze.",
      "Don't worry.",
      "You can borrow my bicycle until the end of the month.",
      "The children were so tired that they fell asleep in the car.",
      "There is no milk left in the fridge.",
      "He said that he would call me as soon as he arrived.",
      "Is this seat free?",
      "I bought some bread, a bottle of water and a few apples at the market this morning.",
      "Nobody answered the phone.",
      "The museum is closed on Mondays.",
      "If I had known that you were coming, I would have made a cake.",
      "We need a new lamp for the kitchen.",
      "My sister is learning Spanish because she wants to work in Mexico next year.",
      "Turn left at the second traffic light.",
      "He broke his leg while he was skiing in the mountains.",
      "Thank you for the flowers, they are beautiful.",
      "The last bus leaves at midnight.",
      "Which of these two pictures do you prefer?",
      "The doctor told him to stay in bed for a few days and to drink a lot of water.",
      "I am afraid of big dogs.",
      "They have been married for twenty years.",
      "After the concert we walked home through the quiet streets and talked about everything that had "
      "happened.",
      "See you next week!",
  };
  return kLines;
}

}  // namespace duet::runner
