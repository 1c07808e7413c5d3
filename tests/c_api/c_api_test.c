/* The C interface from C: bytes, attention against double arithmetic written here, plans, the
 * engine, and every error by its status, field, wanted and offered value. usage: c_api_test MODEL
 * TASKS, where TASKS has a prompt and the answer that is marked right, a line each. Compiled as
 * C99.
 */
#include <lathe/lathe.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;

#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                     \
    }                                                                 \
  } while (0)

#define MUST(call)                                                                             \
  do {                                                                                         \
    const lathe_status must_status = (call);                                                   \
    if (must_status != LATHE_OK) {                                                             \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, lathe_last_error()->text); \
      exit(1);                                                                                 \
    }                                                                                          \
  } while (0)

/* The call fails with this status, and its error has the field and in `wanted` and `offered` these
 * words. */
#define FAILS(call, status_, field_, wanted_, offered_) \
  fails((call), (status_), (field_), (wanted_), (offered_), __LINE__)

static void fails(lathe_status got, lathe_status status, const char* field, const char* wanted,
                  const char* offered, int line) {
  const lathe_error* e = lathe_last_error();
  if (got != status || e == NULL || e->status != status || strcmp(e->field, field) != 0 ||
      strstr(e->wanted, wanted) == NULL || strstr(e->offered, offered) == NULL ||
      strstr(e->text, e->wanted) == NULL || e->size != (int64_t)sizeof *e) {
    fprintf(stderr, "%s:%d: status %s, error \"%s\"; wanted %s of %s (%s, %s)\n", __FILE__, line,
            lathe_status_name(got), e == NULL ? "" : e->text, lathe_status_name(status), field,
            wanted, offered);
    ++failures;
  }
}

static uint64_t state = 42;
static uint32_t next(void) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(state >> 33);
}
static float number(void) { return (float)next() / 1073741824.0f - 1.0f; }

/* float32 to the nearest bfloat16, ties to even. */
static uint16_t to_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  bits += 0x7fff + (bits >> 16 & 1);
  return (uint16_t)(bits >> 16);
}
static float from_bf16(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float x;
  memcpy(&x, &wide, 4);
  return x;
}

static lathe_tensor tensor(void* data, uint8_t code, uint8_t bits, int32_t axes, int64_t* shape) {
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

/* A scene of mla_bf16, whose bytes are written here and not by the library: nope bf16[512], rope
 * bf16[64] for each token of a page. */
enum { PAGE = 16, PAGES = 20, DIM = 576, V_DIM = 512, HEADS = 5, REQUESTS = 4, WIDTH = 6 };
static const int32_t kLens[REQUESTS] = {37, 0, 1, 90};
static const int32_t kFirst[REQUESTS + 1] = {0, 3, 4, 5, 7};
enum { ROWS = 7 };

typedef struct Scene {
  lathe_layout* layout;
  uint16_t* keys; /* [PAGES * PAGE, DIM] */
  int32_t table[REQUESTS * WIDTH], lens[REQUESTS], first[REQUESTS + 1];
  float q[ROWS * HEADS * DIM], out[ROWS * HEADS * V_DIM], lse[ROWS * HEADS], sink[HEADS];
  int64_t pool_shape[2], table_shape[2], lens_shape[1], first_shape[1], q_shape[3], out_shape[3],
      lse_shape[2], sink_shape[1];
  lathe_tensor pages, page_table, kv_lens, q_indptr, q_tensor, out_tensor, lse_tensor, sink_tensor;
  lathe_pool_view pool;
  lathe_attend_args args;
} Scene;

static Scene* make_scene(void) {
  Scene* s = calloc(1, sizeof *s);
  int i, page = 0;
  if (s == NULL) exit(1);
  MUST(lathe_layout_parse("mla_bf16", &s->layout));
  s->keys = malloc(PAGES * PAGE * DIM * sizeof *s->keys);
  if (s->keys == NULL) exit(1);
  /* NaN wherever no request has a key. */
  for (i = 0; i < PAGES * PAGE * DIM; ++i) s->keys[i] = 0x7fc0;
  for (i = 0; i < REQUESTS * WIDTH; ++i) s->table[i] = -1;
  for (i = 0; i < REQUESTS; ++i) {
    int t, d;
    for (t = 0; t < kLens[i]; ++t) {
      if (t % PAGE == 0) s->table[i * WIDTH + t / PAGE] = (page++ * 7 + 3) % PAGES;
      for (d = 0; d < DIM; ++d) {
        const int slot = s->table[i * WIDTH + t / PAGE] * PAGE + t % PAGE;
        s->keys[slot * DIM + d] = to_bf16(number());
      }
    }
  }
  memcpy(s->lens, kLens, sizeof kLens);
  memcpy(s->first, kFirst, sizeof kFirst);
  for (i = 0; i < ROWS * HEADS * DIM; ++i) s->q[i] = number();
  for (i = 0; i < HEADS; ++i) s->sink[i] = number();
  s->pool_shape[0] = PAGES;
  s->pool_shape[1] = PAGE * DIM * 2;
  s->pages = tensor(s->keys, LATHE_UINT, 8, 2, s->pool_shape);
  s->pool.size = (int64_t)sizeof s->pool;
  s->pool.layout = s->layout;
  s->pool.pages = &s->pages;
  s->pool.page_size = PAGE;
  s->table_shape[0] = REQUESTS;
  s->table_shape[1] = WIDTH;
  s->page_table = tensor(s->table, LATHE_INT, 32, 2, s->table_shape);
  s->lens_shape[0] = REQUESTS;
  s->kv_lens = tensor(s->lens, LATHE_INT, 32, 1, s->lens_shape);
  s->first_shape[0] = REQUESTS + 1;
  s->q_indptr = tensor(s->first, LATHE_INT, 32, 1, s->first_shape);
  s->q_shape[0] = s->out_shape[0] = s->lse_shape[0] = ROWS;
  s->q_shape[1] = s->out_shape[1] = s->lse_shape[1] = s->sink_shape[0] = HEADS;
  s->q_shape[2] = DIM;
  s->out_shape[2] = V_DIM;
  s->q_tensor = tensor(s->q, LATHE_FLOAT, 32, 3, s->q_shape);
  s->out_tensor = tensor(s->out, LATHE_FLOAT, 32, 3, s->out_shape);
  s->lse_tensor = tensor(s->lse, LATHE_FLOAT, 32, 2, s->lse_shape);
  s->sink_tensor = tensor(s->sink, LATHE_FLOAT, 32, 1, s->sink_shape);
  s->args.size = (int64_t)sizeof s->args;
  s->args.attention = "mla";
  s->args.q = &s->q_tensor;
  s->args.pool = &s->pool;
  s->args.page_table = &s->page_table;
  s->args.q_indptr = &s->q_indptr;
  s->args.kv_lens = &s->kv_lens;
  s->args.sink = &s->sink_tensor;
  s->args.scale = 0.05f;
  s->args.out = &s->out_tensor;
  s->args.lse = &s->lse_tensor;
  return s;
}

static void free_scene(Scene* s) {
  lathe_layout_free(s->layout);
  free(s->keys);
  free(s);
}

/* One row and head in double: out [V_DIM] and the LSE. */
static double attend_double(const Scene* s, int request, int row, int head, double* out) {
  const int rows = kFirst[request + 1] - kFirst[request];
  const int keys = kLens[request] - rows + (row - kFirst[request]) + 1;
  double logits[WIDTH * PAGE], sum = 0, most = -INFINITY;
  int t, d;
  memset(out, 0, V_DIM * sizeof *out);
  if (kLens[request] == 0) return -INFINITY;
  for (t = 0; t < keys; ++t) {
    const int slot = s->table[request * WIDTH + t / PAGE] * PAGE + t % PAGE;
    logits[t] = 0;
    for (d = 0; d < DIM; ++d)
      logits[t] +=
          (double)s->q[(row * HEADS + head) * DIM + d] * (double)from_bf16(s->keys[slot * DIM + d]);
    logits[t] *= (double)s->args.scale;
    if (logits[t] > most) most = logits[t];
  }
  for (t = 0; t < keys; ++t) sum += exp(logits[t] - most);
  for (t = 0; t < keys; ++t) {
    const int slot = s->table[request * WIDTH + t / PAGE] * PAGE + t % PAGE;
    const double p = exp(logits[t] - most) / (sum + exp((double)s->sink[head] - most));
    for (d = 0; d < V_DIM; ++d) out[d] += p * (double)from_bf16(s->keys[slot * DIM + d]);
  }
  return most + log(sum);
}

static void check_scene(const Scene* s, int base_2, double empty) {
  int r, row, h, d;
  double out[V_DIM];
  for (r = 0; r < REQUESTS; ++r) {
    for (row = kFirst[r]; row < kFirst[r + 1]; ++row) {
      for (h = 0; h < HEADS; ++h) {
        const double natural = attend_double(s, r, row, h, out);
        const double lse = isinf(natural) ? empty : base_2 ? natural / log(2.0) : natural;
        const double got = (double)s->lse[row * HEADS + h];
        CHECK(isinf(lse) ? got == lse : fabs(got - lse) < 1e-5);
        for (d = 0; d < V_DIM; ++d) {
          const double x = (double)s->out[(row * HEADS + h) * V_DIM + d];
          if (!(fabs(x - out[d]) < 1e-5)) {
            CHECK(!"out as in double");
            return;
          }
        }
      }
    }
  }
}

static void test_attention(void) {
  Scene* s = make_scene();
  lathe_step* step = NULL;
  static float before[ROWS * HEADS * V_DIM];
  MUST(lathe_attend(&s->args));
  check_scene(s, 0, -INFINITY);
  memcpy(before, s->out, sizeof before);

  memset(s->out, 0xff, sizeof s->out);
  s->args.flags = LATHE_LSE_BASE_2 | LATHE_EMPTY_LSE_PLUS_INF;
  s->args.threads = 3;
  MUST(lathe_attend(&s->args));
  check_scene(s, 1, INFINITY);
  CHECK(memcmp(before, s->out, sizeof before) == 0);

  /* A step gives the same bits, and takes no other lengths than those it has cut. */
  s->args.flags = 0;
  MUST(lathe_step_create(2, &step));
  FAILS(lathe_attend_step(step, &s->args), LATHE_INVALID_ARGUMENT, "step", "lathe_step_update",
        "not");
  MUST(lathe_step_update(step, &s->args));
  memset(s->out, 0xff, sizeof s->out);
  MUST(lathe_attend_step(step, &s->args));
  CHECK(memcmp(before, s->out, sizeof before) == 0);
  s->lens[3] = 20;
  memset(s->out, 0x55, sizeof s->out);
  memcpy(before, s->out, sizeof before);
  FAILS(lathe_attend_step(step, &s->args), LATHE_INVALID_ARGUMENT, "kv_lens", "lathe_step_update",
        "else");
  CHECK(memcmp(before, s->out, sizeof before) == 0);
  lathe_step_free(step);
  lathe_step_free(NULL);
  free_scene(s);
}

static void test_workspace(void) {
  Scene* s = make_scene();
  int64_t bytes = -1;
  MUST(lathe_attend_workspace(&s->args, &bytes)); /* host memory needs none */
  CHECK(bytes == 0);
  FAILS(lathe_attend_workspace(&s->args, NULL), LATHE_INVALID_ARGUMENT, "bytes", "a pointer",
        "NULL");
  FAILS(lathe_attend_workspace(NULL, &bytes), LATHE_INVALID_ARGUMENT, "args", "a pointer", "NULL");
  free_scene(s);
}

static void test_index_lists(void) {
  /* Row by row the request's own slots in another order, with holes, give what the table gives. */
  Scene* s = make_scene();
  static int64_t list[ROWS * 128];
  static float by_table[ROWS * HEADS * V_DIM];
  int64_t shape[2] = {ROWS, 128};
  lathe_tensor indices = tensor(list, LATHE_INT, 64, 2, shape);
  int r, row, t, i;
  double worst = 0;
  MUST(lathe_attend(&s->args));
  memcpy(by_table, s->out, sizeof by_table);
  for (i = 0; i < ROWS * 128; ++i) list[i] = i % 3 == 0 ? -1 : 1 << 20; /* neither is a key */
  for (r = 0; r < REQUESTS; ++r) {
    for (row = kFirst[r]; row < kFirst[r + 1]; ++row) {
      const int keys = kLens[r] == 0 ? 0 : kLens[r] - (kFirst[r + 1] - row) + 1;
      for (t = 0; t < keys; ++t)
        list[row * 128 + 127 - t] = s->table[r * WIDTH + t / PAGE] * PAGE + t % PAGE;
    }
  }
  s->args.attention = "dsa";
  s->args.page_table = s->args.kv_lens = s->args.q_indptr = NULL;
  s->args.indices = &indices;
  MUST(lathe_attend(&s->args));
  for (i = 0; i < ROWS * HEADS * V_DIM; ++i) {
    const double apart = fabs((double)(s->out[i] - by_table[i]));
    if (!(apart <= worst)) worst = apart;
  }
  CHECK(worst < 1e-5);
  free_scene(s);
}

static void test_bad_attention(void) {
  Scene* s = make_scene();
  lathe_attend_args a = s->args;
  lathe_tensor t;
  int64_t shape[3] = {ROWS, HEADS, 100};
  struct {
    lathe_attend_args known;
    int64_t later;
  } wider;
  memset(s->out, 0x55, sizeof s->out);
  FAILS(lathe_attend(NULL), LATHE_INVALID_ARGUMENT, "args", "a pointer", "NULL");
  a.size = 4;
  FAILS(lathe_attend(&a), LATHE_INVALID_ARGUMENT, "args.size", "bytes", "4");
  memset(&wider, 0, sizeof wider);
  wider.known = s->args;
  wider.known.size = (int64_t)sizeof wider;
  MUST(lathe_attend(&wider.known)); /* a later header whose fields are not set */
  wider.later = 1;
  memset(s->out, 0x55, sizeof s->out);
  FAILS(lathe_attend(&wider.known), LATHE_UNSUPPORTED, "args.size", "this version", "later");
#define BAD(change, status_, field_, wanted_, offered_)          \
  do {                                                           \
    a = s->args;                                                 \
    change;                                                      \
    FAILS(lathe_attend(&a), status_, field_, wanted_, offered_); \
  } while (0)
  BAD(a.attention = "nope", LATHE_INVALID_ARGUMENT, "attention", "mla", "nope");
  BAD(a.kind = "gather", LATHE_INVALID_ARGUMENT, "kind", "native", "gather");
  BAD(a.device = "sm90", LATHE_UNSUPPORTED, "device", "cpu", "sm90");
  BAD(a.flags = 64, LATHE_INVALID_ARGUMENT, "flags", "0x7", "0x40");
  BAD(a.threads = -1, LATHE_INVALID_ARGUMENT, "threads", "0 to 1024", "-1");
  BAD(a.q = NULL, LATHE_INVALID_ARGUMENT, "q", "a pointer", "NULL");
  BAD(a.pool = NULL, LATHE_INVALID_ARGUMENT, "pool", "a pointer", "NULL");
  BAD(a.page_table = NULL, LATHE_INVALID_ARGUMENT, "page_table", "indices", "neither");
  BAD(a.indices = a.page_table, LATHE_INVALID_ARGUMENT, "page_table", "indices", "both");
  BAD(a.kv_lens = NULL, LATHE_INVALID_ARGUMENT, "kv_lens", "keys of each request", "nothing");
  BAD(a.q_indptr = NULL, LATHE_INVALID_ARGUMENT, "q_indptr", "first row", "nothing");
  BAD(a.scale = -1, LATHE_INVALID_ARGUMENT, "scale", "positive", "-1");
  BAD(a.window = 5, LATHE_INVALID_ARGUMENT, "window", "0", "5");
  BAD(a.out = NULL, LATHE_INVALID_ARGUMENT, "out", "a pointer", "NULL");
  t = s->q_tensor;
  t.device_type = 2; /* then all others lie there, too */
  BAD(a.q = &t, LATHE_INVALID_ARGUMENT, "pool.pages", "cuda:0", "host memory");
  t = s->q_tensor;
  t.device_type = 9;
  BAD(a.q = &t, LATHE_INVALID_ARGUMENT, "q", "host memory", "type 9");
  t = s->q_tensor;
  t.dtype_code = LATHE_INT;
  BAD(a.q = &t, LATHE_INVALID_ARGUMENT, "q", "float32", "int32");
  t = s->q_tensor;
  t.ndim = 0;
  BAD(a.q = &t, LATHE_INVALID_ARGUMENT, "q", "1 to 8 axes", "0");
  t = s->q_tensor;
  t.data = NULL;
  BAD(a.q = &t, LATHE_INVALID_ARGUMENT, "q", "data", "NULL");
  t = s->out_tensor;
  t.shape = shape;
  BAD(a.out = &t, LATHE_INVALID_ARGUMENT, "out", "(7, 5, 512)", "(7, 5, 100)");
  shape[2] = (int64_t)1 << 60;
  BAD(a.out = &t, LATHE_INVALID_ARGUMENT, "out", "int64", "axis");
  shape[2] = -1;
  BAD(a.out = &t, LATHE_INVALID_ARGUMENT, "out", "0 or more", "-1");
#ifndef SANITIZED /* sanitizers end the process instead */
  {
    /* A list that no memory holds; its one number is read again and again. */
    int64_t huge[2] = {1, (int64_t)1 << 55}, none[2] = {0, 0};
    t = s->page_table;
    t.shape = huge;
    t.strides = none;
    BAD(a.page_table = &t, LATHE_OUT_OF_MEMORY, "memory", "room", "none");
  }
#endif
  s->lens[0] = 97;
  BAD((void)0, LATHE_INVALID_ARGUMENT, "page_table", "at least 7 pages for the 97 keys", "6");
  s->lens[0] = 2;
  BAD((void)0, LATHE_INVALID_ARGUMENT, "kv_lens[0]", "at least the 3 rows", "2");
  s->lens[0] = kLens[0];
  s->pool.page_size = -1;
  BAD((void)0, LATHE_INVALID_ARGUMENT, "pool.page_size", "1 to 65536", "-1");
  s->pool.page_size = PAGE;
  s->pool.key_scale = 2;
  BAD((void)0, LATHE_INVALID_ARGUMENT, "pool.key_scale", "1 (only", "2");
  s->pool.key_scale = 0;
  {
    size_t i;
    const unsigned char* bytes = (const unsigned char*)s->out;
    for (i = 0; i < sizeof s->out && bytes[i] == 0x55; ++i) {
    }
    CHECK(i == sizeof s->out); /* nothing was written */
  }
#undef BAD
  free_scene(s);
}

static void test_codecs(void) {
  Scene* s = make_scene();
  static float rows[3 * DIM], back[3 * DIM];
  static uint8_t other_bytes[2 * PAGE * 576];
  int32_t slots[3] = {5, -1, PAGES * PAGE - 1};
  int64_t shape[2] = {3, DIM}, count[1] = {3}, other_shape[1] = {(int64_t)sizeof other_bytes};
  lathe_tensor rows_tensor = tensor(rows, LATHE_FLOAT, 32, 2, shape);
  lathe_tensor back_tensor = tensor(back, LATHE_FLOAT, 32, 2, shape);
  lathe_tensor slots_tensor = tensor(slots, LATHE_INT, 32, 1, count);
  lathe_tensor other_pages = tensor(other_bytes, LATHE_UINT, 8, 1, other_shape);
  lathe_pool_view other = s->pool;
  lathe_requantize_report report;
  int i;
  for (i = 0; i < 3 * DIM; ++i) rows[i] = number();
  memset(back, 0xff, sizeof back);
  MUST(lathe_encode(&s->pool, &rows_tensor, &slots_tensor));
  MUST(lathe_gather_decode(&s->pool, &slots_tensor, &back_tensor));
  for (i = 0; i < 3 * DIM; ++i) {
    const int row = i / DIM, d = i % DIM;
    CHECK(row == 1 ? back[i] == 0 : s->keys[slots[row] * DIM + d] == to_bf16(rows[i]));
    CHECK(row == 1 || back[i] == from_bf16(to_bf16(rows[i])));
  }
  slots[1] = PAGES * PAGE;
  FAILS(lathe_encode(&s->pool, &rows_tensor, &slots_tensor), LATHE_INVALID_ARGUMENT, "slots[1]",
        "319", "320");
  slots[1] = -1;
  FAILS(lathe_gather_decode(&s->pool, &slots_tensor, &s->pages), LATHE_INVALID_ARGUMENT, "out",
        "float32", "uint8");

  /* 656 bytes to 576 loses; the report says how much. */
  {
    static uint8_t block_bytes[PAGE * 656];
    lathe_layout *block, *plain;
    int64_t block_shape[1] = {(int64_t)sizeof block_bytes};
    lathe_tensor block_pages = tensor(block_bytes, LATHE_UINT, 8, 1, block_shape);
    lathe_pool_view from = s->pool;
    MUST(lathe_layout_parse("mla_fp8_block", &block));
    MUST(lathe_layout_parse("mla_fp8", &plain));
    from.layout = block;
    from.pages = &block_pages;
    other.layout = plain;
    other.pages = &other_pages;
    slots[2] = 7;
    MUST(lathe_encode(&from, &rows_tensor, &slots_tensor));
    memset(&report, 0, sizeof report);
    report.size = (int64_t)sizeof report;
    MUST(lathe_requantize(&from, &slots_tensor, &other, &slots_tensor, &report));
    CHECK(report.worst_abs_error > 0 && report.worst_abs_error < 0.1f && report.saturated == 0);
    CHECK(report.worst_slot == 5 || report.worst_slot == 7);
    FAILS(lathe_requantize(&from, &slots_tensor, &from, &slots_tensor, NULL),
          LATHE_INVALID_ARGUMENT, "to.pages", "apart", "share");
    lathe_layout_free(block);
    lathe_layout_free(plain);
  }
  free_scene(s);
}

/* V4 pages have two planes and padding; every byte is compared. */
static void test_copies(void) {
  enum { P = 4, N = 3 };
  lathe_layout *v4 = NULL, *other = NULL;
  lathe_pool_view a, b;
  int64_t stride = 0, bytes, n[1] = {2}, shape[1];
  int32_t from[2] = {0, 1}, to[2] = {1, 0};
  lathe_tensor from_list = tensor(from, LATHE_INT, 32, 1, n);
  lathe_tensor to_list = tensor(to, LATHE_INT, 32, 1, n);
  lathe_tensor a_pages, b_pages;
  uint8_t *x, *y, *before;
  int64_t i;
  MUST(lathe_layout_parse("v4_fp8", &v4));
  MUST(lathe_layout_parse("mla_fp8", &other));
  MUST(lathe_layout_page_stride(v4, P, &stride));
  bytes = N * stride;
  shape[0] = bytes;
  x = malloc((size_t)bytes);
  y = malloc((size_t)bytes);
  before = malloc((size_t)bytes);
  if (x == NULL || y == NULL || before == NULL) exit(1);
  for (i = 0; i < bytes; ++i) before[i] = x[i] = (uint8_t)next();
  for (i = 0; i < bytes; ++i) y[i] = 0xff;
  a_pages = tensor(x, LATHE_UINT, 8, 1, shape);
  b_pages = tensor(y, LATHE_UINT, 8, 1, shape);
  memset(&a, 0, sizeof a);
  a.size = (int64_t)sizeof a;
  a.layout = v4;
  a.pages = &a_pages;
  a.page_size = P;
  b = a;
  b.pages = &b_pages;

  MUST(lathe_copy_pages(&a, &from_list, &a, &to_list)); /* swaps two pages */
  CHECK(memcmp(x, before + stride, (size_t)stride) == 0);
  CHECK(memcmp(x + stride, before, (size_t)stride) == 0);
  CHECK(memcmp(x + 2 * stride, before + 2 * stride, (size_t)stride) == 0);
  to[0] = 2;
  MUST(lathe_copy_pages(&a, &from_list, &b, &to_list));
  CHECK(memcmp(y + 2 * stride, x, (size_t)stride) == 0);
  CHECK(memcmp(y, x + stride, (size_t)stride) == 0);
  for (i = stride; i < 2 * stride; ++i) CHECK(y[i] == 0xff);

  /* A token: 576 bytes of numbers in one plane, 8 of scales in the other. */
  from[0] = 5; /* page 1, token 1 */
  to[0] = 4;   /* page 1, token 0 */
  n[0] = 1;
  MUST(lathe_copy_slots(&a, &from_list, &b, &to_list));
  CHECK(memcmp(y + stride, x + stride + 576, 576) == 0);
  CHECK(memcmp(y + stride + P * 576, x + stride + P * 576 + 8, 8) == 0);
  for (i = 576; i < P * 576; ++i) CHECK(y[stride + i] == 0xff);
  for (i = P * 576 + 8; i < stride; ++i) CHECK(y[stride + i] == 0xff);

  memcpy(before, y, (size_t)bytes);
  FAILS(lathe_copy_pages(&a, &from_list, &b, &to_list), LATHE_INVALID_ARGUMENT, "from_pages[0]",
        "0 to 2", "5");
  from[0] = -1;
  FAILS(lathe_copy_slots(&a, &from_list, &b, &to_list), LATHE_INVALID_ARGUMENT, "from_slots[0]",
        "0 to 11", "-1");
  from[0] = 0;
  a.layout = other;
  a.page_size = 5; /* also 2880 bytes a page */
  FAILS(lathe_copy_slots(&a, &from_list, &b, &to_list), LATHE_INVALID_ARGUMENT, "to", "mla_fp8(",
        "v4_fp8(");
  a.layout = v4;
  a.page_size = P;
  b.page_size = 14; /* one page of 8640 bytes */
  FAILS(lathe_copy_pages(&a, &from_list, &b, &to_list), LATHE_INVALID_ARGUMENT, "to",
        "pages of 4 tokens", "pages of 14");
  CHECK(memcmp(before, y, (size_t)bytes) == 0);
  free(x);
  free(y);
  free(before);
  lathe_layout_free(v4);
  lathe_layout_free(other);
}

/* Two parts of four rows and heads: both with keys, one without, the other without, neither. */
static void test_merge(void) {
  enum { N = 4, V = 3 };
  float a[N * V], out[N * V], lse[N];
  uint16_t b[N * V];
  float lse_a[N] = {1.5f, -INFINITY, -40.0f, -INFINITY};
  float lse_b[N] = {-0.25f, 2.0f, -INFINITY, -INFINITY};
  int64_t shape[3] = {2, 2, V}, lse_shape[2] = {2, 2}, short_shape[2] = {4, 1};
  lathe_tensor ta = tensor(a, LATHE_FLOAT, 32, 3, shape);
  lathe_tensor tb = tensor(b, LATHE_BFLOAT, 16, 3, shape);
  lathe_tensor to = tensor(out, LATHE_FLOAT, 32, 3, shape);
  lathe_tensor tlse_a = tensor(lse_a, LATHE_FLOAT, 32, 2, lse_shape);
  lathe_tensor tlse_b = tensor(lse_b, LATHE_FLOAT, 32, 2, lse_shape);
  lathe_tensor tlse = tensor(lse, LATHE_FLOAT, 32, 2, lse_shape);
  int i;
  for (i = 0; i < N * V; ++i) {
    /* A part without keys is not read. */
    a[i] = lse_a[i / V] == -INFINITY ? NAN : number();
    b[i] = lse_b[i / V] == -INFINITY ? 0x7fc0 : to_bf16(number());
  }
  MUST(lathe_merge(&ta, &tlse_a, &tb, &tlse_b, &to, &tlse));
  for (i = 0; i < N * V; ++i) {
    const int n = i / V;
    const double wa = exp((double)lse_a[n]), wb = exp((double)lse_b[n]);
    double x = 0;
    if (wa > 0) x += wa * (double)a[i];
    if (wb > 0) x += wb * (double)from_bf16(b[i]);
    CHECK(n == 3 ? out[i] == 0 : fabs((double)out[i] - x / (wa + wb)) < 1e-6);
    CHECK(n == 3 ? lse[n] == -INFINITY : fabs((double)lse[n] - log(wa + wb)) < 1e-5);
  }
  tlse_b.shape = short_shape;
  FAILS(lathe_merge(&ta, &tlse_a, &tb, &tlse_b, &to, &tlse), LATHE_INVALID_ARGUMENT, "lse_b",
        "(2, 2), as out_b", "(4, 1)");
  tlse_b.shape = lse_shape;
  FAILS(lathe_merge(&ta, &tlse_a, &tb, &tlse_b, &tlse, &tlse), LATHE_INVALID_ARGUMENT, "out",
        "[rows, heads, v_dim]", "(2, 2)");
  ta.dtype_bits = 64;
  FAILS(lathe_merge(&ta, &tlse_a, &tb, &tlse_b, &to, &tlse), LATHE_INVALID_ARGUMENT, "out_a",
        "float32", "float64");
  ta.dtype_bits = 32;
  ta.device_type = 2;
  FAILS(lathe_merge(&ta, &tlse_a, &tb, &tlse_b, &to, &tlse), LATHE_UNSUPPORTED, "out_a",
        "host memory", "cuda:0");
  ta.device_type = 1;
  to.data = a + 1;
  FAILS(lathe_merge(&ta, &tlse_a, &tb, &tlse_b, &to, &tlse), LATHE_INVALID_ARGUMENT, "out",
        "apart from out_a", "share");
  FAILS(lathe_merge(&ta, NULL, &tb, &tlse_b, &to, &tlse), LATHE_INVALID_ARGUMENT, "lse_a",
        "a pointer", "NULL");
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

static int stop_at_once(int64_t loaded, int64_t total, void* user) {
  ++*(int*)user;
  return loaded <= total;
}

static void test_bad_engines(const char* model) {
  lathe_engine* engine = NULL;
  char options[4096];
  int asked = 0;
  FAILS(lathe_engine_load("{}", NULL, NULL, &engine), LATHE_INVALID_ARGUMENT, "model", "folder",
        "none");
  FAILS(lathe_engine_load("{\"model\": \"/nowhere/at/all\"}", NULL, NULL, &engine), LATHE_IO,
        "/nowhere/at/all/config.json", "", "");
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

static void test_engine(const char* model, char* prompts[3], char* responses[3]) {
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
static void test_salts_and_priorities(const char* model) {
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
