/* The text that `rosatune demo` reads unless it is given another: a small tale that repeats itself, as tales do. */
#pragma once

static const char demo_text[] =
    "On the north side of the bay there is a bell, and beside the bell there lives a ferryman.\n"
    "When the fog comes in, the ferryman walks down to the water and rings the bell three times.\n"
    "The first boat to hear it is the herring boat, and the herring boat turns for home.\n"
    "One autumn the rope of the bell was worn through, and nobody had thought to mend it.\n"
    "When the fog came in, the ferryman walked down to the water and found the bell silent.\n"
    "So he took a pot and a spoon, and he struck the pot with the spoon three times.\n"
    "The first boat to hear it was the herring boat, and the herring boat did not turn for home.\n"
    "\"That is not a bell,\" said the captain, \"that is a pot,\" and the captain sailed on.\n"
    "The second boat to hear it was the mail boat, and the mail boat did not turn for home.\n"
    "\"That is not a bell,\" said the postman, \"that is a pot,\" and the postman sailed on.\n"
    "Then the ferryman's daughter, who was six, walked down to the water and began to sing.\n"
    "The first boat to hear it was the herring boat, and the herring boat turned for home.\n"
    "The second boat to hear it was the mail boat, and the mail boat turned for home.\n"
    "\"That is not a bell,\" said the captain, and \"That is not a pot,\" said the postman.\n"
    "The rope was mended in the spring. But when the fog comes in, the boats on the north side\n"
    "of the bay still listen for the bell, and after the bell for a song.\n";
