/*
 * Scores of answers.
 *
 * The definitions are those of programs in Python, and scores must equal theirs; so "lower case", "white space" and
 * "word" mean what Python's str.lower, str.split and \w mean, for all of Unicode. Without utf8proc only ASCII letters
 * have a case. One rule is left out: a capital sigma at the end of a word becomes the ordinary small one.
 */
#include "eval/metrics.h"

#include "base/status.h"
#include "base/utf8.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#ifdef ROSATUNE_UTF8PROC
#include <utf8proc.h>
#endif

const char *const eval_metric_names[] = {[METRIC_MATCH_ALL] = "match-all", [METRIC_MATCH_PART] = "match-part",
					 [METRIC_EXACT] = "exact",         [METRIC_F1] = "f1",
					 [METRIC_ROUGE_L] = "rouge-l",     [METRIC_CLASS] = "class",
					 [METRIC_CODE] = "code",           [METRIC_CHOICE] = "choice",
					 [METRIC_WORD] = "word",           [METRICS] = NULL};

/* ---------------------------------------------------------------------------------------------------- characters -- */

static bool is_space(uint32_t point)
{
	return (point >= 9 && point <= 13) || (point >= 0x1c && point <= ' ') || point == 0x85 || point == 0xa0 ||
	       point == 0x1680 || (point >= 0x2000 && point <= 0x200a) || point == 0x2028 || point == 0x2029 ||
	       point == 0x202f || point == 0x205f || point == 0x3000;
}

/* \w without the underscore, which the normalisations below treat as punctuation. */
static bool is_word(uint32_t point)
{
#ifdef ROSATUNE_UTF8PROC
	const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)point);

	return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) ||
	       (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
#else
	return point >= 0x80 || (point >= '0' && point <= '9') || ((point | 32) >= 'a' && (point | 32) <= 'z');
#endif
}

static uint32_t small_letter(uint32_t point)
{
#ifdef ROSATUNE_UTF8PROC
	return (uint32_t)utf8proc_tolower((utf8proc_int32_t)point);
#else
	return point >= 'A' && point <= 'Z' ? point + 32 : point;
#endif
}

/* The text in lower case, from malloc. */
static char *lower(const char *text)
{
	size_t size = strlen(text), length, used = 0;
	char *to = malloc(2 * size + 1); /* a small letter takes at most a byte more than a capital one of two bytes */

	for (size_t at = 0; at < size && to; at += length) {
		const uint32_t point = utf8_next(text + at, size - at, &length);

		/* the one letter that becomes two: i with a dot above */
		used += utf8_put(point == 0x130 ? 'i' : small_letter(point == UTF8_BAD ? '?' : point), to + used);
		if (point == 0x130)
			used += utf8_put(0x307, to + used);
	}
	if (to)
		to[used] = '\0';
	return to;
}

/* --------------------------------------------------------------------------------------------------------- words -- */

struct word {
	const char *at;
	size_t size;
};

struct words {
	char *text; /* that they lie in */
	struct word *all;
	size_t count;
};

static void words_free(struct words *words)
{
	free(words->text);
	free(words->all);
}

/* What SQuAD leaves out: ASCII punctuation vanishes, articles become spaces. */
static void drop_marks(char *text)
{
	char *to = text;

	for (const char *from = text; *from; from++) {
		if (!strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", *from))
			*to++ = *from;
	}
	*to = '\0';
}

static bool is_article(const char *word, size_t size)
{
	return (size == 1 && *word == 'a') || (size == 2 && memcmp(word, "an", 2) == 0) ||
	       (size == 3 && memcmp(word, "the", 3) == 0);
}

static void drop_articles(char *text)
{
	const size_t size = strlen(text);
	size_t length, begun = 0; /* where the present run of word characters begins */

	for (size_t at = 0; at <= size; at += length) {
		const uint32_t point = at < size ? utf8_next(text + at, size - at, &length) : ' ';

		if (at == size)
			length = 1;
		if (is_word(point))
			continue;
		if (is_article(text + begun, at - begun))
			memset(text + begun, ' ', at - begun);
		begun = at + length;
	}
}

/* Of ROUGE's words only ASCII letters and digits are part. */
static void drop_others(char *text)
{
	for (; *text; text++) {
		if (!((*text >= 'a' && *text <= 'z') || (*text >= '0' && *text <= '9')))
			*text = ' ';
	}
}

static void split(struct words *words)
{
	const char *text = words->text;
	size_t size = strlen(text), length;
	bool inside = false;

	for (size_t at = 0; at < size; at += length) {
		const bool space = is_space(utf8_next(text + at, size - at, &length));

		if (!space && !inside)
			words->all[words->count++] = (struct word){text + at, 0};
		if (!space)
			words->all[words->count - 1].size += length;
		inside = !space;
	}
}

static bool words_of(enum eval_metric metric, const char *text, struct words *words)
{
	*words = (struct words){.text = lower(text)};
	words->all = words->text ? malloc((strlen(words->text) / 2 + 1) * sizeof(*words->all)) : NULL;
	if (!words->all)
		return false;
	if (metric == METRIC_ROUGE_L) {
		drop_others(words->text);
	} else {
		drop_marks(words->text);
		drop_articles(words->text);
	}
	split(words);
	return true;
}

static int compare(const void *a, const void *b)
{
	const struct word *one = a, *other = b;
	const int order = memcmp(one->at, other->at, one->size < other->size ? one->size : other->size);

	return order ? order : (one->size > other->size) - (one->size < other->size);
}

/* ------------------------------------------------------------------------------------------------------- counts -- */

static bool same_words(const struct words *a, const struct words *b)
{
	bool same = a->count == b->count;

	for (size_t i = 0; i < a->count && same; i++)
		same = compare(&a->all[i], &b->all[i]) == 0;
	return same;
}

/* How many words both have, each as often as the one that has it less often. Sorts them. */
static size_t common_words(struct words *a, struct words *b)
{
	size_t i = 0, k = 0, common = 0;

	qsort(a->all, a->count, sizeof(*a->all), compare);
	qsort(b->all, b->count, sizeof(*b->all), compare);
	while (i < a->count && k < b->count) {
		const int order = compare(&a->all[i], &b->all[k]);

		common += order == 0;
		i += order <= 0;
		k += order >= 0;
	}
	return common;
}

/* The longest common subsequence: one row of the table at a time. */
static bool common_sequence(const struct words *a, const struct words *b, size_t *longest)
{
	size_t *row = calloc(b->count + 1, sizeof(*row));

	for (size_t i = 0; i < a->count && row; i++) {
		size_t corner = 0; /* the entry above and to the left */

		for (size_t k = 1; k <= b->count; k++) {
			const size_t above = row[k];

			if (compare(&a->all[i], &b->all[k - 1]) == 0)
				row[k] = corner + 1;
			else if (row[k - 1] > above)
				row[k] = row[k - 1];
			corner = above;
		}
	}
	*longest = row ? row[b->count] : 0;
	free(row);
	return row != NULL;
}

static double harmonic_mean(size_t common, size_t answered, size_t expected)
{
	const double precision = (double)common / (double)answered, recall = (double)common / (double)expected;

	return common ? 2 * precision * recall / (precision + recall) : 0;
}

/* ------------------------------------------------------------------------------------------------------- scores -- */

/* One expected string by its words; false without memory. */
static bool score_words(enum eval_metric metric, const char *answer, const char *expected, double *score)
{
	struct words one = {0}, other = {0};
	size_t common = 0;
	bool good = words_of(metric, answer, &one) && words_of(metric, expected, &other);

	if (good && metric == METRIC_ROUGE_L)
		good = common_sequence(&one, &other, &common);
	if (good && metric == METRIC_EXACT)
		*score = same_words(&one, &other);
	else if (good)
		*score =
		    harmonic_mean(metric == METRIC_F1 ? common_words(&one, &other) : common, one.count, other.count);
	words_free(&one);
	words_free(&other);
	return good;
}

/* As RULER reads an answer: control characters are line ends, and white space around it does not count. */
static char *trimmed(char *text)
{
	size_t size = strlen(text), length, end = 0;
	char *first = NULL;

	for (size_t at = 0; at < size; at += length) {
		if ((unsigned char)text[at] < 0x20)
			text[at] = '\n';
		if (is_space(utf8_next(text + at, size - at, &length)))
			continue;
		first = first ? first : text + at;
		end = at + length;
	}
	text[end] = '\0';
	return first ? first : text;
}

/* One expected string by its characters. */
static bool score_match(const char *answer, const char *expected, double *score)
{
	char *one = lower(answer), *other = lower(expected);
	const bool good = one && other;

	if (good)
		*score = strstr(trimmed(one), other) != NULL;
	free(one);
	free(other);
	return good;
}

/* A class whose name is part of the right class's name, such as "date" of "update", does not count as an answer. */
static double score_class(const char *answer, const char *expected, const struct eval_strings *classes)
{
	size_t named = 0;
	bool right = false;

	for (size_t i = 0; i < classes->count; i++) {
		const bool is_right = strcmp(classes->all[i], expected) == 0;

		if (!strstr(answer, classes->all[i]) || (!is_right && strstr(expected, classes->all[i])))
			continue;
		named++;
		right = right || is_right;
	}
	return right ? 1 / (double)named : 0;
}

char *answer_line(const char *answer)
{
	answer += strspn(answer, "\n");
	return strndup(answer, strcspn(answer, "\n"));
}

static bool is_code(const char *line)
{
	return !strchr(line, '`') && !strchr(line, '#') && !strstr(line, "//");
}

/* The characters of a text as words of one character each. */
static bool letters_of(const char *text, struct words *letters)
{
	const size_t size = strlen(text);
	size_t length;

	*letters = (struct words){.text = strdup(text)};
	letters->all = malloc((size + 1) * sizeof(*letters->all));
	if (!letters->text || !letters->all)
		return false;
	for (size_t at = 0; at < size; at += length) {
		utf8_next(letters->text + at, size - at, &length);
		letters->all[letters->count++] = (struct word){letters->text + at, length};
	}
	return true;
}

/* Twice the common letters by all letters, of the first line that is neither a comment nor a mark of a listing. */
static bool score_code(const char *answer, const char *expected, double *score)
{
	struct words one = {0}, other = {0};
	size_t common = 0;
	char *line = answer_line(answer);

	while (line && !is_code(line) && *answer) {
		free(line);
		answer += strspn(answer, "\n");
		answer += strcspn(answer, "\n");
		line = answer_line(answer);
	}
	const bool good =
	    line && letters_of(line, &one) && letters_of(expected, &other) && common_sequence(&one, &other, &common);
	if (good)
		*score = harmonic_mean(common, one.count, other.count);
	free(line);
	words_free(&one);
	words_free(&other);
	return good;
}

/* One expected string; false without memory. */
static bool score_one(enum eval_metric metric, const char *answer, const char *expected,
		      const struct eval_strings *classes, double *score)
{
	switch (metric) {
	case METRIC_MATCH_ALL:
	case METRIC_MATCH_PART:
		return score_match(answer, expected, score);
	case METRIC_CLASS:
		*score = score_class(answer, expected, classes);
		return true;
	case METRIC_CODE:
		return score_code(answer, expected, score);
	default:
		return score_words(metric, answer, expected, score);
	}
}

rosa_status answer_score(enum eval_metric metric, const char *answer, const struct eval_strings *expected,
			 const struct eval_strings *classes, double *score, rosa_error *err)
{
	double sum = 0, best = 0, here = 0;

	if (metric == METRIC_CLASS && (!classes || !classes->count))
		return rosa_fail(err, ROSA_EINVAL, "no classes are given (all_classes), and the metric needs them");
	for (size_t i = 0; i < expected->count; i++) {
		if (!score_one(metric, answer, expected->all[i], classes, &here))
			return rosa_fail(err, ROSA_ENOMEM, "no memory to score an answer of %zu bytes", strlen(answer));
		sum += here;
		best = here > best ? here : best;
	}
	*score = metric == METRIC_MATCH_ALL ? sum / (double)expected->count : best;
	return ROSA_OK;
}
