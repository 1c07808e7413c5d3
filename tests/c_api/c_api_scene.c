#include "c_api_scene.h"

#include <string.h>

#include "c_api_test.h"

const int32_t kLens[REQUESTS] = {37, 0, 1, 90};
const int32_t kFirst[REQUESTS + 1] = {0, 3, 4, 5, 7};

Scene* make_scene(void) {
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

void free_scene(Scene* s) {
  lathe_layout_free(s->layout);
  free(s->keys);
  free(s);
}
