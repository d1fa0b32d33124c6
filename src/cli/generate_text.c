/*
 * The continuation of a text.
 *
 * The model reads the text as it is. Special tokens that are written in it are recognised, as in Hugging Face's
 * tokenizers, and a begin-of-text token comes first where the tokenizer has one. With a session the new text is
 * appended to the session's; if the model had ended that, its end token is removed first.
 */
#include "cli/generate.h"

#include "cli/interrupt.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool encode(const struct generate *job, struct tokens *tokens, rosa_error *why)
{
	struct text text = {0};
	bool good = (!job->file || text_add_file(&text, job->file, job->lossy, why)) &&
		    (!job->prompt || text_add(&text, "--prompt", job->prompt, strlen(job->prompt), job->lossy, why));

	if (good && text.size > 0)
		good = tokenizer_encode(job->tokenizer, text.data, text.size, true, tokens, why) == ROSA_OK;
	text_free(&text);
	return good;
}

/* Starts the run: with the begin-of-text token, or with the session. `more`: new text follows. *ended: the model had
 * ended the session's text, and no new text follows. */
static bool begin(struct generate *job, bool more, bool *ended, rosa_error *why)
{
	struct session session;
	sequence *sequence;

	*ended = false;
	if (!job->load) {
		int64_t first = tokenizer_bos(job->tokenizer);
		uint32_t token = (uint32_t)first;
		return first < 0 ? true : run_append(&job->run, &token, 1, why);
	}
	if (session_load(job->load, job->model.decoder, &session, &sequence, why) != ROSA_OK)
		return false;
	if (session.ended && more)
		session.tokens.count--; /* the last token has not been read */
	*ended = session.ended && !more;
	bool good = run_resume(&job->run, sequence, &session.tokens, session.draws, why);
	session_free(&session);
	return good;
}

static bool save(const struct generate *job, bool ended, rosa_error *why)
{
	const struct run *run = &job->run;
	struct session session = {.settings = job->settings,
				  .tokens = run->tokens,
				  .draws = sampler_draws(run->answer.sampler),
				  .ended = ended};

	/* The Ctrl-C that has stopped the text must not stop the saving too. */
	interrupt_forget();
	return session_save(job->save, &session, (struct session_state){.sequence = run->sequence}, &program_files,
			    why) == ROSA_OK;
}

static bool print_json(const struct generate *job, rosa_error *why)
{
	const struct run *run = &job->run;
	const struct answer *answer = &run->answer;
	const struct sequence_memory memory = sequence_memory(run->sequence);
	struct json_text text = {0};

	json_text_open(&text, NULL, '{');
	json_text_key(&text, "text");
	json_text_bytes(&text, answer->text.data ? answer->text.data : "", answer->text.size);
	json_text_open(&text, "tokens", '[');
	for (size_t i = run->tokens.count - answer->made; i < run->tokens.count; i++)
		json_text_put_size(&text, NULL, run->tokens.ids[i]);
	json_text_close(&text, ']');
	json_text_put_string(&text, "end", answer_end_names[answer->end]);
	json_text_put_size(&text, "tokens_read", run->read);
	json_text_put_number(&text, "seconds_reading", (double)run->reading_time * 1e-9);
	json_text_put_size(&text, "tokens_made", run->made);
	json_text_put_number(&text, "seconds_making", (double)run->making_time * 1e-9);
	json_text_put_size(&text, "context", run->tokens.count);
	json_text_put_size(&text, "attention_bytes", memory.attention);
	json_text_put_size(&text, "retrieval_bytes", memory.retrieval);
	json_text_put_size(&text, "value_bytes", memory.values);
	json_text_put_size(&text, "pointer_bytes", run->past ? pointer_past_bytes(run->past) : 0);
	json_text_put_string(&text, "pointer", job->model.pointer_path);
	json_text_add(&text, "}\n");
	return json_print(&text, why);
}

/* Generates the answer, prints it or its JSON, reports and saves. Returns the exit code, or -1 with a reason. */
static int answer(struct generate *job, bool ended, rosa_error *why)
{
	struct run *run = &job->run;
	struct answer *answer = &run->answer;

	run->printed = !job->json;
	answer->end = ANSWER_END;
	if (ended)
		complain(job->command, "the model had ended this text; give it more with --prompt");
	else if (!run_answer(run, (size_t)job->tokens, why))
		return -1;
	int code = interrupted();
	if (job->json && !print_json(job, why))
		return -1;
	if (!job->json && answer->text.size > 0 && isatty(STDOUT_FILENO))
		putchar('\n');
	fflush(stdout);
	/* The text may also become too long while it is generated. */
	run_warn_length(run, sequence_steps(run->sequence), job->command);
	run_report(run);
	if (job->save && !save(job, answer->end == ANSWER_END, why))
		return -1;
	if (code)
		complain(job->command, "interrupted%s%s", job->save ? "; the session is saved in " : "",
			 job->save ? job->save : "");
	return code;
}

int generate_text(struct generate *job, rosa_error *why)
{
	struct tokens tokens = {0};
	bool ended = false;
	int code = -1;

	if (encode(job, &tokens, why) && begin(job, tokens.count > 0, &ended, why) &&
	    run_append(&job->run, tokens.ids, tokens.count, why)) {
		run_warn_length(&job->run, job->run.tokens.count, job->command);
		if (job->run.tokens.count == 0)
			refuse(why, "the text is empty; give at least a word");
		else
			code = answer(job, ended, why);
	}
	tokens_free(&tokens);
	return code;
}
