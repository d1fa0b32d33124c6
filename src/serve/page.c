/* Files for browsers, beside the API. There is nothing to build: they are served as they are. */
#include "serve/page.h"

#include "serve_page.h"

#include <string.h>

static const struct page_file files[] = {
    {"/", "text/html; charset=utf-8", index_html, sizeof(index_html)},
    {"/page.css", "text/css; charset=utf-8", page_css, sizeof(page_css)},
    {"/page.js", "text/javascript; charset=utf-8", page_js, sizeof(page_js)},
    {"/icon.svg", "image/svg+xml", icon_svg, sizeof(icon_svg)},
};

const struct page_file *page_find(const char *path)
{
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
		if (strcmp(files[i].path, path) == 0)
			return &files[i];
	return NULL;
}
