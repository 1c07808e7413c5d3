/* The C interface of Lathe: cache layouts and their codecs, plans, attention, and an engine that
 * runs whole models. C99; the other headers of this folder are its C++ interface. docs/c-api.md has
 * first programs.
 *
 * - Every function that can fail returns a lathe_status. lathe_last_error() then names, for the
 *   calling thread, the wrong argument, the wanted and the offered value, and a way out. A failed
 *   call has written nothing, unless its description says otherwise.
 * - Objects are opaque. lathe_X_free() frees a lathe_X; NULL is allowed. Strings that an
 *   object returns are UTF-8, zero-terminated and owned by the object.
 * - Structs begin with their size: zero the struct, set `size` to its sizeof, then set the fields
 *   that you need. Later versions add fields only at the end, and zero means the default.
 * - One thread at a time may use an object. Different objects are independent; there are no
 *   globals.
 * - No exception passes this interface, and no input that can be checked ends the process.
 */
#ifndef LATHE_LATHE_H_
#define LATHE_LATHE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version ------------------------------------------------------------------------------- */

#define LATHE_VERSION_MAJOR 0
#define LATHE_VERSION_MINOR 1
#define LATHE_VERSION_PATCH 0

/* Version of the library loaded at run time: major << 16 | minor << 8 | patch. */
uint32_t lathe_version(void);
/* JSON: {"version", "compiler", "cuda", "simd"}; `cuda`: whether it was built with GPU kernels. */
const char* lathe_build_info(void);

/* ---- Errors -------------------------------------------------------------------------------- */

/* The numbers are stable between versions. */
typedef enum lathe_status {
  LATHE_OK = 0,
  LATHE_INVALID_ARGUMENT = 1,
  LATHE_REFUSED = 2,     /* by the planner: see lathe_refusal_json() */
  LATHE_UNSUPPORTED = 3, /* not on this device, or not in this build */
  LATHE_OUT_OF_MEMORY = 4,
  LATHE_DEVICE_ERROR = 5,
  LATHE_IO = 6,
  LATHE_ABORTED = 7, /* by the caller's callback */
  LATHE_INTERNAL = 8 /* a bug in Lathe; see the error's text */
} lathe_status;

/* For example "invalid_argument"; "unknown" if the number is not a status. */
const char* lathe_status_name(lathe_status status);

typedef struct lathe_error {
  int64_t size;
  lathe_status status;
  const char* text;  /* the fields below in one line */
  const char* field; /* the argument, or an element of it: "slots[3]" */
  const char* wanted;
  const char* offered;
  const char* hint; /* what to do instead; may be empty */
} lathe_error;

/* Error of the last failed call on this thread, valid until the next failure; NULL: none yet. */
const lathe_error* lathe_last_error(void);
/* Reasons of the last LATHE_REFUSED on this thread, valid until the next one: {"headline",
 * "reasons": [{"rule", "subject", "field", "wanted", "offered", "hint"}], "suggestions"}. NULL:
 * nothing was refused yet. */
const char* lathe_refusal_json(void);

/* ---- Tensors ------------------------------------------------------------------------------- */

/* Binary compatible with DLPack's DLTensor: a DLTensor* may be cast to a lathe_tensor*. The caller
 * owns the memory, and Lathe uses it only during the call. Tensors must be in host memory (device
 * 1, kDLCPU); attention also accepts GPU tensors (device 2, kDLCUDA). */
typedef struct lathe_tensor {
  void* data;
  int32_t device_type; /* kDLCPU = 1, kDLCUDA = 2 */
  int32_t device_id;
  int32_t ndim;
  uint8_t dtype_code; /* lathe_dtype_code */
  uint8_t dtype_bits;
  uint16_t dtype_lanes; /* 1 */
  int64_t* shape;       /* [ndim] */
  int64_t* strides;     /* [ndim] elements; NULL: dense, the last axis fastest */
  uint64_t byte_offset; /* from data to the first element */
} lathe_tensor;

/* DLPack's numbers. uint16 is also accepted as the bits of bfloat16, uint8 as codes of e4m3. */
typedef enum lathe_dtype_code {
  LATHE_INT = 0,
  LATHE_UINT = 1,
  LATHE_FLOAT = 2,
  LATHE_BFLOAT = 4,
  LATHE_FLOAT8_E4M3FN = 10
} lathe_dtype_code;

/* ---- Layouts ------------------------------------------------------------------------------- */

/* A KV cache's byte layout: the offset of every part of every token. */
typedef struct lathe_layout lathe_layout;

typedef enum lathe_part_role {
  LATHE_PART_NOPE = 0,
  LATHE_PART_ROPE = 1,
  LATHE_PART_KEY = 2,
  LATHE_PART_VALUE = 3,
  LATHE_PART_SCALE = 4,
  LATHE_PART_PAD = 5
} lathe_part_role;

typedef struct lathe_part {
  int64_t size;
  lathe_part_role role;
  int32_t elems;
  int32_t plane;
  int32_t offset;    /* bytes, within the token's record of that plane */
  const char* dtype; /* "e4m3", "bf16", "f32", ... */
} lathe_part;

/* text: "mla_fp8_block", or with parameters "mla_fp8_block(nope=256,scale=raw_f32)". */
lathe_status lathe_layout_parse(const char* text, lathe_layout** layout);
void lathe_layout_free(lathe_layout* layout);
/* With all parameters: "mla_fp8_block(nope=512,rope=64,scale=pow2_ceil)". */
const char* lathe_layout_text(const lathe_layout* layout);
/* XXH3-64 of the text: equal on every machine and build. */
uint64_t lathe_layout_hash(const lathe_layout* layout);
/* Bytes of one token, without the padding of pages. */
int64_t lathe_layout_bytes_per_token(const lathe_layout* layout);
/* Numbers of one decoded token: the width of rows in lathe_encode(). */
int64_t lathe_layout_row_elems(const lathe_layout* layout);
/* Bytes of a page of page_size tokens (1 to 65536). */
lathe_status lathe_layout_page_stride(const lathe_layout* layout, int64_t page_size,
                                      int64_t* bytes);
int32_t lathe_layout_part_count(const lathe_layout* layout);
lathe_status lathe_layout_part(const lathe_layout* layout, int32_t index, lathe_part* part);
/* Byte offset, from the start of the page, of a part of the page's token `index`. */
lathe_status lathe_layout_part_offset(const lathe_layout* layout, lathe_part_role role,
                                      int64_t page_size, int64_t index, int64_t* bytes);

/* ---- Pools and codecs ---------------------------------------------------------------------- */

/* Pages of one layout in the caller's memory. Slot s is token s % page_size of page s / page_size.
 */
typedef struct lathe_pool_view {
  int64_t size;
  const lathe_layout* layout;
  const lathe_tensor* pages; /* uint8 [bytes], pages one after another, or [pages, bytes] */
  int64_t page_size;         /* tokens per page; 0: 64 */
  float key_scale;           /* tensor scales of mla_fp8 (key) and gqa_fp8 (both); 0: 1 */
  float value_scale;
} lathe_pool_view;

/* Encodes row i of `rows` [n, row_elems] (float32 or bfloat16) into slot slots[i]; -1 skips it. */
lathe_status lathe_encode(const lathe_pool_view* pool, const lathe_tensor* rows,
                          const lathe_tensor* slots);
/* Decodes slot slots[i] into row i of `out` [n, row_elems] (float32 or bfloat16); -1: zeros. */
lathe_status lathe_gather_decode(const lathe_pool_view* pool, const lathe_tensor* slots,
                                 const lathe_tensor* out);

typedef struct lathe_requantize_report {
  int64_t size;
  float worst_abs_error; /* largest error of a decoded number */
  int32_t worst_slot;    /* source slot with that error; -1: nothing was lost */
  int64_t saturated;     /* numbers above 464 x the new scale: e4m3 rounds them beyond 448 */
} lathe_requantize_report;

/* mla_fp8 to mla_fp8_block (exact at scale 1) or back (lossy). report may be NULL. */
lathe_status lathe_requantize(const lathe_pool_view* from, const lathe_tensor* from_slots,
                              const lathe_pool_view* to, const lathe_tensor* to_slots,
                              lathe_requantize_report* report);

/* Copies page from_pages[i] to to_pages[i] byte for byte, padding included. `from` and `to` have
 * one layout and page size; they are one pool, or share no memory. Within one pool all sources are
 * read as if before the first write, so the lists may overlap. A source may repeat, a destination
 * not; -1 is refused. Tensor scales are not used. */
lathe_status lathe_copy_pages(const lathe_pool_view* from, const lathe_tensor* from_pages,
                              const lathe_pool_view* to, const lathe_tensor* to_pages);
/* The same for tokens: slot from_slots[i] to to_slots[i]. Page sizes of two pools may differ. */
lathe_status lathe_copy_slots(const lathe_pool_view* from, const lathe_tensor* from_slots,
                              const lathe_pool_view* to, const lathe_tensor* to_slots);

/* ---- Plans --------------------------------------------------------------------------------- */

typedef struct lathe_machine lathe_machine;

/* "auto", "cpu", "cuda" or "cuda:0" (the GPU that is here, else a described H200), "sm90", ... */
lathe_status lathe_machine_query(const char* device, lathe_machine** machine);
void lathe_machine_free(lathe_machine* machine);
const char* lathe_machine_json(const lathe_machine* machine);

/* The kernels of every phase, the cache layouts that they share, and their buffers. */
typedef struct lathe_plan lathe_plan;

/* request: a JSON object, {"attention": "mla" | "dsa" | "v4" | "gqa"} and flags of `lathe plan`
 * with underscores: {"kv_layout": "mla_fp8", "page_size": 64, "decode_attention_backend":
 * "native"}. LATHE_REFUSED where nothing fits: lathe_refusal_json(). */
lathe_status lathe_plan_create(const char* request, const lathe_machine* machine,
                               lathe_plan** plan);
void lathe_plan_free(lathe_plan* plan);
const char* lathe_plan_json(const lathe_plan* plan);
/* What `lathe plan` prints. */
const char* lathe_plan_text(const lathe_plan* plan);
int32_t lathe_plan_cache_count(const lathe_plan* plan);
/* Creates a cache's layout, which the caller frees, and sets *page_size (may be NULL) to its tokens
 * per page. Cache 0 is the main one. */
lathe_status lathe_plan_layout(const lathe_plan* plan, int32_t cache, lathe_layout** layout,
                               int64_t* page_size);
/* Kernels of a phase ("extend", "decode", "verify" or "draft_extend"), preferred first. */
lathe_status lathe_plan_route_json(const lathe_plan* plan, const char* phase, const char** json);
/* Bytes of the named buffer ("gather", "split partials", ...); 0 if the plan has none. */
lathe_status lathe_plan_budget(const lathe_plan* plan, const char* name, int64_t* bytes);

/* ---- Attention ----------------------------------------------------------------------------- */

typedef enum lathe_attend_flags {
  LATHE_LSE_BASE_2 = 1,         /* base 2 instead of e */
  LATHE_EMPTY_LSE_PLUS_INF = 2, /* lse of a row without keys: +inf instead of -inf */
  LATHE_SPLIT_BY_BATCH = 4      /* split by threads and batch: faster with few requests, but the
                                 * bits of a request then depend on the rest of the batch */
} lathe_attend_flags;

/* For each row and head, over the keys k that the row sees: s = scale * q.k, out = softmax(s).v.
 * Rows belong to requests. Row j of a request with n rows and L keys is at position L - n + j. */
typedef struct lathe_attend_args {
  int64_t size;
  const char* attention; /* "mla", "dsa", "v4", "gqa"; NULL: "dsa" */
  const char* kind;      /* "inplace", "native"; NULL: "inplace" */
  const char* device;    /* "cpu", or "ref", which is double and slow; "sm90" where q is on a GPU;
                            NULL: "cpu" or "sm90" */

  const lathe_tensor* q; /* [rows, heads, dim] float32, bfloat16, or e4m3 times q_scale */
  const lathe_pool_view* pool;
  const lathe_tensor* page_table; /* int32 or int64 [requests, width]: a row sees the keys up to
                                     its own position */
  const lathe_tensor* indices;    /* or [rows, width]: a row sees exactly these slots; -1: none */
  const lathe_tensor* index_lengths; /* [rows] entries that count; NULL: all */

  const lathe_pool_view* extra; /* v4: compressed entries, one softmax over both; else NULL */
  const lathe_tensor* extra_indices;
  const lathe_tensor* extra_index_lengths;

  const lathe_tensor* q_indptr; /* [requests + 1] first row of each request; NULL: one row each */
  const lathe_tensor* kv_lens;  /* [requests]; may be NULL with indices */
  const lathe_tensor* sink;     /* float32 [heads] raw logits; NULL: none */

  float scale;     /* 0: the default of `attention` */
  float q_scale;   /* of an e4m3 q; 0: 1 */
  int32_t window;  /* tokens; v4 and gqa with a page table; 0: the default of `attention` */
  uint32_t flags;  /* lathe_attend_flags */
  int32_t threads; /* 0: the calling thread; lathe_attend_step() uses its step's threads */

  const lathe_tensor* out; /* [rows, heads, v_dim] float32 or bfloat16; any stride between rows */
  const lathe_tensor* lse; /* [rows, heads] float32; NULL: not wanted */

  /* If q is on a GPU (Hopper), every tensor must be on that GPU: q bfloat16, or e4m3 for kind
   * "native"; lists dense int32; q_indptr and kv_lens given (with indices, {0, rows} and {rows});
   * out bfloat16. Addresses and row strides are multiples of 16 bytes. The call only launches work
   * on the stream: it does not wait or allocate, so a CUDA graph can capture it. Splits depend on
   * the batch. */
  void* stream;                  /* a cudaStream_t of that GPU; NULL: its default stream */
  const lathe_tensor* workspace; /* uint8 [bytes] at a multiple of 256; one stream at a time */
  /* Bounds of lengths that the host cannot read. */
  int64_t max_request_rows; /* most rows of a request; 0: 1 */
  int64_t max_kv_len;       /* most keys of a request; 0: what the page table holds */

  /* float32 [1] on q's device, or NULL: multiplied with q_scale, and with pool->key_scale. On a
   * GPU, with an e4m3 q, the kernel reads them when it runs. */
  const lathe_tensor* q_scale_tensor;
  const lathe_tensor* key_scale_tensor;
} lathe_attend_args;

lathe_status lathe_attend(const lathe_attend_args* args);
/* Bytes of `workspace` that are enough for every call on this GPU with at most as many rows,
 * requests and pages, as wide tables and lists, and as high bounds as args. Only shapes and dtypes
 * are read: data may be NULL, and so may q_indptr, out, lse and workspace. 0 in host memory. */
lathe_status lathe_attend_workspace(const lathe_attend_args* args, int64_t* bytes);

/* What the layers of one step share: the schedule (how the lengths are split into tasks) and, in
 * host memory, threads and scratch memory. */
typedef struct lathe_step lathe_step;

/* threads: 0: one per core. */
lathe_status lathe_step_create(int32_t threads, lathe_step** step);
void lathe_step_free(lathe_step* step);
/* Makes the schedule for the lengths in args. Of q, pools and outputs only shapes are read. On a
 * GPU this launches on args->stream; the schedule is in args->workspace until another call uses
 * that memory. */
lathe_status lathe_step_update(lathe_step* step, const lathe_attend_args* args);
/* lathe_attend() with the schedule of the last update: same bits. The problem, shapes and lengths
 * must be those of the update. Allocates only index lists, and scratch memory when a call needs
 * more than all calls before it. On a GPU the arrays of lengths, the bounds and the workspace must
 * be those of the update too, and the stream must be the same or wait for it. Both calls can be
 * captured, in one graph or in two. */
lathe_status lathe_attend_step(lathe_step* step, const lathe_attend_args* args);

/* Merges two attention results of the same rows and heads over disjoint keys, in double. With
 * natural logarithms la and lb, m = max(la, lb), wa = e^(la - m) and wb = e^(lb - m):
 *   out = (wa out_a + wb out_b) / (wa + wb), lse = m + ln(wa + wb)
 * outs: [rows, heads, v_dim] float32, bfloat16 or float16, dense in v_dim; lses: [rows, heads]
 * float32. A part with LSE -inf has no keys, and its out is not read; without keys in either, out
 * is 0 and lse -inf. out and lse may be the memory of out_a and lse_a, or of out_b and lse_b.
 * Tensors are in host memory. */
lathe_status lathe_merge(const lathe_tensor* out_a, const lathe_tensor* lse_a,
                         const lathe_tensor* out_b, const lathe_tensor* lse_b,
                         const lathe_tensor* out, const lathe_tensor* lse);

/* ---- Engine -------------------------------------------------------------------------------- */

/* A model that answers many requests at once. One step is one forward pass over a batch of them. */
typedef struct lathe_engine lathe_engine;

/* loaded, total: bytes of weights. Return non-zero to stop; the load then fails with LATHE_ABORTED.
 */
typedef int (*lathe_progress)(int64_t loaded, int64_t total, void* user);

/* options: a JSON object with "model" (a folder). Optional: "device" ("auto", "cpu", "cuda"),
 * "gpus" (the GPUs of "tp" by number: "0,1"), "dtype", "threads", "seed", "prefix_cache",
 * "load_format" ("auto", "dummy"), "draft" ("none", "ngram", "mtp" or a draft model's folder),
 * "scheduling_policy" ("fcfs": requests are served in order; "priority"), "priority_aging" (steps
 * after which a waiting request counts as one priority lower), and the options of
 * lathe_plan_create() except those that the model decides (attention, heads, ...):
 * {"model": "models/tiny-gqa", "tp": 2}. progress may be NULL. A fork of the process cannot use
 * the engine. */
lathe_status lathe_engine_load(const char* options, lathe_progress progress, void* user,
                               lathe_engine** engine);
void lathe_engine_free(lathe_engine* engine);
/* {"model", "device", "vocab", "context_length", "capacity", "plan"} */
const char* lathe_engine_json(const lathe_engine* engine);

/* Tokenises text. The engine owns the tokens; they are valid until the next call of this function
 * or of the next one. */
lathe_status lathe_engine_encode(lathe_engine* engine, const char* text, int64_t bytes,
                                 const int32_t** tokens, int64_t* count);
/* Renders messages, JSON such as [{"role": "user", "content": "..."}], with the model's chat
 * template and tokenises the result. The messages are read as those of /v1/chat/completions; an
 * error names the path of what is wrong, such as messages[1].role. */
lathe_status lathe_engine_encode_chat(lathe_engine* engine, const char* messages,
                                      const int32_t** tokens, int64_t* count);

/* Queues a request. params: a JSON object or NULL; a missing key has the model's default:
 * "max_new_tokens", "min_new_tokens", "temperature" (0: the most likely token), "top_k", "top_p",
 * "min_p", "seed", "repetition_penalty", "frequency_penalty", "presence_penalty", "stop" (a string
 * or a list), "stop_token_ids", "ignore_eos", "logprobs" (how many of the most likely tokens),
 * "cache_salt" (a string; only requests with an equal one share the prefix cache), "priority"
 * (lower ones are served first; other than 0 only with the scheduling policy "priority"). */
lathe_status lathe_engine_submit(lathe_engine* engine, const int32_t* prompt, int64_t count,
                                 const char* params, uint64_t* request);
/* Ends a request; the next step returns its last event. LATHE_OK if it is unknown or has ended. */
lathe_status lathe_engine_cancel(lathe_engine* engine, uint64_t request);
/* Non-zero if there is nothing to run and nothing to report. */
int32_t lathe_engine_idle(const lathe_engine* engine);

typedef enum lathe_event_kind {
  LATHE_EVENT_STARTED = 0, /* cached_tokens */
  LATHE_EVENT_TOKEN = 1,   /* token, position, text, logprob */
  LATHE_EVENT_FINISHED = 2 /* text (the rest), finish_reason, counts; the request's last event */
} lathe_event_kind;

typedef struct lathe_event {
  int64_t size;
  uint64_t request;
  lathe_event_kind kind;
  int32_t token;
  int64_t position;          /* in the answer, from 0 */
  double logprob;            /* natural; NaN if it was not requested */
  const char* logprobs_json; /* [{"token", "logprob"}], most likely first; NULL: not requested */
  const char* text;          /* whole characters that later tokens cannot change; may be empty */
  int64_t text_bytes;
  const char* finish_reason; /* "stop", "length", "cancelled", "error"; NULL: still running */
  const char* error;         /* set if finish_reason is "error", else NULL */
  int64_t prompt_tokens;
  int64_t answer_tokens;
  int64_t cached_tokens; /* prompt tokens found in the prefix cache */
} lathe_event;

/* Runs one forward pass, if there is a request. *count events can be read until the next step. A
 * failed step changes no request. */
lathe_status lathe_engine_step(lathe_engine* engine, int64_t* count);
lathe_status lathe_engine_event(const lathe_engine* engine, int64_t index, lathe_event* event);
/* {"steps", "waiting", "running", "held_pages", "total_pages", ...}, and "drafts": {"checks",
 * "drafted", "accepted" (both by position in the draft), "acceptance_length"}. */
lathe_status lathe_engine_stats_json(lathe_engine* engine, const char** json);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* LATHE_LATHE_H_ */
