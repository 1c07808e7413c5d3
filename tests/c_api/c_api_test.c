/* The C interface from C: bytes, attention against double arithmetic written here, plans, the
 * engine, and every error by its status, field, wanted and offered value. usage: c_api_test MODEL
 * TASKS, where TASKS has a prompt and the answer that is marked right, a line each. Compiled as
 * C99.
 */
#include "c_api_test.h"

#include <stddef.h>
#include <string.h>

int failures = 0;

void fails(lathe_status got, lathe_status status, const char* field, const char* wanted,
           const char* offered, const char* file, int line) {
  const lathe_error* e = lathe_last_error();
  if (got != status || e == NULL || e->status != status || strcmp(e->field, field) != 0 ||
      strstr(e->wanted, wanted) == NULL || strstr(e->offered, offered) == NULL ||
      strstr(e->text, e->wanted) == NULL || e->size != (int64_t)sizeof *e) {
    fprintf(stderr, "%s:%d: status %s, error \"%s\"; wanted %s of %s (%s, %s)\n", file, line,
            lathe_status_name(got), e == NULL ? "" : e->text, lathe_status_name(status), field,
            wanted, offered);
    ++failures;
  }
}

static uint64_t state = 42;
uint32_t next(void) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(state >> 33);
}
float number(void) { return (float)next() / 1073741824.0f - 1.0f; }

uint16_t to_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  bits += 0x7fff + (bits >> 16 & 1);
  return (uint16_t)(bits >> 16);
}
float from_bf16(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float x;
  memcpy(&x, &wide, 4);
  return x;
}

lathe_tensor tensor(void* data, uint8_t code, uint8_t bits, int32_t axes, int64_t* shape) {
  lathe_tensor t;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.device_type = 1;
  t.ndim = axes;
  t.dtype_code = code;
  t.dtype_bits = bits;
  t.dtype_lanes = 1;
  t.shape = shape;
  return t;
}

static void test_version_and_names(void) {
  CHECK(lathe_version() ==
        (LATHE_VERSION_MAJOR << 16 | LATHE_VERSION_MINOR << 8 | LATHE_VERSION_PATCH));
  CHECK(strstr(lathe_build_info(), "\"compiler\"") != NULL);
  CHECK(strcmp(lathe_status_name(LATHE_OUT_OF_MEMORY), "out_of_memory") == 0);
  CHECK(strcmp(lathe_status_name((lathe_status)77), "unknown") == 0);
  CHECK(lathe_last_error() == NULL && lathe_refusal_json() == NULL);
}

static void test_layouts(void) {
  lathe_layout* l = NULL;
  lathe_part part;
  int64_t bytes = -1;
  FAILS(lathe_layout_parse("mla_fp7", &l), LATHE_INVALID_ARGUMENT, "layout", "mla_fp8_block",
        "mla_fp7");
  FAILS(lathe_layout_parse(NULL, &l), LATHE_INVALID_ARGUMENT, "text", "a pointer", "NULL");
  CHECK(l == NULL);
  MUST(lathe_layout_parse("mla_fp8_block", &l));
  CHECK(strcmp(lathe_layout_text(l), "mla_fp8_block(nope=512,rope=64,scale=pow2_ceil)") == 0);
  CHECK(lathe_layout_bytes_per_token(l) == 656 && lathe_layout_row_elems(l) == 576);
  CHECK(lathe_layout_hash(l) != 0);
  MUST(lathe_layout_page_stride(l, 64, &bytes));
  CHECK(bytes == 64 * 656);
  FAILS(lathe_layout_page_stride(l, 0, &bytes), LATHE_INVALID_ARGUMENT, "page_size", "1 to 65536",
        "0");
  CHECK(bytes == 64 * 656);
  CHECK(lathe_layout_part_count(l) == 3);
  memset(&part, 0, sizeof part);
  FAILS(lathe_layout_part(l, 1, &part), LATHE_INVALID_ARGUMENT, "part.size", "bytes", "0");
  part.size = (int64_t)sizeof part;
  MUST(lathe_layout_part(l, 1, &part));
  CHECK(part.role == LATHE_PART_SCALE && part.elems == 4 && part.offset == 512);
  CHECK(strcmp(part.dtype, "f32") == 0);
  FAILS(lathe_layout_part(l, 3, &part), LATHE_INVALID_ARGUMENT, "index", "0 to 2", "3");
  MUST(lathe_layout_part_offset(l, LATHE_PART_ROPE, 64, 3, &bytes));
  CHECK(bytes == 3 * 656 + 528);
  FAILS(lathe_layout_part_offset(l, LATHE_PART_KEY, 64, 3, &bytes), LATHE_INVALID_ARGUMENT, "role",
        "rope", "2");
  FAILS(lathe_layout_part_offset(l, LATHE_PART_ROPE, 64, 64, &bytes), LATHE_INVALID_ARGUMENT,
        "index", "0 to 63", "64");
  /* A caller whose struct ends earlier than the library's gets the fields that it has. */
  part.dtype = "kept";
  part.size = (int64_t)offsetof(lathe_part, dtype);
  MUST(lathe_layout_part(l, 0, &part));
  CHECK(part.role == LATHE_PART_NOPE && strcmp(part.dtype, "kept") == 0);
  lathe_layout_free(l);
  lathe_layout_free(NULL);
  CHECK(lathe_layout_text(NULL) == NULL && lathe_layout_part_count(NULL) == 0);
}

static void test_plans(void) {
  lathe_machine *cpu = NULL, *hopper = NULL;
  lathe_plan* plan = NULL;
  lathe_layout* layout = NULL;
  int64_t page_size = 0, bytes = -1;
  const char* json = NULL;
  FAILS(lathe_machine_query("tpu", &cpu), LATHE_INVALID_ARGUMENT, "device", "sm90", "tpu");
  MUST(lathe_machine_query("cpu", &cpu));
  MUST(lathe_machine_query("sm90", &hopper));
  CHECK(strstr(lathe_machine_json(hopper), "232448") != NULL);
  MUST(lathe_plan_create("{\"attention\": \"dsa\", \"kv_layout\": \"mla_fp8\", \"top_k\": 64}", cpu,
                         &plan));
  CHECK(lathe_plan_cache_count(plan) == 2); /* latents and the indexer's keys */
  MUST(lathe_plan_layout(plan, 0, &layout, &page_size));
  CHECK(strncmp(lathe_layout_text(layout), "mla_fp8(", 8) == 0 && page_size > 0);
  FAILS(lathe_plan_layout(plan, 2, &layout, NULL), LATHE_INVALID_ARGUMENT, "cache", "0 to 1", "2");
  MUST(lathe_plan_route_json(plan, "decode", &json));
  CHECK(strstr(json, "cpu.sparse_latent.") != NULL);
  FAILS(lathe_plan_route_json(plan, "sleep", &json), LATHE_INVALID_ARGUMENT, "phase", "decode",
        "sleep");
  MUST(lathe_plan_budget(plan, "step", &bytes));
  CHECK(bytes > 0);
  FAILS(lathe_plan_budget(plan, "coffee", &bytes), LATHE_INVALID_ARGUMENT, "name", "gather",
        "coffee");
  CHECK(strstr(lathe_plan_text(plan), "mla_fp8") != NULL);
  CHECK(strstr(lathe_plan_json(plan), "\"legal\":true") != NULL);
  lathe_layout_free(layout);
  lathe_plan_free(plan);
  MUST(lathe_plan_create("{\"kv_cache_dtype\": \"fp8_ds_mla\"}", cpu, &plan)); /* vLLM's name */
  MUST(lathe_plan_layout(plan, 0, &layout, NULL));
  CHECK(strncmp(lathe_layout_text(layout), "mla_fp8_block(", 14) == 0);
  lathe_layout_free(layout);
  lathe_plan_free(plan);

  plan = NULL;
  FAILS(lathe_plan_create("{\"kv_layout\": \"mla_fp8_block\", "
                          "\"decode_attention_backend\": \"native\"}",
                          hopper, &plan),
        LATHE_REFUSED, "layout", "homogeneous", "mla_fp8_block");
  CHECK(plan == NULL);
  CHECK(strstr(lathe_refusal_json(), "\"suggestions\"") != NULL &&
        strstr(lathe_refusal_json(), "homogeneous") != NULL);
  CHECK(strstr(lathe_last_error()->hint, "--") != NULL);
  FAILS(lathe_plan_create("{\"page_sise\": 64}", cpu, &plan), LATHE_INVALID_ARGUMENT, "page_sise",
        "page_size", "unknown");
  FAILS(lathe_plan_create("{\"page_size\": \"64\"}", cpu, &plan), LATHE_INVALID_ARGUMENT,
        "page_size", "integer", "64");
  FAILS(lathe_plan_create("{\"page_size\": 4294967296}", cpu, &plan), LATHE_INVALID_ARGUMENT,
        "page_size", "integer", "4294967296");
  FAILS(lathe_plan_create("{\"tp\": 2}", cpu, &plan), LATHE_INVALID_ARGUMENT, "tp", "one rank",
        "2");
  FAILS(lathe_plan_create("[1]", cpu, &plan), LATHE_INVALID_ARGUMENT, "request", "object", "[1]");
  FAILS(lathe_plan_create("{", cpu, &plan), LATHE_INVALID_ARGUMENT, "request", "JSON", "");
  FAILS(lathe_plan_create("{\"attention\": \"cnn\"}", cpu, &plan), LATHE_INVALID_ARGUMENT,
        "attention", "dsa", "cnn");
  lathe_machine_free(cpu);
  lathe_machine_free(hopper);
}

int main(int argc, char** argv) {
  char* prompts[3];
  char* responses[3];
  char* lines = malloc(1 << 16);
  FILE* tasks = argc == 3 ? fopen(argv[2], "r") : NULL;
  int i;
  if (tasks == NULL || lines == NULL) {
    fprintf(stderr, "usage: c_api_test MODEL TASKS\n");
    return 2;
  }
  for (i = 0; i < 6; ++i) {
    char* line = lines + i * 4096;
    if (fgets(line, 4096, tasks) == NULL) return 2;
    line[strcspn(line, "\n")] = '\0';
    if (i % 2 == 0) prompts[i / 2] = line;
    if (i % 2 == 1) responses[i / 2] = line;
  }
  fclose(tasks);
  test_version_and_names();
  test_layouts();
  test_attention();
  test_workspace();
  test_index_lists();
  test_bad_attention();
  test_codecs();
  test_copies();
  test_merge();
  test_plans();
  test_bad_engines(argv[1]);
  test_engine(argv[1], prompts, responses);
  test_salts_and_priorities(argv[1]);
  free(lines);
  if (failures == 0) printf("ok\n");
  return failures == 0 ? 0 : 1;
}
