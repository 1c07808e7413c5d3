/* Plans for a CPU, writes 100 tokens into pages as the plan lays them out, and lets one query row
 * attend to them. Prints the plan and the first numbers of the result.
 *
 *   cc attend.c $(pkg-config --cflags --libs lathe) && ./a.out
 */
#include <lathe/lathe.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 100, HEADS = 8, DIM = 576, V_DIM = 512 };

static void must(lathe_status status) {
  if (status == LATHE_OK) return;
  fprintf(stderr, "%s: %s\n", lathe_status_name(status), lathe_last_error()->text);
  exit(1);
}

static lathe_tensor tensor(void* data, uint8_t code, uint8_t bits, int32_t axes, int64_t* shape) {
  lathe_tensor t = {NULL, 1, 0, 0, 0, 0, 1, NULL, NULL, 0};
  t.data = data;
  t.dtype_code = code;
  t.dtype_bits = bits;
  t.ndim = axes;
  t.shape = shape;
  return t;
}

static float* random_floats(size_t count) {
  float* x = malloc(count * sizeof *x);
  if (x == NULL) exit(1);
  for (size_t i = 0; i < count; ++i) x[i] = (float)rand() / (float)RAND_MAX - 0.5f;
  return x;
}

int main(void) {
  lathe_machine* machine;
  lathe_plan* plan;
  lathe_layout* layout;
  int64_t page_size, page_bytes;
  must(lathe_machine_query("cpu", &machine));
  must(lathe_plan_create("{\"attention\": \"mla\", \"kv_cache_dtype\": \"fp8_e4m3\", \"heads\": 8}",
                         machine, &plan));
  must(lathe_plan_layout(plan, 0, &layout, &page_size));
  must(lathe_layout_page_stride(layout, page_size, &page_bytes));
  printf("%s\n%s, %lld bytes a token\n", lathe_plan_text(plan), lathe_layout_text(layout),
         (long long)lathe_layout_bytes_per_token(layout));

  /* Pages that the request holds, in any order. */
  const int64_t pages = (TOKENS + page_size - 1) / page_size;
  int64_t pool_shape[] = {pages * page_bytes}, table_shape[] = {1, pages}, one[] = {1};
  int32_t* table = malloc((size_t)pages * sizeof *table);
  void* bytes = calloc((size_t)pages, (size_t)page_bytes);
  if (table == NULL || bytes == NULL) return 1;
  for (int64_t i = 0; i < pages; ++i) table[i] = (int32_t)(pages - 1 - i);
  lathe_tensor pool_bytes = tensor(bytes, LATHE_UINT, 8, 1, pool_shape);
  lathe_tensor page_table = tensor(table, LATHE_INT, 32, 2, table_shape);
  lathe_pool_view pool = {sizeof pool, NULL, NULL, 0, 0, 0};
  pool.layout = layout;
  pool.pages = &pool_bytes;
  pool.page_size = page_size;

  int32_t slot_of[TOKENS];
  for (int32_t t = 0; t < TOKENS; ++t)
    slot_of[t] = table[t / page_size] * (int32_t)page_size + t % (int32_t)page_size;
  int64_t rows_shape[] = {TOKENS, DIM}, slots_shape[] = {TOKENS};
  float* latents = random_floats(TOKENS * DIM);
  lathe_tensor rows = tensor(latents, LATHE_FLOAT, 32, 2, rows_shape);
  lathe_tensor slots = tensor(slot_of, LATHE_INT, 32, 1, slots_shape);
  must(lathe_encode(&pool, &rows, &slots));

  static float out_data[HEADS * V_DIM], lse_data[HEADS];
  int32_t length = TOKENS;
  int64_t q_shape[] = {1, HEADS, DIM}, out_shape[] = {1, HEADS, V_DIM}, lse_shape[] = {1, HEADS};
  float* query = random_floats(HEADS * DIM);
  lathe_tensor q = tensor(query, LATHE_FLOAT, 32, 3, q_shape);
  lathe_tensor kv_lens = tensor(&length, LATHE_INT, 32, 1, one);
  lathe_tensor out = tensor(out_data, LATHE_FLOAT, 32, 3, out_shape);
  lathe_tensor lse = tensor(lse_data, LATHE_FLOAT, 32, 2, lse_shape);
  lathe_attend_args args = {0};
  args.size = sizeof args;
  args.attention = "mla";
  args.q = &q;
  args.pool = &pool;
  args.page_table = &page_table;
  args.kv_lens = &kv_lens;
  args.out = &out;
  args.lse = &lse;
  must(lathe_attend(&args));
  printf("head 0: out %.4f %.4f %.4f ..., LSE %.4f (log of %d keys: 4.6052)\n", out_data[0],
         out_data[1], out_data[2], lse_data[0], TOKENS);

  free(query);
  free(latents);
  free(bytes);
  free(table);
  lathe_layout_free(layout);
  lathe_plan_free(plan);
  lathe_machine_free(machine);
  return 0;
}
