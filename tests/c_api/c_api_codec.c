/* Codecs and copies of cache pages, by their bytes. */
#include "c_api_scene.h"
#include "c_api_test.h"

#include <math.h>
#include <string.h>

void test_codecs(void) {
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
void test_copies(void) {
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
