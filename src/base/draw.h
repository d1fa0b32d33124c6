/*
 * Random numbers that are a function of their place.
 *
 * The number for a route and a step must not depend on the order of threads or on earlier draws. So there is no
 * generator with a state: the finaliser of splitmix64 mixes place and seed into a number.
 */
#pragma once

#include <stdint.h>

static inline uint64_t draw_mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

/* 64 bits for a place; two seeds give unrelated numbers. */
static inline uint64_t draw_long(uint64_t seed, uint64_t route, uint64_t step)
{
	return draw_mix(draw_mix(draw_mix(seed + 0x9e3779b97f4a7c15) + route) + step);
}

/* The same below 2^32. */
static inline uint64_t draw(uint64_t seed, uint64_t route, uint64_t step)
{
	return draw_long(seed, route, step) >> 32;
}
