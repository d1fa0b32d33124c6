/* The host that a request names. */
#pragma once

#include <stdbool.h>

/* Whether an address that a server listens at is this machine's own: 127.x.x.x, ::1 or localhost. */
bool host_is_loopback(const char *host);

/* Whether the header "Host" names an address in figures, localhost or a name below it; NULL (no header) does.
 *
 * A site in a browser may let its own name lead to 127.0.0.1 (DNS rebinding), and its pages can then talk to a server
 * there as to their own site. But the name in the header is then that site's. */
bool host_is_plain(const char *header);
