/*
 * The pointer's file and its arithmetic.
 *
 * Weights are kept as logarithms and added up with the greatest taken out, so that no weight, however large or small,
 * overflows or cancels. The mixture is written as logits: with L = ln sum exp(logits), the logit of a token found
 * becomes L + ln(p(x) + a_x), and all others stay. The softmax over that is the mixture, since the sum of the
 * exponentials has grown by exactly the factor 1 + sum a. A table of tokens seen comes first and keeps L: it adds
 * b(x) - ln Z. What works on logits, such as a repetition penalty, finds the scale that the model gave them.
 */
#include "model/pointer.h"

#include "base/json_text.h"
#include "base/paths.h"
#include "base/status.h"
#include "model/adapter_find.h"
#include "model/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT          1 /* a chain */
#define FORMAT_CONTEXTS 2

const char *const pointer_feature_names[] = {"token",  "greatest",  "entropy", "alignment", "share",
					     "places", "different", "success", NULL};

/* -------------------------------------------------------------------------------------------------------- file -- */

/* A list of exactly `count` numbers. */
static rosa_status read_row(struct json row, size_t count, double *numbers, rosa_error *err)
{
	rosa_status status = ROSA_OK;

	if (json_kind(row) != JSON_IS_ARRAY || json_count(row) != count)
		return json_refuse(row, err, "must be a list of %zu numbers", count);
	for (size_t i = 0; i < count && status == ROSA_OK; i++) {
		status = json_as_number(json_at(row, i), &numbers[i], err);
		if (status == ROSA_OK && !(fabs(numbers[i]) <= POINTER_LARGEST))
			status = json_refuse(row, err, "has the number %g; they are from %g to %g", numbers[i],
					     -POINTER_LARGEST, POINTER_LARGEST);
	}
	return status;
}

static rosa_status read_rows(struct json table, size_t rows, size_t columns, double *numbers, rosa_error *err)
{
	rosa_status status = ROSA_OK;

	for (size_t i = 0; i < rows && status == ROSA_OK; i++)
		status = read_row(json_at(table, i), columns, numbers + i * columns, err);
	return status;
}

/* A table of one row per link. */
static rosa_status read_table(struct json table, size_t links, size_t columns, double *numbers, rosa_error *err)
{
	if (json_count(table) != links)
		return json_refuse(table, err, "has %zu rows; \"links\" is %zu, and each link has one",
				   json_count(table), links);
	return read_rows(table, links, columns, numbers, err);
}

/* The table of tokens seen, if there is one. */
static rosa_status read_seen(struct json root, struct pointer *pointer, rosa_error *err)
{
	struct json seen = {0};
	rosa_status status = json_get_array(root, "seen", JSON_OPTIONAL, &seen, err);

	pointer->seeing = status == ROSA_OK && json_there(seen);
	if (!pointer->seeing)
		return status;
	if (json_count(seen) != SEEN_COUNTS)
		return json_refuse(seen, err, "has %zu rows; there are %d, for tokens seen 1, 2, 4 and 8 times",
				   json_count(seen), SEEN_COUNTS);
	return read_rows(seen, SEEN_COUNTS, SEEN_RANKS, pointer->seen[0], err);
}

/* No other names than these; the list ends with NULL. */
static rosa_status check_names(struct json object, const char *const *known, rosa_error *err)
{
	struct json_walk walk = {0};
	struct json value;
	const char *name;

	while (json_next(object, &walk, &name, &value)) {
		bool found = false;

		for (size_t i = 0; known[i]; i++)
			found = found || strcmp(name, known[i]) == 0;
		if (!found)
			return json_refuse(value, err,
					   "is not a field of a pointer; was it written by a later version?");
	}
	return ROSA_OK;
}

/* The fields of a pointer by contexts. */
static rosa_status read_contexts(struct json root, struct pointer *pointer, rosa_error *err)
{
	struct json theta = {0}, slopes = {0};
	rosa_status status = json_get_array(root, "theta", JSON_NEEDED, &theta, err);

	pointer->links = POINTER_LINKS;
	if (status == ROSA_OK)
		status = read_row(theta, POINTER_LENGTHS, pointer->theta[0], err);
	if (status == ROSA_OK)
		status = json_get_object(root, "slopes", JSON_NEEDED, &slopes, err);
	if (status == ROSA_OK)
		status = check_names(slopes, pointer_feature_names, err);
	for (size_t i = 0; i < POINTER_FEATURES && status == ROSA_OK; i++) {
		double *slope = &pointer->feature[i];

		status = json_get_number(slopes, pointer_feature_names[i], JSON_OPTIONAL, slope, err);
		if (status == ROSA_OK && !(fabs(*slope) <= POINTER_LARGEST))
			status =
			    json_refuse(json_find(slopes, pointer_feature_names[i]), err,
					"is %g; slopes are from %g to %g", *slope, -POINTER_LARGEST, POINTER_LARGEST);
	}
	return status == ROSA_OK ? read_seen(root, pointer, err) : status;
}

static rosa_status read_fields(struct json root, struct pointer *pointer, rosa_error *err)
{
	static const char *const of_chain[] = {"format", "rosatune_version", "delay",     "links",
					       "theta",  "confidence",       "agreement", NULL};
	static const char *const of_contexts[] = {"format", "rosatune_version", "delay", "theta", "slopes", "seen",
						  NULL};
	struct json theta = {0}, confidence = {0}, agreement = {0};
	size_t format = 0;
	rosa_status status = json_get_size(root, "format", JSON_NEEDED, &format, err);

	if (status == ROSA_OK && format != FORMAT && format != FORMAT_CONTEXTS)
		return json_refuse(json_find(root, "format"), err, "is %zu; this version reads %d and %d", format,
				   FORMAT, FORMAT_CONTEXTS);
	pointer->contexts = format == FORMAT_CONTEXTS;
	if (status == ROSA_OK)
		status = check_names(root, pointer->contexts ? of_contexts : of_chain, err);
	if (status == ROSA_OK)
		status = json_get_size(root, "delay", JSON_NEEDED, &pointer->delay, err);
	if (status == ROSA_OK && pointer->delay > ROSA_MAX_STEPS)
		return json_refuse(json_find(root, "delay"), err, "is %zu; at most %zu", pointer->delay,
				   ROSA_MAX_STEPS);
	if (status == ROSA_OK && pointer->contexts)
		return read_contexts(root, pointer, err);
	if (status == ROSA_OK)
		status = json_get_size(root, "links", JSON_NEEDED, &pointer->links, err);
	if (status == ROSA_OK && (pointer->links < 1 || pointer->links > POINTER_LINKS))
		return json_refuse(json_find(root, "links"), err, "is %zu; a chain has 1 to %d", pointer->links,
				   POINTER_LINKS);
	if (status == ROSA_OK)
		status = json_get_array(root, "theta", JSON_NEEDED, &theta, err);
	if (status == ROSA_OK)
		status = read_table(theta, pointer->links, POINTER_LENGTHS, pointer->theta[0], err);
	if (status == ROSA_OK)
		status = json_get_array(root, "confidence", JSON_OPTIONAL, &confidence, err);
	pointer->confident = status == ROSA_OK && json_there(confidence);
	if (pointer->confident)
		status = read_table(confidence, pointer->links, 2, pointer->slope[0], err);
	if (status == ROSA_OK)
		status = json_get_array(root, "agreement", JSON_OPTIONAL, &agreement, err);
	pointer->agreeing = status == ROSA_OK && json_there(agreement);
	if (pointer->agreeing)
		status = read_row(agreement, pointer->links, pointer->agreement, err);
	return status;
}

static rosa_status read_root(struct json root, struct pointer *pointer, rosa_error *err)
{
	rosa_status status;

	if (json_kind(root) != JSON_IS_OBJECT)
		return json_refuse(root, err, "is not a pointer: it must hold one JSON object");
	if (!json_there(json_find(root, "format")) && !json_there(json_find(root, "theta")))
		return json_refuse(root, err,
				   "is not a pointer: it has neither format nor theta; name a file that 'rosatune "
				   "pointer fit' wrote");
	status = read_fields(root, pointer, err);
	if (status != ROSA_OK)
		memset(pointer, 0, sizeof(*pointer));
	return status;
}

/* The file that a folder means: that of its final adapter only where it has none itself. */
static struct path find_file(const char *folder)
{
	const struct path file = path_join(folder, POINTER_FILE), final = path_join(folder, RUN_FINAL "/" POINTER_FILE);

	return !path_exists(file.text) && path_exists(final.text) ? final : file;
}

rosa_status pointer_load(const char *path, struct pointer *pointer, rosa_error *err)
{
	const struct path file = path_is_folder(path) ? find_file(path) : path_of(path);
	struct json root = {0};
	rosa_status status;

	memset(pointer, 0, sizeof(*pointer));
	status = json_load(file.text, &root, err);
	if (status == ROSA_OK)
		status = read_root(root, pointer, err);
	json_free(&root);
	return status;
}

static void add_row(struct json_text *text, const double *numbers, size_t count)
{
	json_text_add(text, "[");
	for (size_t i = 0; i < count; i++)
		json_text_put_number(text, NULL, numbers[i]);
	json_text_add(text, "]");
}

static void add_table(struct json_text *text, const char *name, const double *numbers, size_t rows, size_t columns)
{
	json_text_add(text, ",\n  \"%s\": [", name);
	for (size_t i = 0; i < rows; i++) {
		json_text_add(text, "%s\n    ", i ? "," : "");
		add_row(text, numbers + i * columns, columns);
	}
	json_text_add(text, "\n  ]");
}

static void add_chain(struct json_text *text, const struct pointer *pointer)
{
	json_text_add(text, ",\n  \"links\": %zu", pointer->links);
	add_table(text, "theta", pointer->theta[0], pointer->links, POINTER_LENGTHS);
	if (pointer->confident)
		add_table(text, "confidence", pointer->slope[0], pointer->links, 2);
	if (pointer->agreeing) {
		json_text_add(text, ",\n  \"agreement\": ");
		add_row(text, pointer->agreement, pointer->links);
	}
}

static void add_contexts(struct json_text *text, const struct pointer *pointer)
{
	json_text_add(text, ",\n  \"theta\": ");
	add_row(text, pointer->theta[0], POINTER_LENGTHS);
	json_text_add(text, ",\n  \"slopes\": {");
	for (size_t i = 0; i < POINTER_FEATURES; i++) {
		json_text_add(text, "%s\n    \"%s\": ", i ? "," : "", pointer_feature_names[i]);
		json_text_number(text, pointer->feature[i]);
	}
	json_text_add(text, "\n  }");
	if (pointer->seeing)
		add_table(text, "seen", pointer->seen[0], SEEN_COUNTS, SEEN_RANKS);
}

rosa_status pointer_save(const char *path, const struct pointer *pointer, const struct file_options *files,
			 rosa_error *err)
{
	struct json_text text = {0};

	json_text_add(&text, "{\n  \"format\": %d,\n  \"rosatune_version\": \"%s\",\n  \"delay\": %zu",
		      pointer->contexts ? FORMAT_CONTEXTS : FORMAT, rosa_version(), pointer->delay);
	(pointer->contexts ? add_contexts : add_chain)(&text, pointer);
	json_text_add(&text, "\n}\n");
	return json_text_save(&text, path, files, err);
}

/* --------------------------------------------------------------------------------------------------- arithmetic -- */

struct logits_summary logits_summary(const float *logits, size_t count)
{
	double most = (double)logits[0], sum = 0, below = 0;

	for (size_t i = 1; i < count; i++)
		most = (double)logits[i] > most ? (double)logits[i] : most;
	for (size_t i = 0; i < count; i++) {
		const double away = (double)logits[i] - most, share = exp(away);

		sum += share;
		below += share > 0 ? share * away : 0; /* a logit of -infinity has no part */
	}
	return (struct logits_summary){most + log(sum), most, log(sum) - below / sum};
}

double log_add(double a, double b)
{
	const double more = a > b ? a : b, less = a > b ? b : a;

	return isinf(less) ? more : more + log1p(exp(less - more));
}

/* The links of a pointer that apply to what was found. */
static size_t links_of(const struct pointer *pointer, size_t found)
{
	return found < pointer->links ? found : pointer->links;
}

void pointer_features(const struct pointer_sample *sample, size_t i, double *features)
{
	features[FEATURE_TOKEN] = sample->token[i];
	features[FEATURE_GREATEST] = sample->greatest;
	features[FEATURE_ENTROPY] = sample->entropy;
	features[FEATURE_ALIGNMENT] = sample->alignment[i];
	features[FEATURE_SHARE] = sample->share[i];
	features[FEATURE_PLACES] = sample->places;
	features[FEATURE_DIFFERENT] = sample->various;
	features[FEATURE_SUCCESS] = sample->success;
}

/* ln a_i of a link. */
static double weight_of(const struct pointer *pointer, const struct pointer_sample *sample, size_t i)
{
	const size_t length = sample->length[i] < POINTER_LENGTHS ? sample->length[i] : POINTER_LENGTHS - 1;
	double weight = pointer->theta[pointer->contexts ? 0 : i][length], features[POINTER_FEATURES];

	if (pointer->confident)
		weight += pointer->slope[i][0] * sample->token[i] + pointer->slope[i][1] * sample->greatest;
	if (pointer->agreeing)
		weight += pointer->agreement[sample->different - 1];
	if (pointer->contexts) {
		pointer_features(sample, i, features);
		for (size_t f = 0; f < POINTER_FEATURES; f++)
			weight += pointer->feature[f] * features[f];
	}
	return weight;
}

double pointer_weigh(const struct pointer *pointer, const struct pointer_sample *sample, double *weights)
{
	const size_t links = links_of(pointer, sample->count);
	double whole = 0;

	for (size_t i = 0; i < links; i++) {
		weights[i] = weight_of(pointer, sample, i);
		whole = log_add(whole, weights[i]);
	}
	return whole;
}

static bool is_among(const uint32_t *tokens, size_t count, uint32_t token)
{
	for (size_t i = 0; i < count; i++)
		if (tokens[i] == token)
			return true;
	return false;
}

/* The probability of each class. That of tokens not seen, which are most, is what the others leave. */
static void add_masses(const uint8_t *seen, const float *logits, size_t vocabulary, double sum, float *mass)
{
	double masses[SEEN_CLASSES] = {0}, rest = 1;

	for (size_t x = 0; seen && x < vocabulary; x++)
		if (seen[x])
			masses[seen[x]] += exp((double)logits[x] - sum);
	for (size_t k = 1; k < SEEN_CLASSES; k++) {
		mass[k] = (float)masses[k];
		rest -= masses[k];
	}
	mass[0] = (float)fmax(rest, 0);
}

/* What a sample has apart from its target. */
static struct pointer_sample look(const struct pointer_links *found, const uint8_t *seen, const float *logits,
				  size_t vocabulary, const struct logits_summary *summary)
{
	struct pointer_sample sample = {
	    .greatest = fmax(summary->greatest - summary->sum, POINTER_LEAST),
	    .entropy = summary->entropy,
	    .places = log(1.0 + found->places),
	    .various = log(found->different ? found->different : 1),
	    .success = log(0.01 + found->success / 65535.0),
	};

	for (size_t i = 0; i < found->count && found->token[i] < vocabulary; i++) {
		sample.token[i] = fmax((double)logits[found->token[i]] - summary->sum, POINTER_LEAST);
		sample.length[i] = found->length[i];
		sample.alignment[i] = found->alignment[i] / 16.0;
		sample.share[i] = log((found->followed_by[i] + 0.3) / (found->as_long[i] + 1.0));
		sample.count++;
		sample.different += !is_among(found->token, i, found->token[i]);
	}
	add_masses(seen, logits, vocabulary, summary->sum, sample.mass);
	return sample;
}

struct pointer_sample pointer_sample(const struct pointer_links *found, const uint8_t *seen, const float *logits,
				     size_t vocabulary, uint32_t target)
{
	const struct logits_summary summary = logits_summary(logits, vocabulary);
	struct pointer_sample sample = look(found, seen, logits, vocabulary, &summary);

	sample.target = (double)logits[target] - summary.sum;
	sample.target_class = seen ? seen[target] : 0;
	for (size_t i = 0; i < sample.count; i++)
		sample.hit[i] = found->token[i] == target;
	return sample;
}

void pointer_factors(const struct pointer *pointer, double factors[SEEN_CLASSES])
{
	factors[0] = 1;
	for (size_t k = 1; k < SEEN_CLASSES; k++)
		factors[k] = exp(pointer->seen[(k - 1) / SEEN_RANKS][(k - 1) % SEEN_RANKS]);
}

/* ln Z. Rounding may let the masses add up to a little more or less than 1, which is taken out. */
static double log_grown(const struct pointer_sample *sample, const double *factors, double *raised)
{
	double plain = 0, with = 0;

	for (size_t k = 0; k < SEEN_CLASSES; k++) {
		plain += (double)sample->mass[k];
		with += (double)sample->mass[k] * factors[k];
	}
	*raised = with;
	return log(with / plain);
}

double pointer_base(const struct pointer_sample *sample, const double factors[SEEN_CLASSES], double *raised)
{
	return sample->target + log(factors[sample->target_class]) - log_grown(sample, factors, raised);
}

double pointer_loss(const struct pointer *pointer, const struct pointer_sample *sample)
{
	double weights[POINTER_LINKS], whole = pointer_weigh(pointer, sample, weights), share = sample->target;
	double factors[SEEN_CLASSES], raised;

	if (pointer->seeing) {
		pointer_factors(pointer, factors);
		share = pointer_base(sample, factors, &raised);
	}
	for (size_t i = 0; i < links_of(pointer, sample->count); i++)
		share = sample->hit[i] ? log_add(share, weights[i]) : share;
	return whole - share;
}

/* Makes the model's logits those of p_0; a logit of -infinity stays. */
static void raise_seen(const struct pointer *pointer, const struct pointer_sample *sample, const uint8_t *seen,
		       float *logits, size_t vocabulary)
{
	double factors[SEEN_CLASSES], change[SEEN_CLASSES], raised, grown;

	pointer_factors(pointer, factors);
	grown = log_grown(sample, factors, &raised);
	for (size_t k = 0; k < SEEN_CLASSES; k++)
		change[k] = log(factors[k]) - grown;
	for (size_t x = 0; x < vocabulary; x++)
		logits[x] = (float)((double)logits[x] + change[seen[x]]);
}

void pointer_mix(const struct pointer *pointer, const struct pointer_links *found, const uint8_t *seen, float *logits,
		 size_t vocabulary)
{
	double weights[POINTER_LINKS];

	seen = pointer->seeing ? seen : NULL;
	if (!found->count && !seen)
		return;
	const struct logits_summary summary = logits_summary(logits, vocabulary);
	const struct pointer_sample sample = look(found, seen, logits, vocabulary, &summary);

	pointer_weigh(pointer, &sample, weights);
	if (seen)
		raise_seen(pointer, &sample, seen, logits, vocabulary);
	for (size_t i = 0; i < links_of(pointer, sample.count); i++) {
		float *logit = &logits[found->token[i]];

		*logit = (float)log_add((double)*logit, summary.sum + weights[i]);
	}
}

size_t pointer_shares(const struct pointer *pointer, const struct pointer_links *found, const float *logits,
		      size_t vocabulary, double shares[POINTER_LINKS])
{
	const struct logits_summary summary = logits_summary(logits, vocabulary);
	const struct pointer_sample sample = look(found, NULL, logits, vocabulary, &summary);
	const double whole = pointer_weigh(pointer, &sample, shares);
	const size_t links = links_of(pointer, sample.count);

	for (size_t i = 0; i < links; i++)
		shares[i] = exp(shares[i] - whole);
	return links;
}
