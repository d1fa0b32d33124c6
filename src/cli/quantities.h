/* Numbers for people: few digits and a unit, or groups of three. */
#pragma once

#include <stdint.h>

/* Returned as a whole, so that several fit into one printf. */
struct quantity {
	char text[48];
};

struct quantity quantity_grouped(uint64_t number); /* 134,515,008 */
struct quantity quantity_short(double number);     /* 135 M */
struct quantity quantity_bytes(double number);     /* 97.3 MiB */
struct quantity quantity_time(double seconds);     /* 8.2 hours */
