/* What is compiled for each number of bits a code can have, so that it is a constant. With counterfactuals codes have
 * at most 16. */
#ifndef ROSATUNE_WIDTHS_H
#define ROSATUNE_WIDTHS_H

#define FOR_EACH_WIDTH_OF_FLIPS(DEFINE)                                                                                \
	DEFINE(1)                                                                                                      \
	DEFINE(2)                                                                                                      \
	DEFINE(3)                                                                                                      \
	DEFINE(4)                                                                                                      \
	DEFINE(5)                                                                                                      \
	DEFINE(6)                                                                                                      \
	DEFINE(7)                                                                                                      \
	DEFINE(8)                                                                                                      \
	DEFINE(9)                                                                                                      \
	DEFINE(10)                                                                                                     \
	DEFINE(11)                                                                                                     \
	DEFINE(12)                                                                                                     \
	DEFINE(13)                                                                                                     \
	DEFINE(14)                                                                                                     \
	DEFINE(15)                                                                                                     \
	DEFINE(16)

#define FOR_EACH_WIDTH(DEFINE)                                                                                         \
	FOR_EACH_WIDTH_OF_FLIPS(DEFINE)                                                                                \
	DEFINE(17)                                                                                                     \
	DEFINE(18)                                                                                                     \
	DEFINE(19)                                                                                                     \
	DEFINE(20)

/* A table of what has been defined, by number of bits. */
#define EACH_WIDTH_OF_FLIPS(NAME)                                                                                      \
	{                                                                                                              \
		NULL, NAME##_1, NAME##_2, NAME##_3, NAME##_4, NAME##_5, NAME##_6, NAME##_7, NAME##_8, NAME##_9,        \
		    NAME##_10, NAME##_11, NAME##_12, NAME##_13, NAME##_14, NAME##_15, NAME##_16                        \
	}
#define EACH_WIDTH(NAME)                                                                                               \
	{                                                                                                              \
		NULL, NAME##_1, NAME##_2, NAME##_3, NAME##_4, NAME##_5, NAME##_6, NAME##_7, NAME##_8, NAME##_9,        \
		    NAME##_10, NAME##_11, NAME##_12, NAME##_13, NAME##_14, NAME##_15, NAME##_16, NAME##_17, NAME##_18, \
		    NAME##_19, NAME##_20                                                                               \
	}

#endif
