/*
 * HTTP by libmicrohttpd; the only file that uses it.
 *
 * Each connection has a thread, which waits for the engine as it would for a slow disk: the only state that
 * lives from one callback to the next is `visit`. The number of connections is bounded, and with it the threads.
 * A thread that waits looks now and then whether its client is still there; if not, the engine is told, and the slot
 * is free after the current turn.
 *
 * Limits: bytes of the header (the library answers 431), of a body (413) and of all bodies together (429), seconds
 * without a byte, for a whole header and for a whole body, connections. A body that is too large is read and thrown
 * away up to a bound, so that a client that sends first and reads later gets the answer. The library knows no limit for
 * the time of a header, so that a few clients who send a byte now and then could take all connections: server_tend
 * shuts their sockets.
 */
#include "serve/server.h"

#include "base/status.h"
#include "serve/api_key.h"
#include "base/clock.h"
#include "serve/host_name.h"
#include "serve/exchange.h"
#include "serve/page.h"
#include "serve/prompt_encode.h"
#include "serve/state.h"

#ifdef ROSATUNE_MICROHTTPD

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define HEADER_BYTES   ((size_t)32 << 10)
#define BODY_SECONDS   120.0        /* for a whole body */
#define BODY_DISCARDED ((size_t)4)  /* times the limit of a body */
#define BODIES         ((size_t)8)  /* times that limit: all bodies together */
#define CONNECTIONS    ((size_t)64) /* beside those of requests that run or wait */
#define STACK_BYTES    ((size_t)1 << 20)
#define STREAM_BLOCK   ((size_t)16 << 10)
#define RETRY_SECONDS  "1"

/* A connection while it is there. */
struct link {
	int socket;
	double since; /* when its next header began to be waited for; 0: it is there */
	struct link *before, *after;
};

struct server {
	const struct served *model;
	engine *engine;
	struct server_options options;
	struct MHD_Daemon *daemon;
	int64_t started;         /* seconds since 1970 */
	pthread_mutex_t parsing; /* JSON takes many times its size: one at a time */
	atomic_size_t bodies;    /* bytes of all that are there */
	pthread_mutex_t linking; /* guards the links */
	struct link *links;
};

/* A request on its way. */
struct visit {
	server *server;
	struct MHD_Connection *connection;
	const struct route *route;
	struct api_error error; /* status 0: none so far */
	double began;
	char *body;
	size_t size, room, seen;
	struct exchange exchange;
	bool submitted, left;    /* to the engine, and from there */
	struct json_text stream; /* events that wait to be sent */
	size_t sent;
};

struct route {
	const char *method, *path; /* a path that ends with '/', but for "/", stands for all that begin with it */
	enum MHD_Result (*serve)(struct visit *visit, const char *rest);
	bool open; /* without a key */
	/* Of serve_state. */
	void (*put)(const server *s, struct json_text *text);
	const char *type; /* NULL: JSON */
};

static void drop_body(struct visit *visit)
{
	atomic_fetch_sub(&visit->server->bodies, visit->room);
	free(visit->body);
	visit->body = NULL;
	visit->size = visit->room = 0;
}

/* --------------------------------------------------------------------------------------------------------- links -- */

/* Makes and ends the link of a connection. The socket is open in both calls. */
static void linked(void *context, struct MHD_Connection *connection, void **state,
		   enum MHD_ConnectionNotificationCode code)
{
	const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
	server *s = context;
	struct link *link = *state;

	if (code == MHD_CONNECTION_NOTIFY_STARTED && info && (link = malloc(sizeof(*link)))) {
		pthread_mutex_lock(&s->linking);
		*link = (struct link){info->connect_fd, clock_now(), NULL, s->links};
		if (s->links)
			s->links->before = link;
		s->links = link;
		pthread_mutex_unlock(&s->linking);
		*state = link;
	} else if (code == MHD_CONNECTION_NOTIFY_CLOSED && link) {
		pthread_mutex_lock(&s->linking);
		*(link->before ? &link->before->after : &s->links) = link->after;
		if (link->after)
			link->after->before = link->before;
		pthread_mutex_unlock(&s->linking);
		free(link);
		*state = NULL;
	}
}

/* Since when the next header of a connection is waited for; 0: it has come. */
static void mark(server *s, struct MHD_Connection *connection, double since)
{
	const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	struct link *link = info ? info->socket_context : NULL;

	if (!link)
		return;
	pthread_mutex_lock(&s->linking);
	link->since = since;
	pthread_mutex_unlock(&s->linking);
}

void server_tend(server *s)
{
	const double now = clock_now();

	pthread_mutex_lock(&s->linking);
	for (struct link *link = s->links; link; link = link->after)
		if (link->since > 0 && now - link->since > s->options.timeout)
			shutdown(link->socket, SHUT_RDWR);
	pthread_mutex_unlock(&s->linking);
}

/* ------------------------------------------------------------------------------------------------------- replies -- */

/* Sends a text, which is released. */
static enum MHD_Result reply(struct visit *visit, unsigned status, const char *type, struct json_text *text)
{
	struct MHD_Response *response;
	enum MHD_Result result;

	if (text->failed || !text->data) {
		json_text_free(text);
		return MHD_NO;
	}
	response = MHD_create_response_from_buffer(text->size, text->data, MHD_RESPMEM_MUST_FREE);
	if (!response) {
		json_text_free(text);
		return MHD_NO;
	}
	MHD_add_response_header(response, "Content-Type", type);
	if (status == 429)
		MHD_add_response_header(response, "Retry-After", RETRY_SECONDS);
	if (status == 405)
		MHD_add_response_header(response, "Allow", visit->route->method);
	result = MHD_queue_response(visit->connection, status, response);
	MHD_destroy_response(response);
	return result;
}

static enum MHD_Result reply_json(struct visit *visit, struct json_text *text)
{
	json_text_add(text, "\n");
	return reply(visit, 200, "application/json", text);
}

static enum MHD_Result reply_error(struct visit *visit, const struct api_error *error)
{
	struct json_text text = {0};

	answer_error(&text, error);
	json_text_add(&text, "\n");
	return reply(visit, error->status, "application/json", &text);
}

/* ---------------------------------------------------------------------------------------------------- generating -- */

/* Whether the client has closed the connection. */
static bool gone(const struct visit *visit)
{
	const union MHD_ConnectionInfo *info =
	    MHD_get_connection_info(visit->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
	char byte;

	if (!info)
		return false;
	const ssize_t got = recv(info->connect_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

	return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

/* The library must not take waiting for the engine for an idle client. */
static void set_idle_limit(const struct visit *visit, unsigned seconds)
{
	MHD_set_connection_option(visit->connection, MHD_CONNECTION_OPTION_TIMEOUT, seconds);
}

/* Waits for events to send. False: the client has gone. */
static bool await_events(struct visit *visit)
{
	engine *engine = visit->server->engine;

	visit->sent = visit->stream.size = 0;
	for (;;) {
		engine_lock(engine);
		exchange_stream(&visit->exchange, &visit->stream);
		if (!visit->stream.size)
			engine_wait(engine);
		engine_unlock(engine);
		if (visit->stream.failed || (!visit->stream.size && gone(visit)))
			return false;
		if (visit->stream.size)
			return true;
	}
}

static ssize_t read_stream(void *context, uint64_t place, char *to, size_t most)
{
	struct visit *visit = context;

	(void)place;
	if (visit->sent == visit->stream.size) {
		if (visit->exchange.closed)
			return MHD_CONTENT_READER_END_OF_STREAM;
		set_idle_limit(visit, 0);
		const bool there = await_events(visit);

		set_idle_limit(visit, visit->server->options.timeout);
		if (!there)
			return MHD_CONTENT_READER_END_WITH_ERROR;
	}
	const size_t left = visit->stream.size - visit->sent, size = left < most ? left : most;

	memcpy(to, visit->stream.data + visit->sent, size);
	visit->sent += size;
	return (ssize_t)size;
}

static enum MHD_Result reply_stream(struct visit *visit)
{
	struct MHD_Response *response =
	    MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, visit, NULL);

	if (!response)
		return MHD_NO;
	MHD_add_response_header(response, "Content-Type", "text/event-stream");
	MHD_add_response_header(response, "Cache-Control", "no-cache");
	const enum MHD_Result result = MHD_queue_response(visit->connection, 200, response);

	MHD_destroy_response(response);
	return result;
}

/* Waits until all tasks are over. False: the client has gone. */
static bool await_answer(struct visit *visit)
{
	engine *engine = visit->server->engine;
	bool over = false, there = true;

	set_idle_limit(visit, 0);
	while (!over && there) {
		engine_lock(engine);
		over = exchange_over(&visit->exchange);
		if (!over)
			engine_wait(engine);
		engine_unlock(engine);
		there = over || !gone(visit);
	}
	set_idle_limit(visit, visit->server->options.timeout);
	return there;
}

static void leave(struct visit *visit)
{
	if (visit->submitted && !visit->left)
		engine_leave(visit->server->engine, visit->exchange.tasks, visit->exchange.count);
	visit->left = true;
}

/* Leaves the engine before it formats the answer, which may be long, so that no other request waits for that or for a
 * client that reads slowly. */
static enum MHD_Result reply_whole(struct visit *visit)
{
	struct json_text text = {0};
	struct api_error error = {0};

	if (!await_answer(visit))
		return MHD_NO;
	leave(visit);
	if (exchange_error(&visit->exchange))
		error = *exchange_error(&visit->exchange);
	else
		exchange_whole(&visit->exchange, &text);
	exchange_free(&visit->exchange);
	return error.status ? reply_error(visit, &error) : reply_json(visit, &text);
}

static enum MHD_Result generate(struct visit *visit, enum request_kind kind)
{
	server *server = visit->server;
	struct api_error error;

	pthread_mutex_lock(&server->parsing);
	bool good =
	    exchange_new(server->model, kind, visit->body ? visit->body : "", visit->size, &visit->exchange, &error);

	pthread_mutex_unlock(&server->parsing);
	drop_body(visit);
	visit->submitted = good && engine_submit(server->engine, visit->exchange.tasks, visit->exchange.count, &error);
	if (!visit->submitted)
		return reply_error(visit, &error);
	return visit->exchange.request.stream ? reply_stream(visit) : reply_whole(visit);
}

static enum MHD_Result serve_completions(struct visit *visit, const char *rest)
{
	(void)rest;
	return generate(visit, REQUEST_COMPLETION);
}

static enum MHD_Result serve_chat(struct visit *visit, const char *rest)
{
	(void)rest;
	return generate(visit, REQUEST_CHAT);
}

static enum MHD_Result serve_tokenize(struct visit *visit, const char *rest)
{
	server *server = visit->server;
	struct json_text text = {0};
	struct api_error error;

	(void)rest;
	pthread_mutex_lock(&server->parsing);
	const bool good = answer_tokens(&text, server->model, visit->body ? visit->body : "", visit->size, &error);

	pthread_mutex_unlock(&server->parsing);
	return good ? reply_json(visit, &text) : reply_error(visit, &error);
}

/* --------------------------------------------------------------------------------------------------------- state -- */

static void put_health(const server *s, struct json_text *text)
{
	(void)s;
	json_text_add(text, "{\"status\": \"ok\"}");
}

static void put_models(const server *s, struct json_text *text)
{
	answer_models(text, s->model, s->started);
}

static void put_props(const server *s, struct json_text *text)
{
	answer_props(text, s->model, s->engine);
}

static void put_slots(const server *s, struct json_text *text)
{
	answer_slots(text, s->engine);
}

static void put_metrics(const server *s, struct json_text *text)
{
	answer_metrics(text, s->engine);
}

static enum MHD_Result serve_state(struct visit *visit, const char *rest)
{
	struct json_text text = {0};

	(void)rest;
	visit->route->put(visit->server, &text);
	return visit->route->type ? reply(visit, 200, visit->route->type, &text) : reply_json(visit, &text);
}

static enum MHD_Result serve_model(struct visit *visit, const char *rest)
{
	struct json_text text = {0};
	struct api_error error;

	if (strcmp(rest, visit->server->model->name) != 0) {
		api_fail(&error, 404, "model", "model_not_found", "the model %.100s is not served here", rest);
		return reply_error(visit, &error);
	}
	answer_model(&text, visit->server->model, visit->server->started);
	return reply_json(visit, &text);
}

static enum MHD_Result serve_slot(struct visit *visit, const char *rest)
{
	engine *engine = visit->server->engine;
	const char *action = MHD_lookup_connection_value(visit->connection, MHD_GET_ARGUMENT_KIND, "action");
	struct json_text text = {0};
	struct slot_request request;
	struct slot_result result;
	struct api_error error;

	if (!slot_request_parse(rest, action, visit->body ? visit->body : "", visit->size,
				engine_options(engine)->parallel, &request, &error) ||
	    !engine_slot_do(engine, &request, &result, &error))
		return reply_error(visit, &error);
	answer_slot(&text, &request, &result);
	return reply_json(visit, &text);
}

/* ---------------------------------------------------------------------------------------------------------- page -- */

/* A file of the page. It may load and ask for what this server has and nothing else. */
static enum MHD_Result serve_page(struct visit *visit, const char *rest)
{
	static const char *const headers[][2] = {
	    {"Content-Security-Policy",
	     "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
	     "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
	    {"X-Content-Type-Options", "nosniff"},
	    {"Referrer-Policy", "no-referrer"},
	    {"Cache-Control", "no-cache"},
	};
	const struct page_file *file = page_find(visit->route->path);
	struct MHD_Response *response =
	    MHD_create_response_from_buffer(file->size, (void *)(uintptr_t)file->data, MHD_RESPMEM_PERSISTENT);

	(void)rest;
	if (!response)
		return MHD_NO;
	MHD_add_response_header(response, "Content-Type", file->type);
	for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++)
		MHD_add_response_header(response, headers[i][0], headers[i][1]);
	const enum MHD_Result result = MHD_queue_response(visit->connection, 200, response);

	MHD_destroy_response(response);
	return result;
}

static const struct route routes[] = {
    {"GET", "/", serve_page, true, NULL, NULL},
    {"GET", "/page.css", serve_page, true, NULL, NULL},
    {"GET", "/page.js", serve_page, true, NULL, NULL},
    {"GET", "/icon.svg", serve_page, true, NULL, NULL},
    {"GET", "/health", serve_state, true, put_health, NULL},
    {"GET", "/v1/models", serve_state, false, put_models, NULL},
    {"GET", "/v1/models/", serve_model, false, NULL, NULL},
    {"POST", "/v1/completions", serve_completions, false, NULL, NULL},
    {"POST", "/v1/chat/completions", serve_chat, false, NULL, NULL},
    {"POST", "/tokenize", serve_tokenize, false, NULL, NULL},
    {"GET", "/props", serve_state, false, put_props, NULL},
    {"GET", "/slots", serve_state, false, put_slots, NULL},
    {"POST", "/slots/", serve_slot, false, NULL, NULL},
    {"GET", "/metrics", serve_state, false, put_metrics, "text/plain; version=0.0.4"},
};

/* ------------------------------------------------------------------------------------------------------ requests -- */

static bool leads(const char *path, const char *url)
{
	const size_t size = strlen(path);

	return size > 1 && path[size - 1] == '/' ? strncmp(url, path, size) == 0 && url[size] : strcmp(url, path) == 0;
}

/* Whether a body is JSON by its header. A page of another site cannot send that without asking first, and is then not
 * answered: so no page in a browser can use a server on its own machine. */
static bool is_json(struct MHD_Connection *connection)
{
	static const char wanted[] = "application/json";
	const char *type = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Content-Type");

	return type && strncasecmp(type, wanted, sizeof(wanted) - 1) == 0;
}

/* What can be said before the body has come. */
static void look_at_head(struct visit *visit, const char *url, const char *method)
{
	const char *key = visit->server->options.key;
	struct MHD_Connection *connection = visit->connection;

	for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]) && !visit->route; i++)
		visit->route = leads(routes[i].path, url) ? &routes[i] : NULL;
	if (!visit->route)
		api_fail(&visit->error, 404, NULL, "not_found", "there is nothing at %.100s", url);
	else if (key && !visit->route->open &&
		 !api_key_fits(key, MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Authorization")))
		api_fail(&visit->error, 401, NULL, "invalid_api_key",
			 "the API key is missing or wrong: send 'Authorization: Bearer KEY'");
	else if (!key && host_is_loopback(visit->server->options.host) &&
		 !host_is_plain(MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Host")))
		api_fail(&visit->error, 403, NULL, "host_not_allowed",
			 "a server for this machine alone answers to its address or localhost; to use another name, "
			 "start it with --api-key-file");
	else if (strcmp(method, visit->route->method) != 0)
		api_fail(&visit->error, 405, NULL, "method_not_allowed", "%.20s cannot be used with %.100s, only %s",
			 method, url, visit->route->method);
	else if (strcmp(method, "POST") == 0 && !is_json(connection))
		api_fail(&visit->error, 415, NULL, NULL,
			 "the body must be JSON: send 'Content-Type: application/json'");
}

/* Makes room for more of a body that stays within its limit. False: there is no memory. */
static bool grow_body(struct visit *visit, size_t size)
{
	const size_t limit = visit->server->options.body, twice = size + 2 * visit->size;
	const size_t more = (twice < limit ? twice : limit) - visit->room;
	atomic_size_t *all = &visit->server->bodies;
	char *grown;

	if (size <= visit->room - visit->size)
		return true;
	if (atomic_fetch_add(all, more) + more > BODIES * limit) {
		atomic_fetch_sub(all, more);
		api_fail(&visit->error, 429, NULL, "queue_full", "too much is being sent; try again later");
		drop_body(visit);
		return true;
	}
	grown = realloc(visit->body, visit->room + more);
	if (!grown)
		atomic_fetch_sub(all, more);
	visit->body = grown ? grown : visit->body;
	visit->room += grown ? more : 0;
	return grown != NULL;
}

/* Takes a piece of the body. False: the connection is closed. */
static bool take_body(struct visit *visit, const char *data, size_t size)
{
	const size_t limit = visit->server->options.body;

	visit->seen += size;
	if (visit->seen / BODY_DISCARDED > limit || clock_now() - visit->began > BODY_SECONDS)
		return false;
	if (visit->seen > limit && !visit->error.status)
		api_fail(&visit->error, 413, NULL, NULL, "the body has more than %zu bytes", limit);
	if (!visit->error.status && !grow_body(visit, size))
		return false;
	if (visit->error.status)
		return true;
	memcpy(visit->body + visit->size, data, size);
	visit->size += size;
	return true;
}

static enum MHD_Result handle(void *context, struct MHD_Connection *connection, const char *url, const char *method,
			      const char *version, const char *data, size_t *size, void **state)
{
	struct visit *visit = *state;

	(void)version;
	if (!visit) {
		visit = calloc(1, sizeof(*visit));
		if (!visit)
			return MHD_NO;
		*state = visit;
		visit->server = context;
		visit->connection = connection;
		visit->began = clock_now();
		mark(context, connection, 0);
		look_at_head(visit, url, method);
		return MHD_YES;
	}
	if (*size) {
		const bool good = take_body(visit, data, *size);

		*size = 0;
		return good ? MHD_YES : MHD_NO;
	}
	if (visit->error.status)
		return reply_error(visit, &visit->error);
	return visit->route->serve(visit, url + strlen(visit->route->path));
}

static void completed(void *context, struct MHD_Connection *connection, void **state,
		      enum MHD_RequestTerminationCode code)
{
	struct visit *visit = *state;

	(void)code;
	mark(context, connection, clock_now());
	if (!visit)
		return;
	leave(visit);
	if (visit->submitted)
		engine_answered(visit->server->engine);
	exchange_free(&visit->exchange);
	json_text_free(&visit->stream);
	drop_body(visit);
	free(visit);
	*state = NULL;
}

/* ------------------------------------------------------------------------------------------------ making, ending -- */

static rosa_status start(server *s, const struct sockaddr *address, bool six, rosa_error *err)
{
	const unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL |
			       MHD_USE_ITC | (six ? MHD_USE_IPv6 : 0);
	const unsigned connections = (unsigned)(engine_options(s->engine)->queue + CONNECTIONS);

	s->daemon = MHD_start_daemon(
	    flags, s->options.port, NULL, NULL, handle, s, MHD_OPTION_SOCK_ADDR, address, MHD_OPTION_NOTIFY_COMPLETED,
	    completed, s, MHD_OPTION_CONNECTION_LIMIT, connections, MHD_OPTION_NOTIFY_CONNECTION, linked, s,
	    MHD_OPTION_CONNECTION_TIMEOUT, s->options.timeout, MHD_OPTION_CONNECTION_MEMORY_LIMIT, HEADER_BYTES,
	    MHD_OPTION_THREAD_STACK_SIZE, STACK_BYTES, MHD_OPTION_END);
	if (s->daemon)
		return ROSA_OK;
	return rosa_fail(err, ROSA_EIO, "cannot listen on %s, port %u: %s", s->options.host, (unsigned)s->options.port,
			 strerror(errno));
}

static rosa_status listen_at(server *s, rosa_error *err)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
	struct addrinfo *found = NULL;
	const int failed = getaddrinfo(s->options.host, NULL, &hints, &found);

	if (failed)
		return rosa_fail(err, ROSA_EINVAL, "the host %s is not known: %s", s->options.host,
				 gai_strerror(failed));
	if (found->ai_family == AF_INET6)
		((struct sockaddr_in6 *)(void *)found->ai_addr)->sin6_port = htons(s->options.port);
	else
		((struct sockaddr_in *)(void *)found->ai_addr)->sin_port = htons(s->options.port);
	const rosa_status status = start(s, found->ai_addr, found->ai_family == AF_INET6, err);

	freeaddrinfo(found);
	return status;
}

rosa_status server_new(const struct served *model, engine *engine, const struct server_options *options, server **made,
		       rosa_error *err)
{
	server *s = calloc(1, sizeof(*s));
	rosa_status status;

	*made = NULL;
	if (!s)
		return rosa_fail(err, ROSA_ENOMEM, "no memory for a server");
	s->model = model;
	s->engine = engine;
	s->options = *options;
	s->started = (int64_t)time(NULL);
	pthread_mutex_init(&s->parsing, NULL);
	pthread_mutex_init(&s->linking, NULL);
	status = listen_at(s, err);
	if (status == ROSA_OK)
		*made = s;
	else
		server_free(s);
	return status;
}

uint16_t server_port(const server *s)
{
	const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT);

	return info ? info->port : s->options.port;
}

void server_close(server *s)
{
	const MHD_socket listening = MHD_quiesce_daemon(s->daemon);

	if (listening != MHD_INVALID_SOCKET)
		close(listening);
}

void server_free(server *s)
{
	if (!s)
		return;
	if (s->daemon)
		MHD_stop_daemon(s->daemon);
	pthread_mutex_destroy(&s->parsing);
	pthread_mutex_destroy(&s->linking);
	free(s);
}

#else

rosa_status server_new(const struct served *model, engine *engine, const struct server_options *options, server **made,
		       rosa_error *err)
{
	(void)model;
	(void)engine;
	(void)options;
	*made = NULL;
	return rosa_fail(err, ROSA_EINVAL, "this build has no HTTP server: install libmicrohttpd-dev and build again");
}

uint16_t server_port(const server *server)
{
	(void)server;
	return 0;
}

void server_tend(server *server)
{
	(void)server;
}

void server_close(server *server)
{
	(void)server;
}

void server_free(server *server)
{
	(void)server;
}

#endif
