/* HTTP: connections, limits and routes. */
#pragma once

#include "serve/engine.h"

struct server_options {
	const char *host; /* a name or an address */
	uint16_t port;    /* 0: any that is free */
	const char *key;  /* NULL: none is required */
	size_t body;      /* most bytes of a request's body */
	unsigned timeout; /* seconds that a client may be idle, and that a header may take */
};

typedef struct server server;

/* Listens from now on. `model` and `engine` must outlive the server. */
rosa_status server_new(const struct served *model, engine *engine, const struct server_options *options, server **made,
		       rosa_error *err);
uint16_t server_port(const server *server);
/* Closes connections whose header has not arrived in time. Call it regularly. */
void server_tend(server *server);
/* Takes no new connections. */
void server_close(server *server);
/* Ends all connections. Safe on NULL. */
void server_free(server *server);
