/*
 * rosatune serve: the command.
 *
 * It opens the model, starts the engine and the server (src/serve), and waits for a signal. Then nothing new is taken
 * in, what is being answered gets time to end, and a second signal ends the program at once.
 */
#include "cli/commands.h"

#include "base/paths.h"
#include "cli/features.h"
#include "cli/interrupt.h"
#include "cli/models.h"
#include "serve/api_key.h"
#include "serve/host_name.h"
#include "serve/server.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#define GRACE_SECONDS 30 /* for answers that are being written at the end */
#define PAUSES        20 /* in a second */
#define CHUNK         256

struct job {
	struct model_args args;
	const char *host, *key_file, *name, *folder;
	uint64_t port, parallel, queue, keep, memory, disk, tokens, body, timeout;

	struct model model;
	tokenizer *tokenizer;
	struct served served;
	char *key, *model_name;
	struct session_folder_options sessions;
	engine *engine;
	server *server;
};

static const char notes[] =
    "Paths: / (a web page), /v1/completions, /v1/chat/completions, /v1/models, /tokenize, /health, /props,\n"
    "/slots, /metrics. Any client of OpenAI's API can be used:\n"
    "  rosatune serve --model M --window 512 &\n"
    "  curl http://127.0.0.1:8080/v1/completions -H 'Content-Type: application/json' \\\n"
    "    -d '{\"prompt\": \"Once upon a time\", \"max_tokens\": 32}'\n"
    "\n"
    "Prompts are cached: a new prompt that shares a prefix with a cached one is processed from the first differing\n"
    "token on. With --sessions the cache is written to a folder too, and a server started later with the same folder\n"
    "uses it, even after a kill. When memory or the folder is full, the least recently used text is dropped.\n"
    "POST /slots/ID?action=save, restore or erase, with {\"filename\": NAME}, saves the text last read in a slot to a\n"
    "file of that name in the folder, where it stays; restores that file; or removes the text from the cache.\n"
    "\n"
    "After Ctrl-C or SIGTERM running answers are finished, for up to 30 seconds, and the texts are saved; a second\n"
    "signal ends the program at once.";

static enum args_result parse(struct job *job, int count, char **words)
{
	struct arg options[] = {
	    MODEL_ARGS(&job->args),
	    POINTER_ARG(&job->args),
	    OPTION_TEXT("host", &job->host, "ADDRESS", "listen at this address (default 127.0.0.1: this machine only)"),
	    OPTION_NUMBER("port", &job->port, "N", 0, 65535, "listen on this port (default 8080; 0: any free port)"),
	    OPTION_TEXT("api-key-file", &job->key_file, "FILE",
			"accept only clients that send the API key in this file"),
	    OPTION_TEXT("name", &job->name, "NAME",
			"the model's name in the API (default: the name of its file or folder)"),
	    OPTION_NUMBER("parallel", &job->parallel, "N", 1, 256,
			  "prompts processed at the same time, the number of slots (default 4)"),
	    OPTION_NUMBER("queue", &job->queue, "N", 1, 4096,
			  "maximum number of requests running or waiting; others get status 429 (default 64)"),
	    OPTION_NUMBER("keep", &job->keep, "N", 0, 65536,
			  "maximum number of texts in the prompt cache (default 32)"),
	    OPTION_SIZE("memory", &job->memory, "BYTES", 1, UINT64_MAX,
			"memory for running prompts and the prompt cache (default: a quarter of the machine's)"),
	    OPTION_TEXT("sessions", &job->folder, "DIR",
			"also keep the prompt cache in this folder, for later servers"),
	    OPTION_SIZE("disk", &job->disk, "BYTES", 1, UINT64_MAX,
			"maximum size of the texts in the folder (default 8G)"),
	    OPTION_SIZE("tokens", &job->tokens, "N", 1, ROSA_MAX_STEPS,
			"default of max_tokens for chat requests that do not set it (default 2048)"),
	    OPTION_SIZE("body", &job->body, "BYTES", 1, (uint64_t)1 << 30,
			"maximum size of a request body (default 16M)"),
	    OPTION_NUMBER("timeout", &job->timeout, "SECONDS", 1, 3600,
			  "close connections that are idle or take longer to send a header (default 30)"),
	};
	struct args args = {
	    .command = "serve",
	    .usage = "--model PATH [options]",
	    .summary = "Serves a model over HTTP, with OpenAI's interface.",
	    ARGS_OPTIONS(options),
	    .notes = notes,
	};

	return args_parse(&args, count, words);
}

/* The name of the model's file or folder, without what comes before and without ".gguf". */
static char *name_of(const char *path)
{
	size_t size = strlen(path), begin;

	while (size > 1 && path[size - 1] == '/')
		size--;
	begin = size;
	while (begin > 0 && path[begin - 1] != '/')
		begin--;
	if (size - begin > 5 && strncasecmp(path + size - 5, ".gguf", 5) == 0)
		size -= 5;
	return strndup(path + begin, size - begin);
}

static uint64_t quarter_of_memory(void)
{
	const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);

	return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size / 4 : (uint64_t)1 << 30;
}

static bool open_served(struct job *job, rosa_error *why)
{
	struct served *served = &job->served;
	struct model *model = &job->model;

	job->args.chunk = job->args.chunk ? job->args.chunk : CHUNK;
	if (!model_open(model, &job->args, why) || !model_pointer(model, &job->args, why) ||
	    checkpoint_tokenizer(&model->checkpoint, &job->tokenizer, why) != ROSA_OK)
		return false;
	job->model_name = job->name ? strdup(job->name) : name_of(job->args.model);
	if (!job->model_name)
		return refuse(why, "not enough memory for a name");
	*served = (struct served){.name = job->model_name,
				  .path = job->args.model,
				  .config = &model->checkpoint.config,
				  .options = model->options,
				  .decoder = model->decoder,
				  .tokenizer = job->tokenizer,
				  .pointer = model->pointer_path ? &model->pointer : NULL,
				  .defaults = {.chat_tokens = (size_t)job->tokens}};
	return generation_config_read(&model->checkpoint, &served->defaults.sampling, why) == ROSA_OK &&
	       chat_format_of(job->tokenizer, &served->chat, why) == ROSA_OK;
}

/* What the server says of its sessions. */
static void say(const char *message)
{
	complain("serve", "note: %s", message);
}

static void greet(const struct job *job)
{
	const bool six = strchr(job->host, ':') != NULL;

	if (!job->key && !host_is_loopback(job->host))
		complain("serve", "note: without --api-key-file anyone who can reach %s can use the model", job->host);
	printf("serving %s at http://%s%s%s:%u/v1; %llu at a time; texts: %.1f MiB, at most %llu kept", job->model_name,
	       six ? "[" : "", job->host, six ? "]" : "", (unsigned)server_port(job->server),
	       (unsigned long long)job->parallel, (double)job->memory / 1048576.0, (unsigned long long)job->keep);
	if (job->folder) {
		struct engine_report report;

		engine_report(job->engine, &report, NULL);
		printf("; in %s: %.1f of %.1f MiB, %zu texts", job->folder, (double)report.file_bytes / 1048576.0,
		       (double)job->disk / 1048576.0, report.files);
	}
	printf("\n");
	fflush(stdout);
}

static void pause_shortly(void)
{
	const struct timespec time = {0, 1000000000 / PAUSES};

	nanosleep(&time, NULL);
}

/* Lets answers end, within the grace. */
static void end(struct job *job)
{
	engine_close(job->engine);
	server_close(job->server);
	for (int i = 0; engine_busy(job->engine) && i < GRACE_SECONDS * PAUSES; i++) {
		server_tend(job->server);
		if (i == PAUSES)
			complain("serve", "ending; answers have %d seconds, a second signal ends at once",
				 GRACE_SECONDS);
		pause_shortly();
	}
	engine_abort(job->engine);
}

static bool run(struct job *job, rosa_error *why)
{
	struct server_options options = {.host = job->host,
					 .port = (uint16_t)job->port,
					 .body = (size_t)job->body,
					 .timeout = (unsigned)job->timeout};
	struct engine_options limits = {
	    .parallel = (size_t)job->parallel, .queue = (size_t)job->queue, .sessions = (size_t)job->keep};

	if (!features_has("microhttpd"))
		return refuse(why, "this build has no HTTP server: install libmicrohttpd-dev and build again");
	if (job->key_file && api_key_load(job->key_file, &job->key, why) != ROSA_OK)
		return false;
	if (!job->memory)
		job->memory = quarter_of_memory();
	limits.memory = job->memory;
	options.key = job->key;
	job->sessions.path = job->folder;
	job->sessions.limit = job->disk;
	job->sessions.say = say;
	limits.folder = job->folder ? &job->sessions : NULL;
	if (!open_served(job, why) || !model_settings(&job->model, &job->sessions.settings, why) ||
	    engine_new(&job->served, &limits, &job->engine, why) != ROSA_OK ||
	    server_new(&job->served, job->engine, &options, &job->server, why) != ROSA_OK)
		return false;
	greet(job);
	while (!interrupted()) {
		pause_shortly();
		server_tend(job->server);
	}
	end(job);
	return true;
}

int serve_command(int count, char **words)
{
	struct job job = {.args = MODEL_ARGS_INIT,
			  .host = "127.0.0.1",
			  .port = 8080,
			  .parallel = 4,
			  .queue = 64,
			  .keep = 32,
			  .disk = (uint64_t)8 << 30,
			  .tokens = 2048,
			  .body = (uint64_t)16 << 20,
			  .timeout = 30};
	rosa_error why = {0};
	enum args_result parsed = parse(&job, count, words);

	if (parsed != ARGS_OK)
		return parsed == ARGS_HELP ? DONE : MISUSED;
	interrupt_watch();
	signal(SIGPIPE, SIG_IGN);
	const bool good = run(&job, &why);

	server_free(job.server);
	engine_free(job.engine);
	session_settings_free(&job.sessions.settings);
	chat_format_free(&job.served.chat);
	tokenizer_free(job.tokenizer);
	model_close(&job.model);
	free(job.model_name);
	free(job.key);
	if (!good)
		complain("serve", "%s", why.message);
	return good ? DONE : FAILED;
}
