/* Attention against double arithmetic written here, and merges of its parts. */
#include "c_api_scene.h"
#include "c_api_test.h"

#include <math.h>
#include <string.h>

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

void test_attention(void) {
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

void test_workspace(void) {
  Scene* s = make_scene();
  int64_t bytes = -1;
  MUST(lathe_attend_workspace(&s->args, &bytes)); /* host memory needs none */
  CHECK(bytes == 0);
  FAILS(lathe_attend_workspace(&s->args, NULL), LATHE_INVALID_ARGUMENT, "bytes", "a pointer",
        "NULL");
  FAILS(lathe_attend_workspace(NULL, &bytes), LATHE_INVALID_ARGUMENT, "args", "a pointer", "NULL");
  free_scene(s);
}

void test_index_lists(void) {
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

void test_bad_attention(void) {
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

void test_merge(void) {
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
