/* The engine: answers, events, cancelled requests, cache salts and priorities. */
#include "c_api_test.h"

#include <math.h>
#include <string.h>

static int stop_at_once(int64_t loaded, int64_t total, void* user) {
  ++*(int*)user;
  return loaded <= total;
}

void test_bad_engines(const char* model) {
  lathe_engine* engine = NULL;
  char options[4096];
  int asked = 0;
  FAILS(lathe_engine_load("{}", NULL, NULL, &engine), LATHE_INVALID_ARGUMENT, "model", "folder",
        "none");
  FAILS(lathe_engine_load("{\"model\": \"/nowhere/at/all\"}", NULL, NULL, &engine), LATHE_IO,
        "/nowhere/at/all", "folder", "nothing there");
  FAILS(lathe_engine_load("{\"model\": \"x\", \"thread\": 1}", NULL, NULL, &engine),
        LATHE_INVALID_ARGUMENT, "thread", "page_size", "unknown");
  FAILS(lathe_engine_load("{\"model\": \"x\", \"heads\": 8}", NULL, NULL, &engine),
        LATHE_INVALID_ARGUMENT, "heads", "sizes", "model");
  snprintf(options, sizeof options, "{\"device\": \"cpu\", \"model\": \"%s\"}", model);
  FAILS(lathe_engine_load(options, stop_at_once, &asked, &engine), LATHE_ABORTED, "progress", "0",
        "stopped");
  CHECK(asked > 0);
  snprintf(options, sizeof options,
           "{\"device\": \"cpu\", \"model\": \"%s\", \"max_total_tokens\": 2000000000}", model);
  FAILS(lathe_engine_load(options, NULL, NULL, &engine), LATHE_REFUSED, "max_total_tokens",
        "at most", "2000000000");
  CHECK(engine == NULL);
}

typedef struct Answer {
  uint64_t request;
  char text[4096];
  const char* reason;
  int64_t tokens, heard;
} Answer;

static void take_events(lathe_engine* engine, Answer* answers, int count) {
  int64_t events = 0, i;
  int a;
  MUST(lathe_engine_step(engine, &events));
  for (i = 0; i < events; ++i) {
    lathe_event e;
    memset(&e, 0, sizeof e);
    e.size = (int64_t)sizeof e;
    MUST(lathe_engine_event(engine, i, &e));
    CHECK(isnan(e.logprob) && e.logprobs_json == NULL);
    for (a = 0; a < count && answers[a].request != e.request; ++a) {
    }
    CHECK(a < count && answers[a].reason == NULL);
    if (a == count) continue;
    strncat(answers[a].text, e.text, sizeof answers[a].text - strlen(answers[a].text) - 1);
    if (e.kind == LATHE_EVENT_TOKEN) CHECK(e.position == answers[a].heard++);
    if (e.kind != LATHE_EVENT_FINISHED) continue;
    answers[a].reason = e.finish_reason; /* of the library, not of the event */
    answers[a].tokens = e.answer_tokens;
  }
  {
    lathe_event e;
    memset(&e, 0, sizeof e);
    e.size = (int64_t)sizeof e;
    FAILS(lathe_engine_event(engine, events, &e), LATHE_INVALID_ARGUMENT, "index", "", "");
  }
}

void test_engine(const char* model, char* prompts[3], char* responses[3]) {
  lathe_engine* engine = NULL;
  char text[4096];
  const int32_t* tokens = NULL;
  int64_t count = 0;
  uint64_t id = 0;
  Answer answers[5];
  int i;
  memset(answers, 0, sizeof answers);
  snprintf(text, sizeof text, "{\"device\": \"cpu\", \"threads\": 2, \"model\": \"%s\"}", model);
  MUST(lathe_engine_load(text, NULL, NULL, &engine));
  CHECK(strstr(lathe_engine_json(engine), "\"plan\"") != NULL && lathe_engine_idle(engine));
  for (i = 0; i < 3; ++i) {
    snprintf(text, sizeof text, "[{\"role\": \"user\", \"content\": \"%s\"}]", prompts[i]);
    MUST(lathe_engine_encode_chat(engine, text, &tokens, &count));
    MUST(lathe_engine_submit(engine, tokens, count, i == 1 ? "{\"stop\": \"####\"}" : NULL,
                             &answers[i].request));
    if (i == 1) MUST(lathe_engine_submit(engine, tokens, count, "{}", &answers[4].request));
  }
  MUST(lathe_engine_submit(engine, tokens, count, "{\"ignore_eos\": true}", &answers[3].request));
  CHECK(!lathe_engine_idle(engine));
  for (i = 0; i < 10; ++i) take_events(engine, answers, 5);
  MUST(lathe_engine_cancel(engine, answers[3].request));
  MUST(lathe_engine_cancel(engine, 1000));
  while (!lathe_engine_idle(engine)) take_events(engine, answers, 5);
  CHECK(strcmp(answers[0].text, responses[0]) == 0 && strcmp(answers[0].reason, "stop") == 0);
  CHECK(strcmp(answers[2].text, responses[2]) == 0);
  /* The stop string is not part of the answer, and ends it. */
  CHECK(answers[1].tokens < answers[4].tokens && strcmp(answers[4].text, responses[1]) == 0);
  CHECK(strstr(responses[1], "####") != NULL &&
        strlen(answers[1].text) == (size_t)(strstr(responses[1], "####") - responses[1]) &&
        strncmp(answers[1].text, responses[1], strlen(answers[1].text)) == 0);
  CHECK(strcmp(answers[3].reason, "cancelled") == 0 && answers[3].tokens < 12);
  {
    const char* stats = NULL;
    MUST(lathe_engine_stats_json(engine, &stats));
    CHECK(strstr(stats, "\"finished\":5") != NULL && strstr(stats, "\"running\":0") != NULL);
  }

  FAILS(lathe_engine_submit(engine, tokens, 0, NULL, &id), LATHE_INVALID_ARGUMENT, "prompt",
        "token", "");
  FAILS(lathe_engine_submit(engine, tokens, -1, NULL, &id), LATHE_INVALID_ARGUMENT, "count", "0",
        "-1");
  FAILS(lathe_engine_submit(engine, tokens, count, "{\"temperatur\": 1}", &id),
        LATHE_INVALID_ARGUMENT, "temperatur", "temperature", "unknown");
  FAILS(lathe_engine_submit(engine, tokens, count, "{\"top_p\": 2}", &id), LATHE_INVALID_ARGUMENT,
        "top_p", "1", "2");
  FAILS(lathe_engine_submit(engine, tokens, count, "{\"stop\": [1]}", &id), LATHE_INVALID_ARGUMENT,
        "stop", "strings", "[1]");
  FAILS(lathe_engine_encode_chat(engine, "{}", &tokens, &count), LATHE_INVALID_ARGUMENT, "messages",
        "list", "{}");
  FAILS(lathe_engine_encode_chat(engine, "[]", &tokens, &count), LATHE_INVALID_ARGUMENT, "messages",
        "at least one", "[]");
  FAILS(
      lathe_engine_encode_chat(engine, "[{\"role\": \"x\", \"content\": \"a\"}]", &tokens, &count),
      LATHE_INVALID_ARGUMENT, "messages[0].role", "system, developer, user", "\"x\"");
  CHECK(lathe_engine_idle(engine));
  lathe_engine_free(engine);
  lathe_engine_free(NULL);
}

/* One place, so requests run one after another: by priority, and by salt in the prefix cache. */
void test_salts_and_priorities(const char* model) {
  lathe_engine* engine = NULL;
  char text[4096];
  const int32_t* tokens = NULL;
  int64_t count = 0, events = 0, i;
  uint64_t order[4], ids[4], id = 0;
  int64_t cached[4];
  int ended = 0;
  const char* params[4] = {"{\"max_new_tokens\": 3, \"ignore_eos\": true}",
                           "{\"max_new_tokens\": 1, \"priority\": 3, \"cache_salt\": \"a\"}",
                           "{\"max_new_tokens\": 1, \"priority\": -2, \"cache_salt\": \"a\"}",
                           "{\"max_new_tokens\": 1, \"priority\": 1, \"cache_salt\": \"b\"}"};
  const int expected[4] = {0, 2, 3, 1};
  snprintf(text, sizeof text,
           "{\"device\": \"cpu\", \"model\": \"%s\", \"max_running_requests\": 1, "
           "\"scheduling_policy\": \"priority\", \"priority_aging\": 1000}",
           model);
  MUST(lathe_engine_load(text, NULL, NULL, &engine));
  memset(text, 0, sizeof text);
  memset(text, 'x', 1000);
  MUST(lathe_engine_encode(engine, text, 1000, &tokens, &count));
  CHECK(count > 64);
  MUST(lathe_engine_submit(engine, tokens, count, params[0], &ids[0]));
  MUST(lathe_engine_step(engine, &events)); /* it runs when the others come */
  for (i = 1; i < 4; ++i) MUST(lathe_engine_submit(engine, tokens, count, params[i], &ids[i]));
  while (ended < 4 && !lathe_engine_idle(engine)) {
    MUST(lathe_engine_step(engine, &events));
    for (i = 0; i < events; ++i) {
      lathe_event e;
      memset(&e, 0, sizeof e);
      e.size = (int64_t)sizeof e;
      MUST(lathe_engine_event(engine, i, &e));
      if (e.kind != LATHE_EVENT_FINISHED || ended == 4) continue;
      cached[ended] = e.cached_tokens;
      order[ended++] = e.request;
    }
  }
  CHECK(ended == 4);
  for (i = 0; i < ended; ++i) CHECK(order[i] == ids[expected[i]]);
  /* The second "a" alone found the prompt of an equal salt. */
  CHECK(cached[0] == 0 && cached[1] == 0 && cached[2] == 0 && cached[3] > 0);
  lathe_engine_free(engine);

  engine = NULL;
  snprintf(text, sizeof text, "{\"device\": \"cpu\", \"model\": \"%s\"}", model);
  MUST(lathe_engine_load(text, NULL, NULL, &engine));
  MUST(lathe_engine_encode(engine, "x", 1, &tokens, &count));
  FAILS(lathe_engine_submit(engine, tokens, count, "{\"priority\": 1}", &id),
        LATHE_INVALID_ARGUMENT, "priority", "0", "1");
  FAILS(lathe_engine_submit(engine, tokens, count, "{\"cache_salt\": 1}", &id),
        LATHE_INVALID_ARGUMENT, "cache_salt", "string", "1");
  lathe_engine_free(engine);
  engine = NULL;
  FAILS(
      lathe_engine_load("{\"model\": \"x\", \"scheduling_policy\": \"lifo\"}", NULL, NULL, &engine),
      LATHE_INVALID_ARGUMENT, "scheduling_policy", "priority", "lifo");
  FAILS(lathe_engine_load("{\"model\": \"x\", \"priority_aging\": 0}", NULL, NULL, &engine),
        LATHE_INVALID_ARGUMENT, "priority_aging", "1", "0");
}
