/* What every test uses: cmocka after the headers that it needs, and the words that most of them share. */
#ifndef ROSATUNE_SUPPORT_TEST_H
#define ROSATUNE_SUPPORT_TEST_H

#include "rosatune.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof(*(array)))

/* Fail the running test, with the message, unless a call went well. */
static inline void must(rosa_status status, const rosa_error *error)
{
	if (status != ROSA_OK)
		fail_msg("%s", error->message);
}

#endif
