/* What the server reports about itself. */
#pragma once

#include "base/json_text.h"
#include "serve/engine.h"

void answer_models(struct json_text *text, const struct served *model, int64_t created);
void answer_model(struct json_text *text, const struct served *model, int64_t created);
void answer_props(struct json_text *text, const struct served *model, engine *engine);
void answer_slots(struct json_text *text, engine *engine);
void answer_slot(struct json_text *text, const struct slot_request *request, const struct slot_result *result);
void answer_metrics(struct json_text *text, engine *engine); /* Prometheus's text, not JSON */
