/*
 * What is compiled for each number of bits a code can have, so that it is a constant.
 *
 * Entry 0 of a table of versions takes any number of bits, as a variable. It serves the numbers that have no version of
 * their own, and all of them in builds with sanitizers (ROSATUNE_ONE_VERSION), where each version takes a compiler
 * minutes and would test the same code again.
 */
#pragma once

#ifdef ROSATUNE_ONE_VERSION

#define FOR_EACH_WIDTH_OF_CODES(DEFINE)
#define FOR_EACH_WIDTH_OF_FLIPS(DEFINE)
#define FOR_EACH_WIDTH(DEFINE)
#define EACH_WIDTH_OF_CODES(NAME)                                                                                      \
	{                                                                                                              \
		NAME##_any                                                                                             \
	}
#define EACH_WIDTH_OF_FLIPS(NAME)                                                                                      \
	{                                                                                                              \
		NAME##_any                                                                                             \
	}
#define EACH_WIDTH(NAME)                                                                                               \
	{                                                                                                              \
		NAME##_any                                                                                             \
	}

#else

/* Codes that are not the symbols themselves have at most 8 bits where there are counterfactuals (alphabet.h). */
#define FOR_EACH_WIDTH_OF_CODES(DEFINE)                                                                                \
	DEFINE(1)                                                                                                      \
	DEFINE(2)                                                                                                      \
	DEFINE(3)                                                                                                      \
	DEFINE(4)                                                                                                      \
	DEFINE(5)                                                                                                      \
	DEFINE(6)                                                                                                      \
	DEFINE(7)                                                                                                      \
	DEFINE(8)

/* Symbols with counterfactuals have at most 16. */
#define FOR_EACH_WIDTH_OF_FLIPS(DEFINE)                                                                                \
	FOR_EACH_WIDTH_OF_CODES(DEFINE)                                                                                \
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
#define EACH_WIDTH_OF_CODES(NAME)                                                                                      \
	{                                                                                                              \
		NAME##_any, NAME##_1, NAME##_2, NAME##_3, NAME##_4, NAME##_5, NAME##_6, NAME##_7, NAME##_8             \
	}
#define EACH_WIDTH_OF_FLIPS(NAME)                                                                                      \
	{                                                                                                              \
		NAME##_any, NAME##_1, NAME##_2, NAME##_3, NAME##_4, NAME##_5, NAME##_6, NAME##_7, NAME##_8, NAME##_9,  \
		    NAME##_10, NAME##_11, NAME##_12, NAME##_13, NAME##_14, NAME##_15, NAME##_16                        \
	}
#define EACH_WIDTH(NAME)                                                                                               \
	{                                                                                                              \
		NAME##_any, NAME##_1, NAME##_2, NAME##_3, NAME##_4, NAME##_5, NAME##_6, NAME##_7, NAME##_8, NAME##_9,  \
		    NAME##_10, NAME##_11, NAME##_12, NAME##_13, NAME##_14, NAME##_15, NAME##_16, NAME##_17, NAME##_18, \
		    NAME##_19, NAME##_20                                                                               \
	}

#endif
