/* The host that a request names. */
#include "serve/host_name.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

bool host_is_loopback(const char *host)
{
	struct in_addr four;
	struct in6_addr six;

	if (inet_aton(host, &four)) /* which knows 127.1 too, as the resolver does */
		return ntohl(four.s_addr) >> 24 == IN_LOOPBACKNET;
	return (inet_pton(AF_INET6, host, &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six)) ||
	       strcasecmp(host, "localhost") == 0;
}

bool host_is_plain(const char *header)
{
	static const char local[] = "localhost";
	const size_t tail = sizeof(local) - 1;
	struct in6_addr address;
	char name[256];
	size_t size;

	if (!header)
		return true;
	const bool six = header[0] == '[';

	header += six;
	size = strcspn(header, six ? "]" : ":"); /* the port is left out */
	if (!size || size >= sizeof(name))
		return false;
	memcpy(name, header, size);
	name[size] = 0;
	if (inet_pton(six ? AF_INET6 : AF_INET, name, &address) == 1)
		return true;
	return !six && size >= tail && strcasecmp(name + size - tail, local) == 0 &&
	       (size == tail || name[size - tail - 1] == '.');
}
