/* A scene of attention for tests of the C interface. */
#ifndef LATHE_C_API_SCENE_H
#define LATHE_C_API_SCENE_H

#include <lathe/lathe.h>

/* A scene of mla_bf16, whose bytes are written here and not by the library: nope bf16[512], rope
 * bf16[64] for each token of a page. */
enum { PAGE = 16, PAGES = 20, DIM = 576, V_DIM = 512, HEADS = 5, REQUESTS = 4, WIDTH = 6 };
extern const int32_t kLens[REQUESTS];
extern const int32_t kFirst[REQUESTS + 1];
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

Scene* make_scene(void);
void free_scene(Scene* s);

#endif
